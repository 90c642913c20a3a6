"""What a manifest that somebody else wrote will do to its user."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Planned, manifest_plan_of
from torchyard.loading.profile import load_profile
from torchyard.pods.lint import lint_manifest
from torchyard.pods.workload import _read_options, _split_script

MANIFESTS = Path(__file__).parent / "manifests"
POD = "spec.tasks[0].template.spec"
REPLICAS = "spec.pytorchReplicaSpecs.Worker"
TRAIN = f"{REPLICAS}.template.spec"


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def at(objects: list[dict[str, Any]]) -> list[str]:
    """The object and the key of every trap."""
    return [sentence.split(": ")[0] for sentence in lint_manifest(objects)]


def parse(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 2
  plugins: {env: [], svc: ["--publish-not-ready-addresses=true"]}
  policies: [{events: [PodFailed, PodEvicted], action: RestartJob}]
  tasks:
  - name: worker
    replicas: 2
    template:
      spec:
        hostNetwork: true
        restartPolicy: Never
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]
        volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 32Gi}}]
        containers:
        - name: worker
          image: registry.example:5000/train:v1
          securityContext: {privileged: true, capabilities: {add: [IPC_LOCK, SYS_ADMIN]}}
          env:
          - {name: NCCL_DEBUG_FILE, value: /dev/stdout}
          - {name: JOB_ID, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['scheduling.k8s.io/group-name']"}}}
          - {name: TRY, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['volcano.sh/job-retry-count']"}}}
          command:
          - /bin/sh
          - -c
          - |
            # not bash: ${hosts[0]} <<< "$VC_WORKER_HOSTS"
            first="${VC_WORKER_HOSTS%%,*}"; echo "don't [[ worry ]]"
            python3 -c 'a = (1,); print(a[[0]][0])'
            torchrun --nnodes=$VC_WORKER_NUM --rdzv-backend=etcd-v2 --rdzv-endpoint="$first:2379" \\
              --rdzv_id="$JOB_ID-$TRY" --node-rank=$VC_TASK_INDEX train.py --nnodes=2 --nnodes=2
"""
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  elasticPolicy: {rdzvBackend: etcd-v2, rdzvHost: etcd, rdzvPort: 2379, rdzvId: train-1, minReplicas: 1}
  pytorchReplicaSpecs:
    Worker:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          hostNetwork: true
          dnsPolicy: ClusterFirstWithHostNet
          containers:
          - name: pytorch
            image: train@sha256:0a1b
            ports: [{name: pytorchjob-port, containerPort: 29417}]
            command: [torchrun, --nproc-per-node, "2", train.py]
---
apiVersion: v1
kind: Pod
metadata: {name: etcd}
spec:
  containers:
  - {name: etcd, image: quay.io/coreos/etcd:v3.5.30, command: [etcd, --enable-v2], ports: [{containerPort: 2379}]}
"""
MASTER = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  runPolicy: {backoffLimit: 3}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: "train:v1", command: [torchrun, train.py]}]}}
    Worker: {<<: *replica, replicas: 3, restartPolicy: ExitCode}
"""

ROWS = {
    "volcano-c10d": [
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.tolerations[0]",
        f"Job yolov5-job, {POD}.containers[0].securityContext.capabilities.add",
        f"Job yolov5-job, {POD}.containers[0].ports",
        "Job yolov5-job, spec.minAvailable",
        "Job yolov5-job, spec.policies",
        f"Job yolov5-job, {POD}.restartPolicy",
    ],
    "volcano-etcd": [
        "Pod etcd-server, spec.containers[0].image",
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.tolerations[0]",
        f"Job yolov5-job, {POD}.containers[0].securityContext.capabilities.add",
        f"Job yolov5-job, {POD}.containers[0].ports",
        f"Job yolov5-job, {POD}.containers[0].image",
        f"Job yolov5-job, {POD}.restartPolicy",
        "Job yolov5-job, spec.minAvailable",
        "Job yolov5-job, spec.policies",
        f"Job yolov5-job, {POD}.restartPolicy",
    ],
    "pytorchjob-c10d": [
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.volumes[0].emptyDir",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].securityContext.capabilities.add",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].ports",
        f"PyTorchJob yolov5-training, {REPLICAS}.restartPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.minReplicas",
        "PyTorchJob yolov5-training, spec.elasticPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.maxRestarts",
    ],
    "pytorchjob-etcd": [
        "Pod etcd-server, spec.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        f"PyTorchJob yolov5-training, {TRAIN}.volumes[0].emptyDir",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].securityContext.capabilities.add",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].args",
        f"PyTorchJob yolov5-training, {REPLICAS}.replicas",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].image",
        "PyTorchJob yolov5-training, spec.elasticPolicy.rdzvId",
        f"PyTorchJob yolov5-training, {TRAIN}.containers[0].ports",
        f"PyTorchJob yolov5-training, {REPLICAS}.restartPolicy",
        "PyTorchJob yolov5-training, spec.elasticPolicy.minReplicas",
        "PyTorchJob yolov5-training, spec.elasticPolicy.maxRestarts",
    ],
}


