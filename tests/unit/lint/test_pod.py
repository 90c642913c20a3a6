"""Traps of any pod in a manifest."""

import pytest

from tests.inputs.sound_manifests import POD, PYTORCHJOB, TRAIN, VOLCANO, Trap, find_trap

TRAPS: list[Trap] = [
    (VOLCANO, "train:v1", "train", f"{POD}.containers[0].image", "another image on another day"),
    (VOLCANO, "train:v1", "train:latest", f"{POD}.containers[0].image", "write the tag"),
    (VOLCANO, "{key: nvidia.com/gpu, o", "{o", f"{POD}.tolerations[0]", "never evicted"),
    (VOLCANO, "env:\n", "ports: [{containerPort: 29400}]\n          env:\n", f"{POD}.containers[0].ports", "29400"),
    (VOLCANO, "hostNetwork: true", "hostNetwork: true\n        dnsPolicy: Default", f"{POD}.dnsPolicy", "no Service"),
    (VOLCANO, "/dev/stdout", "/tmp/nccl.%h", f"{POD}.containers[0].env", "NCCL_DEBUG_FILE"),
    (VOLCANO, ", sizeLimit: 32Gi", "", f"{POD}.volumes[0].emptyDir", "sizeLimit"),
    (VOLCANO, "SYS_ADMIN", "CAP_SYS_ADMIN", f"{POD}.containers[0].securityContext.capabilities.add", "write SYS_ADMIN"),
    (VOLCANO, "${VC_WORKER_HOSTS%%,*}", "$(cat <<< $X)", f"{POD}.containers[0].command", "`<<<` is for bash"),
    (VOLCANO, "echo ", "hosts=(a b); echo ", f"{POD}.containers[0].command", "`hosts=(`"),
    (PYTORCHJOB, "v3.5.30", "latest", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, "v3.5.30", "v3.6.1", "spec.containers[0].image", "crash-loops"),
    (PYTORCHJOB, "dnsPolicy: ClusterFirstWithHostNet", "", f"{TRAIN}.dnsPolicy", "hostNetwork"),
]


@pytest.mark.parametrize("case", TRAPS, ids=lambda case: case[-1])
def test_trap_is_reported(case: Trap) -> None:
    """Each trap is reported once, at the key that causes it."""
    assert len(find_trap(case)) == 1
