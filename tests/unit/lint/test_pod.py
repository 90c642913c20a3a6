"""Traps of any pod in a manifest."""

import pytest
import yaml

from tests.inputs.sound_manifests import MASTER, POD, PYTORCHJOB, TRAIN, VOLCANO, Trap, find_trap, list_traps, parse
from torchyard.lint.manifest import lint_manifest

SHM_PATH = f"{POD}.containers[0].volumeMounts"
GPU_MANIFEST = VOLCANO.replace(
    "          env:\n", "          resources: {limits: {nvidia.com/gpu: 1}}\n          env:\n"
)
TRAPS: list[Trap] = [
    (
        VOLCANO,
        "          image: registry.example:5000/train:v1\n",
        "",
        f"{POD}.containers[0].image",
        "it is missing: the API server rejects the pod; write the image's name",
    ),
    (VOLCANO, "train:v1", "train", f"{POD}.containers[0].image", "another image on another day"),
    (
        VOLCANO,
        "registry.example:5000/",
        "${REGISTRY}/",
        f"{POD}.containers[0].image",
        "`${REGISTRY}/train:v1` is a place",
    ),
    (VOLCANO, "train:v1", "Train:v1", f"{POD}.containers[0].image", "is not the name of an image"),
    (VOLCANO, "env:\n", "resources: {limits: {amd.com/gpu: 1}}\n          env:\n", SHM_PATH, "64 MiB"),
    (
        PYTORCHJOB,
        "ports: [{name: py",
        "resources: {requests: {nvidia.com/gpu: '2'}}\n            ports: [{name: py",
        f"{TRAIN}.containers[0].volumeMounts",
        "64 MiB",
    ),
    (
        VOLCANO,
        "{name: NCCL_DEBUG_FILE, value: /dev/stdout}",
        "{name: GLOO_SOCKET_IFNAME, value: lo}",
        f"{POD}.containers[0].env",
        "lo, the loopback",
    ),
    (VOLCANO, "first=", "export NCCL_SOCKET_IFNAME='=lo'; first=", f"{POD}.containers[0].command", "lo, the loopback"),
    (VOLCANO, "train:v1", "train:latest", f"{POD}.containers[0].image", "write the tag"),
    (VOLCANO, "{key: nvidia.com/gpu, o", "{o", f"{POD}.tolerations[0]", "never evicted"),
    (VOLCANO, "env:\n", "ports: [{containerPort: 29400}]\n          env:\n", f"{POD}.containers[0].ports", "29400"),
    (VOLCANO, "hostNetwork: true", "hostNetwork: true\n        dnsPolicy: Default", f"{POD}.dnsPolicy", "no Service"),
    (VOLCANO, "/dev/stdout", "/tmp/nccl.%h", f"{POD}.containers[0].env", "NCCL_DEBUG_FILE"),
    (VOLCANO, ", sizeLimit: 32Gi", "", f"{POD}.volumes[0].emptyDir", "sizeLimit"),
    (VOLCANO, "SYS_ADMIN", "CAP_SYS_ADMIN", f"{POD}.containers[0].securityContext.capabilities.add", "write SYS_ADMIN"),
    (VOLCANO, "${VC_WORKER_HOSTS%%,*}", "$(cat <<< $X)", f"{POD}.containers[0].command", "`<<<` is for bash"),
    (
        VOLCANO,
        "{name: NCCL_DEBUG_FILE, value: /dev/stdout}",
        "{name: MASTER_ADDR, value: $(HOSTNAME)}",
        f"{POD}.containers[0].env[0].value",
        "$(HOSTNAME) stays as it is: no variable before this one has that name; define HOSTNAME before it",
    ),
    (VOLCANO, "echo ", "hosts=(a b); echo ", f"{POD}.containers[0].command", "`hosts=(`"),
    (PYTORCHJOB, "v3.5.30", "latest", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, "v3.5.30", "v3.6.1", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, "dnsPolicy: ClusterFirstWithHostNet", "", f"{TRAIN}.dnsPolicy", "hostNetwork"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_trap_is_reported(case: Trap) -> None:
    """Each trap is reported once, at the key that causes it."""
    assert len(find_trap(case)) == 1


@pytest.mark.parametrize(
    "variables",
    [
        "{name: A, value: b}\n          - {name: C, value: x$(A)}",
        "{name: C, value: $$(A)}",
        "{name: C, value: 'tcp://$(STORE_SERVICE_HOST):$(STORE_SERVICE_PORT)'}",
    ],
    ids=["defined before", "escaped", "of a Service"],
)
def test_reference_that_the_kubelet_replaces_gets_no_warning(variables: str) -> None:
    """A variable that is defined before, or by a Service, is replaced, and `$$` stands for one `$`."""
    manifest = VOLCANO.replace("{name: NCCL_DEBUG_FILE, value: /dev/stdout}", variables)
    assert not [trap for trap in list_traps(parse(manifest)) if ".env[" in trap]


def test_reference_to_a_variable_of_a_config_map_gets_no_warning() -> None:
    """What `envFrom` defines is not known here."""
    manifest = VOLCANO.replace("value: /dev/stdout}", "value: $(A)}")
    assert [trap for trap in list_traps(parse(manifest)) if ".env[0]" in trap]
    manifest = manifest.replace(
        "          command:", "          envFrom: [{configMapRef: {name: a}}]\n          command:"
    )
    assert not [trap for trap in list_traps(parse(manifest)) if ".env[0]" in trap]


@pytest.mark.parametrize(
    ("old_text", "new_text"),
    [
        ("          env:\n", "          volumeMounts: [{name: shm, mountPath: /dev/shm/}]\n          env:\n"),
        ("          env:\n", "          volumeMounts: [{name: shm, mountPath: /dev}]\n          env:\n"),
        ("hostNetwork: true", "hostNetwork: true\n        hostIPC: true"),
        ("  tasks:\n", "  volumes: [{mountPath: /dev/shm, volumeClaimName: ram}]\n  tasks:\n"),
    ],
)
def test_shared_memory_of_the_manifest_is_enough(old_text: str, new_text: str) -> None:
    """A volume at /dev/shm or over it, of the pod or of the Volcano Job, and the node's /dev/shm are larger."""
    assert len(lint_manifest(parse(GPU_MANIFEST))) == 1
    assert lint_manifest(parse(GPU_MANIFEST.replace(old_text, new_text, 1))) == ()


@pytest.mark.parametrize("command_text", ["[sh, -c, nvidia-smi -L && sleep 30]", "[/bin/sleep, infinity]"])
def test_container_that_only_waits_needs_no_shared_memory(command_text: str) -> None:
    """A container that prints its GPUs or sleeps does not train, in any number of pods."""
    objects = parse(GPU_MANIFEST)
    objects[0]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] = yaml.safe_load(command_text)
    assert lint_manifest(objects) == ()


def test_one_gpu_alone_may_need_little_shared_memory() -> None:
    """A pod with one GPU and no peers is not reported."""
    one_pod = GPU_MANIFEST.replace("replicas: 2", "replicas: 1").replace("minAvailable: 2", "")
    assert lint_manifest(parse(one_pod)) == ()


@pytest.mark.parametrize("value", ["eth0", "^lo,docker0", "lo,eth0"])
def test_interface_that_reaches_peers_gets_no_warning(value: str) -> None:
    """A list of interfaces that only contains or excludes lo is not a trap, nor is lo in a job of one pod."""
    variable = f"{{name: NCCL_SOCKET_IFNAME, value: '{value}'}}"
    assert lint_manifest(parse(VOLCANO.replace("{name: NCCL_DEBUG_FILE, value: /dev/stdout}", variable))) == ()
    assert lint_manifest(parse(VOLCANO.replace("first=", f"export NCCL_SOCKET_IFNAME={value}; first="))) == ()
    master = MASTER[: MASTER.index("    Worker")]
    one_pod = master.replace("command:", "env: [{name: GLOO_SOCKET_IFNAME, value: lo}], command:")
    assert lint_manifest(parse(one_pod)) == ()


@pytest.mark.parametrize(
    ("text", "certainty"),
    [
        ("--lr={{ .Values.lr }}", "is an expression"),
        ("{{- .Release.Name }}", "is an expression"),
        ("{{workflow.uid}}", "is an expression"),
        ("{{inputs.parameters.lr}}", "is an expression"),
        ("--lr=${trialParameters.learningRate}", "is an expression"),
        ("docker inspect --format '{{ .State }}'", "may be an expression"),
        ("${LR} $LR {{ message }} {{}}", None),
    ],
)
def test_template_that_is_not_filled_in_is_reported(text: str, certainty: str | None) -> None:
    """An expression of a template in an argument or a variable is a warning; a shell's variable is none."""
    pod = {"containers": [{"name": "a", "args": [text], "env": [{"name": "A", "value": text}]}]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": pod}
    findings = [finding for finding in lint_manifest([document]) if "template" in finding.what]
    paths = "Pod train, spec.containers[0].args[0], spec.containers[0].env[0].value"
    assert [finding.where for finding in findings] == ([paths] if certainty else [])
    assert all(str(certainty) in finding.what for finding in findings)