@pytest.mark.parametrize("row", ROWS)
def test_guide_shows_its_traps(row: str) -> None:
    """The manifests of the guide, as users have them, show these traps and no others."""
    assert at(load(row)) == ROWS[row]


@pytest.mark.parametrize("fabric", ["host", "vf", "no-rdma"])
@pytest.mark.parametrize("row", ROWS)
def test_own_profile_of_the_row_shows_none(row: str, fabric: str, tmp_path: Path) -> None:
    """The profile that stands for a manifest of the guide shows no trap, over any fabric."""
    launcher, _, backend = row.partition("-")
    name = f"yolov5-{launcher}" + ("-etcd" if backend == "etcd" else "")
    plan = manifest_plan_of(load_profile(name, {"fabric": fabric}), tmp_path)
    assert lint_manifest([*plan.store, *plan.objects]) == ()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("rendezvous", ["c10d", "etcd-v2", "static"])
@pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
def test_own_plans_show_none(planned: Planned, launcher: str, rendezvous: str, nodes: int) -> None:
    """However the nodes meet, none of what is warned about is planned."""
    plan = planned(launcher=launcher, rendezvous=rendezvous, nodes=nodes, hardware="oke/bm-gpu-b4-8", fabric="host")
    assert lint_manifest([*plan.store, *plan.objects]) == ()


@pytest.mark.parametrize("manifest", [VOLCANO, PYTORCHJOB, MASTER])
def test_sound_manifest_shows_none(manifest: str) -> None:
    """A manifest that does what its author means is left in peace."""
    assert lint_manifest(parse(manifest)) == ()


