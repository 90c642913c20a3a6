"""Traps in the addresses at which the pods of a manifest look for each other."""

import pytest

from tests.inputs.sound_manifests import INDEXED_JOB, JOBSET, MASTER, POD, PYTORCHJOB, VOLCANO, Trap, find_trap, parse
from torchyard.lint.manifest import lint_manifest

LAUNCH_MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          hostNetwork: true
          hostIPC: true
          dnsPolicy: ClusterFirstWithHostNet
          containers:
          - name: pytorch
            image: mnist:v1
            ports: [{name: pytorchjob-port, containerPort: 29417}]
            resources: {limits: {nvidia.com/gpu: 4}}
            command:
            - sh
            - -c
            - "python -m torch.distributed.launch --nnodes=2 --nproc_per_node=4 --node_rank=${RANK}
              --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py"
    Worker: {<<: *replica}
"""
MASTER_PATH = "spec.pytorchReplicaSpecs.Master.template.spec"
COMMAND_PATH = f"{MASTER_PATH}.containers[0].command"
JOBSET_COMMAND = "spec.replicatedJobs[0].template.spec.template.spec.containers[0].command"
JOB_COMMAND = "spec.template.spec.containers[0].command"
VOLCANO_COMMAND_PATH = f"{POD}.containers[0].command"
C10D_MANIFEST = VOLCANO.replace("--rdzv-backend=etcd-v2", "--rdzv-backend=c10d")
INIT_METHOD_MANIFEST = LAUNCH_MANIFEST.replace("train.py", "train.py --dist-url=file:///shared/$JOB")
TRAPS: list[Trap] = [
    (LAUNCH_MANIFEST, "$MASTER_ADDR", "10.2.19.4", COMMAND_PATH, "10.2.19.4 is one machine's address"),
    (INIT_METHOD_MANIFEST, "file:///shared/$JOB", "tcp://10.2.19.4:22222", COMMAND_PATH, "conflict on port 22222"),
    (C10D_MANIFEST, '"$first:2379"', "10.2.19.4:2379", VOLCANO_COMMAND_PATH, "conflict on port 2379"),
    (LAUNCH_MANIFEST, "$MASTER_ADDR", "mnist", COMMAND_PATH, "the manifest does not create the Service mnist"),
    (LAUNCH_MANIFEST, "$MASTER_PORT", "29500", COMMAND_PATH, "29500 is the port of every example"),
    (C10D_MANIFEST, ":2379", ":29400", VOLCANO_COMMAND_PATH, "29400 is the port of every example"),
    (INIT_METHOD_MANIFEST, "/$JOB", "/meet", COMMAND_PATH, "has left the file /shared/meet"),
    (
        LAUNCH_MANIFEST,
        "Worker: {<<: *replica}",
        "Worker: {<<: *replica, replicas: 3}",
        f"{MASTER_PATH}.hostNetwork",
        "need 4",
    ),
    (
        MASTER,
        "{containers:",
        "{subdomain: train, containers:",
        f"{MASTER_PATH}.subdomain",
        "create the headless Service",
    ),
    (
        INDEXED_JOB.replace("$JOB-0.peers", "train-0.peers.ml.svc.cluster.local"),
        "subdomain: peers\n",
        "dnsPolicy: ClusterFirst\n",
        "spec.template.spec.subdomain",
        "such as train-0.peers, do not resolve",
    ),
    (
        INDEXED_JOB,
        "$JOB-0.peers",
        "train-0",
        JOB_COMMAND,
        "exist only in the Service of their subdomain; write train-0.peers",
    ),
    (
        INDEXED_JOB.replace("$JOB-0.peers", "train-0"),
        "subdomain: peers\n",
        "dnsPolicy: ClusterFirst\n",
        JOB_COMMAND,
        "write train-0.train, subdomain: train in the pod's spec, and add a Service",
    ),
    (
        JOBSET,
        "$(HEAD)-worker-0-0.$(HEAD)",
        "train-worker-0-0.train-worker",
        JOBSET_COMMAND,
        "in train; write train-worker-0-0.train",
    ),
    (
        JOBSET.replace("$(HEAD)-worker-0-0.$(HEAD)", "train-worker-0-0.train"),
        "spec:\n",
        "spec:\n  network: {subdomain: peers}\n",
        JOBSET_COMMAND,
        "in peers; write train-worker-0-0.peers",
    ),
    (LAUNCH_MANIFEST, "$MASTER_ADDR", "meeting-point", COMMAND_PATH, "does not create the Service meeting-point"),
    (
        PYTORCHJOB,
        "metadata: {name: etcd}\nspec: {clusterIP",
        "metadata: {name: other}\nspec: {clusterIP",
        "spec.elasticPolicy.rdzvHost",
        "create the Service etcd",
    ),
]


TRAPS += [
    (
        VOLCANO,
        '--rdzv-endpoint="$first:2379"',
        "--master-addr=train-worker-0",
        VOLCANO_COMMAND_PATH,
        "exist only in the Service of their subdomain; write train-worker-0.train",
    ),
    (
        JOBSET,
        "$(HEAD)-worker-0-0.$(HEAD)",
        "train-worker-0-0",
        JOBSET_COMMAND,
        "exist only in the Service of their subdomain; write train-worker-0-0.train",
    ),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_trap_is_reported(case: Trap) -> None:
    """Each trap is reported at the key that causes it."""
    assert find_trap(case)


@pytest.mark.parametrize(
    "manifest", [LAUNCH_MANIFEST, INIT_METHOD_MANIFEST, C10D_MANIFEST], ids=["launched", "spawned", "c10d"]
)
def test_sound_manifest_shows_none(manifest: str) -> None:
    """A manifest whose pods find each other wherever they are placed gets no warning."""
    assert lint_manifest(parse(manifest)) == ()


@pytest.mark.parametrize("domain", ["train", "train.ml.svc.cluster.local"])
def test_pod_in_the_controllers_service_gets_no_warning(domain: str) -> None:
    """A JobSet's pod has its name in the Service of the JobSet's name."""
    assert lint_manifest(parse(JOBSET.replace("$(HEAD)-worker-0-0.$(HEAD)", f"train-worker-0-0.{domain}"))) == ()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "$(FIRST)", "head.example.org"])
def test_address_that_may_be_right_gets_no_warning(host: str) -> None:
    """An address that is known only in the pod, or is outside the cluster, gets no warning."""
    assert lint_manifest(parse(LAUNCH_MANIFEST.replace("$MASTER_ADDR", host))) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("subdomain: peers\n", "subdomain: peers\n      dnsConfig: {searches: [peers.ml.svc.cluster.local]}\n"),
        ("metadata: {name: peers}", "metadata: {name: train-0}"),
        ("parallelism: 2\n  completions: 2", "parallelism: 1\n  completions: 1"),
    ],
    ids=["search domain", "Service of the pod", "the only pod"],
)
def test_pod_name_that_may_resolve_gets_no_warning(old: str, new: str) -> None:
    """The name of a Job's pod is an address for itself, and where a search domain or its own Service makes it one."""
    manifest = INDEXED_JOB.replace("$JOB-0.peers", "train-0").replace(old, new)
    assert not [finding for finding in lint_manifest(parse(manifest)) if "does not resolve" in str(finding)]


