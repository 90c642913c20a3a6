"""What a profile needs, as a person reads it before a run."""

import pytest

from torchyard.launchers.registry import make_plan
from torchyard.loading.profile import load_profile
from torchyard.model.run import TRIAL_RUN
from torchyard.pages.needs import list_needs, render_needs


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("digits-local-etcd", ["localhost"]),
        ("mnist-baremetal", ["gpu-48, gpu-49", "4 GPUs on gpu-48", "4 GPUs on gpu-49"]),
        ("yolov5-volcano", ["queue default", "hardware oke/bm-gpu-b4-8", "image ultralytics/yolov5:v7.0"]),
        ("allreduce-runai", ["the command line `runai`, project mlo", "4 nodes, each with gpus 8"]),
        ("fms-vela-gdr", ["NetworkAttachmentDefinition multi-nic-network", "LocalQueue default-queue"]),
        ("mnist-pytorchjob", ["8 pods, each with nvidia.com/gpu 1"]),
    ],
)
def test_needs_follow_from_the_plan(name: str, needs: list[str]) -> None:
    """The list has the place, the scheduler's objects, the GPUs and devices, the hosts and the image."""
    profile = load_profile(name)
    listed = list_needs(profile, make_plan(profile, TRIAL_RUN))
    assert [need for need in needs if need not in listed] == []
    if profile.launcher == "baremetal":
        assert listed == needs


def test_needs_change_with_the_profile() -> None:
    """A changed number of nodes, another image and another fabric are in the text, which is a list in Markdown."""
    profile = load_profile("yolov5-volcano", {"nodes": 3, "image": "mine:1", "fabric": "no-rdma"})
    text = render_needs(profile, make_plan(profile, TRIAL_RUN))
    assert text.startswith(
        "Needs:\n- the kubeconfig's current context, its namespace\n- jobs.batch.volcano.sh; to install"
    )
    for part in ("- 3 nodes, each with nvidia.com/gpu 1, cpu 64", "- network socket: ", "- image mine:1"):
        assert part in text