SPOILED = [
    # what is written in place of what, where the trap is, and what its sentence says
    (VOLCANO, "train:v1", "train", f"{POD}.containers[0].image", "another image on another day"),
    (VOLCANO, "train:v1", "train:latest", f"{POD}.containers[0].image", "write the tag"),
    (VOLCANO, "registry.example:5000/train:v1", "pytorch/pytorch:2.8.0", f"{POD}.containers[0].image", "python-etcd"),
    (VOLCANO, "minAvailable: 2", "minAvailable: 0", "spec.minAvailable", "makes 2 of 0"),
    (VOLCANO, "[PodFailed, PodEvicted]", "[PodEvicted]", "spec.policies", "its peers hang"),
    (VOLCANO, "Policy: Never", "Policy: Always", f"{POD}.restartPolicy", "for ever"),
    (VOLCANO, "$JOB_ID-$TRY", "${JOB_ID}", "spec.policies", "RestartJob begins again with the same rendezvous id"),
    (VOLCANO, "$JOB_ID-$TRY", "fixed", "spec.policies", "RendezvousClosedError"),
    (VOLCANO, '--rdzv_id="$JOB_ID-$TRY"', "", f"{POD}.containers[0].command", "every job is `none`"),
    (VOLCANO, "{key: nvidia.com/gpu, o", "{o", f"{POD}.tolerations[0]", "never evicted"),
    (VOLCANO, "env:\n", "ports: [{containerPort: 29400}]\n          env:\n", f"{POD}.containers[0].ports", "29400"),
    (VOLCANO, "hostNetwork: true", "hostNetwork: true\n        dnsPolicy: Default", f"{POD}.dnsPolicy", "no Service"),
    (VOLCANO, "/dev/stdout", "/tmp/nccl.%h", f"{POD}.containers[0].env", "NCCL_DEBUG_FILE"),
    (VOLCANO, ", sizeLimit: 32Gi", "", f"{POD}.volumes[0].emptyDir", "sizeLimit"),
    (VOLCANO, "SYS_ADMIN", "CAP_SYS_ADMIN", f"{POD}.containers[0].securityContext.capabilities.add", "write SYS_ADMIN"),
    (VOLCANO, "${VC_WORKER_HOSTS%%,*}", "$(cat <<< $X)", f"{POD}.containers[0].command", "`<<<` is for bash"),
    (VOLCANO, "echo ", "hosts=(a b); echo ", f"{POD}.containers[0].command", "`hosts=(`"),
    (VOLCANO, "--nnodes=$VC", "--nnodes 3 --nnodes=$VC", f"{POD}.containers[0].command", "--nnodes stands there 2"),
    (VOLCANO, "=$VC_WORKER_NUM", "=4:8", f"{POD}.containers[0].command", "waits for 4 nodes"),
    (VOLCANO, '["--publish-not-ready-addresses=true"]', "[]", "spec.plugins.svc", "once it is ready"),
    (VOLCANO, 'svc: ["--publish-not-ready-addresses=true"]', "", "spec.plugins.svc", "VC_WORKER_HOSTS is empty"),
    (VOLCANO, "env: [], ", "", "spec.plugins.env", "VC_TASK_INDEX is empty"),
    (PYTORCHJOB, "v3.5.30", "latest", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, "v3.5.30", "v3.6.1", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, ", --enable-v2", "", "spec.containers[0]", "404"),
    (PYTORCHJOB, "29417", "23456", f"{TRAIN}.containers[0].ports", "cannot share one"),
    (PYTORCHJOB, "ports: [{name: pytorchjob-port, containerPort: 29417}]", "", f"{TRAIN}.containers[0].ports", "23456"),
    (PYTORCHJOB, "dnsPolicy: ClusterFirstWithHostNet", "", f"{TRAIN}.dnsPolicy", "hostNetwork"),
    (PYTORCHJOB, "rdzvId: train-1, ", "", "spec.elasticPolicy.rdzvId", "`none`"),
    (PYTORCHJOB, "minReplicas: 1", "minReplicas: 2", "spec.elasticPolicy.minReplicas", "waits for 2 nodes"),
    (PYTORCHJOB, "minReplicas: 1", "maxReplicas: 2", f"{REPLICAS}.replicas", "one pod"),
    (PYTORCHJOB, "minReplicas: 1", "standalone: true", "spec.elasticPolicy.standalone", "crashes"),
    (PYTORCHJOB, "minReplicas: 1", "maxRestarts: 100", "spec.elasticPolicy.maxRestarts", "100 times"),
    (PYTORCHJOB, " replicas: 1", " replicas: 2", "spec.elasticPolicy", "Succeeded as soon as"),
    (PYTORCHJOB, "[torchrun,", "[torchrun, --nproc_per_node=2,", f"{TRAIN}.containers[0].command", "2 times"),
    (PYTORCHJOB, "name: etcd}", "name: train-worker-0}", "metadata.name", "makes the pod train-worker-0 too"),
    (MASTER, "{backoffLimit: 3}", "{}", "spec.pytorchReplicaSpecs.Master.restartPolicy", "for ever"),
    (MASTER, "replicas: 1", "restartPolicy: Never", "spec.pytorchReplicaSpecs.Master.replicas", "not written as 1"),
]


@pytest.mark.parametrize("case", SPOILED, ids=lambda case: case[-1])
def test_trap_is_named(case: tuple[str, str, str, str, str]) -> None:
    """Each trap is told once for the key that springs it."""
    manifest, old, new, where, says = case
    assert old in manifest
    found = [sentence for sentence in lint_manifest(parse(manifest.replace(old, new, 1))) if says in sentence]
    assert len(found) == 1
    assert f"{where}: " in found[0]


def test_sentence_has_three_parts() -> None:
    """Where, what happens and what to write instead."""
    changed = parse(VOLCANO.replace("minAvailable: 2", "minAvailable: 0"))
    sentence = "the webhook makes 2 of 0, the sum of the replicas: nothing starts until all of them fit; "
    assert lint_manifest(changed) == (
        f"Job train, spec.minAvailable: {sentence}write 2 if that is meant, and 1 if not.",
    )


def test_restart_in_place_keeps_the_rendezvous_id() -> None:
    """A container that the kubelet starts again meets its own closed rendezvous, whatever id the manifest has."""
    changed = PYTORCHJOB.replace("restartPolicy: Never", "restartPolicy: OnFailure")
    assert [sentence for sentence in lint_manifest(parse(changed)) if "RendezvousClosedError" in sentence]


def test_words_after_a_script_are_read() -> None:
    """A script that ends in `exec "$@"` starts the words behind it."""
    behind = '[sh, -c, "set -e; exec \\"$@\\"", sh, torchrun, --nnodes=2, --nnodes=2, train.py, --x, --x]'
    found = lint_manifest(parse(PYTORCHJOB.replace('[torchrun, --nproc-per-node, "2", train.py]', behind)))
    assert [sentence.partition(": ")[2][:14] for sentence in found if "stands there" in sentence] == ["--nnodes stand"]


def test_options_are_torchruns_own() -> None:
    """What follows the program belongs to it, and a substitution is no word of the command."""
    words = _split_script("torchrun --nnodes=$(a b; c) --rdzv_id 'x y' \\\n -m train --nnodes=2 && true")
    assert _read_options(words[1:]) == [("nnodes", "\0"), ("rdzv-id", "x_y"), ("m", "")]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ODD = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2))
