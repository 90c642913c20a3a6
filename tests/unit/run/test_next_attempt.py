"""What another attempt does differently: it avoids the nodes that failed."""

import pytest

from tests.reports import attempt
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Run
from torchyard.run.next_attempt import _list_failed_machines, avoid_failed_machines

RUN = Run(id="0190c7f0-0000-7000-8000-0000a1b2c3d4", attempt=2, folder="/runs/r")


@pytest.mark.parametrize(
    ("cause", "machine", "kept_off"),
    [
        ("node-lost", "gpu-7", ("gpu-7",)),
        ("gpu-fault", "gpu-7", ("gpu-7",)),
        ("evicted", "gpu-7", ("gpu-7",)),
        ("preempted", "gpu-7", ()),
        ("registry", "gpu-7", ()),
        ("image", "gpu-7", ()),
        ("node-lost", "", ()),
        ("", "gpu-7", ()),
    ],
)
def test_node_that_failed_is_known(cause: str, machine: str, kept_off: tuple[str, ...]) -> None:
    """A node is avoided only if the failure was its own: not after a preemption, nor if the node is unknown."""
    assert _list_failed_machines([attempt(1, cause, machine)]) == kept_off


def plan(**overrides: object) -> str:
    """The job of the attempt after one that failed on gpu-7, as text."""
    profile = avoid_failed_machines(load_profile("yolov5-volcano", overrides), [attempt(1, "node-lost")])
    plan = registry.load_launcher(profile.launcher).plan(profile, RUN)
    assert isinstance(plan, ManifestPlan)
    return str(plan.main)


def test_next_attempt_keeps_off_the_node_that_failed() -> None:
    """With avoid_failed the pods of the next attempt have a node affinity that excludes the failed node."""
    expected = "{'key': 'kubernetes.io/hostname', 'operator': 'NotIn', 'values': ['gpu-3', 'gpu-7']}"
    assert expected in plan(avoid_failed=True, **{"pod.avoid": {"kubernetes.io/hostname": ["gpu-3"]}})


def test_next_attempt_may_meet_the_node_again() -> None:
    """Without avoid_failed the next attempt may run where the last one failed."""
    assert "gpu-7" not in plan()