VOLCANO_PLUGIN = VOLCANO.replace("env: [], ", 'pytorch: ["--master=worker"], env: [], ')


@pytest.mark.parametrize(
    ("manifest", "is_read"),
    [
        (VOLCANO.replace("torchrun", "train"), True),
        (VOLCANO, False),
        (VOLCANO.replace("train.py", "train.py --at=$MASTER_ADDR"), True),
        (VOLCANO_PLUGIN.replace("torchrun", "train"), False),
        (VOLCANO_PLUGIN.replace("torchrun", "train").replace("--master=worker", "--master=main"), True),
    ],
    ids=["program", "torchrun", "command", "plugin", "plugin-without-master"],
)
def test_address_in_a_variable_counts_if_the_program_gets_it(manifest: str, is_read: bool) -> None:
    """torchrun gives its processes a MASTER_ADDR of its own, and a controller's wins over the one of the manifest."""
    manifest = manifest.replace("env:\n", "env:\n          - {name: MASTER_ADDR, value: 10.2.19.4}\n")
    manifest = manifest.replace("etcd-v2", "c10d")
    warnings = [finding for finding in lint_manifest(parse(manifest)) if "10.2.19.4" in finding.what]
    assert bool(warnings) == is_read


def test_operators_address_wins() -> None:
    """A PyTorchJob with a Master gets its MASTER_ADDR from the operator, whatever the manifest sets."""
    manifest = LAUNCH_MANIFEST.replace(
        "ports: [{name", "env: [{name: MASTER_ADDR, value: mnist-master-0}]\n            ports: [{name"
    )
    assert lint_manifest(parse(manifest)) == ()


def test_service_of_the_manifest_keeps_its_name() -> None:
    """A Service in the manifest that has the job's name in its own exists under that name in every run."""
    manifest = PYTORCHJOB.replace("name: etcd}", "name: train-etcd}").replace("rdzvHost: etcd", "rdzvHost: train-etcd")
    assert lint_manifest(parse(manifest)) == ()


@pytest.mark.parametrize(
    ("manifest", "address", "host"),
    [
        (LAUNCH_MANIFEST, "$MASTER_ADDR", "mnist-master-0"),
        (C10D_MANIFEST, '"$first:2379"', "train-worker-0.train:2379"),
        (INDEXED_JOB, "$JOB-0.peers", "train-0.peers"),
    ],
)
def test_address_of_an_own_pod_is_found(manifest: str, address: str, host: str) -> None:
    """The address of one of the job's own pods needs no Service in the manifest, whatever a run calls the job."""
    assert lint_manifest(parse(manifest.replace(address, host))) == ()


def test_data_file_is_not_a_rendezvous() -> None:
    """A `file://` is a trap only as torch's init_method, not as the path of data."""
    assert lint_manifest(parse(LAUNCH_MANIFEST.replace("train.py", "train.py --data=file:///shared/images"))) == ()


def test_large_pods_may_have_a_node_each() -> None:
    """Pods that use all GPUs of a node need a node each in any case."""
    manifest = LAUNCH_MANIFEST.replace("{<<: *replica}", "{<<: *replica, replicas: 3}").replace("gpu: 4", "gpu: 8")
    manifest = manifest.replace("--nnodes=2", "--nnodes=4")
    assert lint_manifest(parse(manifest)) == ()


@pytest.mark.parametrize(("name", "remedy"), [("peers", "write peers"), ("others", "write peers, and add a Service")])
def test_missing_subdomain_names_the_missing_service_too(name: str, remedy: str) -> None:
    """Who writes the subdomain needs the Service as well, if the manifest does not have it."""
    manifest = INDEXED_JOB.replace("$JOB-0.peers", "train-0.peers").replace(
        "subdomain: peers\n", "dnsPolicy: Default\n"
    )
    findings = lint_manifest(parse(manifest.replace("metadata: {name: peers}", f"metadata: {{name: {name}}}")))
    (fix,) = [
        finding.remedy for finding in findings if "do not resolve" in finding.what and "subdomain" in finding.where
    ]
    assert fix is not None
    assert fix.partition(" with")[0] == remedy