KNOWN = [load(row) for row in ROWS] + [parse(VOLCANO), parse(PYTORCHJOB), parse(MASTER)]


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(path for key, each in inner for path in paths(each, (*above, key)))]


@given(st.data())
def test_odd_shapes_are_read(data: st.DataObject) -> None:
    """Whatever stands in place of any value, nothing is raised and every trap is a sentence."""
    objects = copy.deepcopy(data.draw(st.sampled_from(KNOWN)))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from([path for path in paths(objects) if path]))
        place: Any = objects
        for key in way:
            place = place[key]
        place[last] = data.draw(ODD)
    assert all(sentence.endswith(".") for sentence in lint_manifest(objects))


@given(st.lists(ODD, max_size=3))
def test_anything_is_read(objects: list[Any]) -> None:
    """What is no manifest shows no trap."""
    assert lint_manifest(objects) == ()


@given(st.text(alphabet="$(){}[]<>'\"`#\\\n;&|= -rdzvtorchunx_", max_size=60))
def test_any_script_is_read(script: str) -> None:
    """A script that no shell would take is read too."""
    objects = parse(VOLCANO)
    objects[0]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    assert isinstance(lint_manifest(objects), tuple)


# --- AppWrapper


WRAPPED = """
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata:
  name: outer
  annotations:
    workload.codeflare.dev.appwrapper/admissionGracePeriodDuration: 30m
    workload.codeflare.dev.appwrapper/warmupGracePeriodDuration: 30m
    workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration: 1h
spec:
  components:
  - template:
      apiVersion: kubeflow.org/v1
      kind: PyTorchJob
      metadata: {name: inner}
      spec:
        pytorchReplicaSpecs:
          Master:
            replicas: 1
            restartPolicy: Never
            template:
              spec:
                containers: [{name: pytorch, image: "train:v1", command: [python3, train.py]}]
"""
PREFIX = "workload.codeflare.dev.appwrapper/"


def wrapped(**changes: Any) -> list[dict[str, Any]]:
    """The good one, with its annotations (None: left out) and its job's policy changed."""
    (whole,) = parse(WRAPPED)
    said = whole["metadata"]["annotations"]
    said.update({PREFIX + name: value for name, value in changes.items() if name.endswith("Duration")})
    whole["metadata"]["annotations"] = {key: value for key, value in said.items() if value is not None}
    if policy := changes.get("cleanPodPolicy"):
        whole["spec"]["components"][0]["template"]["spec"]["runPolicy"] = {"cleanPodPolicy": policy}
    return [whole]


def test_good_wrapper_has_no_traps() -> None:
    """What is patient, and keeps its pods, is not complained of."""
    assert lint_manifest(wrapped()) == ()


def test_traps_of_the_wrapped_job_are_told_with_both_names() -> None:
    """A Master of two is refused inside an AppWrapper as well."""
    (whole,) = wrapped()
    whole["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    assert at([whole]) == ["AppWrapper outer, PyTorchJob inner, spec.pytorchReplicaSpecs.Master.replicas"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("warmupGracePeriodDuration", None, "after 5m in which not all pods run"),
        ("admissionGracePeriodDuration", None, "after 1m in which not all pods exist"),
        ("deletionOnFailureGracePeriodDuration", None, "are deleted at once"),
        ("successTTLDuration", "7d", "7d is not a duration of Go"),
    ],
)
def test_patience_of_the_wrapper_is_looked_at(name: str, value: str | None, said: str) -> None:
    """What the controller does unasked, and what it does not understand."""
    (found,) = lint_manifest(wrapped(**{name: value}))
    assert f"{PREFIX}{name}" in found
    assert said in found


@pytest.mark.parametrize("policy", ["Running", "All"])
def test_pods_that_are_cleaned_are_never_counted(policy: str) -> None:
    """The wrapper waits for every pod to have succeeded."""
    (found,) = lint_manifest(wrapped(cleanPodPolicy=policy))
    assert f"{policy} deletes pods" in found


def test_dispatcher_must_be_told_of_the_end() -> None:
    """Without completionstatus the older AppWrapper never ends."""
    item = {"generictemplate": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}}
    whole = {"kind": "AppWrapper", "apiVersion": "mcad.ibm.com/v1beta1", "metadata": {"name": "old"}}
    assert at([{**whole, "spec": {"resources": {"GenericItems": [item]}}}]) == [
        "AppWrapper old, spec.resources.GenericItems[0].completionstatus"
    ]
