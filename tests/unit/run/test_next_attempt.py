"""Whether another attempt follows, and that it avoids the machines on which earlier attempts failed."""

import pytest

from tests.builders.reports import attempt
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Run
from torchyard.run.next_attempt import avoid_failed_machines, list_failed_machines, may_try_again

RUN = Run(id="0190c7f0-0000-7000-8000-0000a1b2c3d4", attempt=2, folder="/runs/r")


@pytest.mark.parametrize(
    ("cause", "machine", "avoided"),
    [
        ("node-lost", "gpu-7", ("gpu-7",)),
        ("gpu-fault", "gpu-7", ("gpu-7",)),
        ("evicted", "gpu-7", ("gpu-7",)),
        ("preempted", "gpu-7", ()),
        ("image-pull", "gpu-7", ()),
        ("node-lost", "", ()),
        ("", "gpu-7", ()),
    ],
)
def test_failed_machine_is_avoided(cause: str, machine: str, avoided: tuple[str, ...]) -> None:
    """A machine is avoided only if it caused the failure: not after a preemption, nor if the machine is unknown."""
    assert list_failed_machines([attempt(1, cause, machine)]) == avoided


def plan(**overrides: object) -> str:
    """The job of the attempt after one that failed on gpu-7, as text."""
    profile = avoid_failed_machines(load_profile("yolov5-volcano", overrides), [attempt(1, "node-lost")])
    plan = registry.make_plan(profile, RUN)
    assert isinstance(plan, ManifestPlan)
    return str(plan.main)


def test_next_attempt_excludes_the_failed_node() -> None:
    """With avoid_failed the pods of the next attempt have a node affinity that excludes the failed node."""
    expected = "{'key': 'kubernetes.io/hostname', 'operator': 'NotIn', 'values': ['gpu-3', 'gpu-7']}"
    assert expected in plan(avoid_failed=True, **{"pod.avoid": {"kubernetes.io/hostname": ["gpu-3"]}})


def test_next_attempt_may_use_the_failed_node_without_avoid_failed() -> None:
    """Without avoid_failed the next attempt may run where the last one failed."""
    assert "gpu-7" not in plan()


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([""], False),
        (["node-lost"], True),
        (["node-lost", "node-lost"], False),
        (["preempted"], True),
        (["preempted", "preempted", "preempted"], True),
        (["preempted", "preempted", "preempted", "preempted"], False),
        (["preempted", "preempted", "node-lost"], True),
        (["node-lost", "preempted", "node-lost"], False),
    ],
)
def test_lost_machines_are_not_counted_as_attempts(causes: list[str], expected: bool) -> None:
    """Two failures end a run of two attempts, however often it was preempted; the fourth preemption of three does."""
    profile = load_profile("yolov5-volcano", {"attempts": 2, "requeues": 3})
    assert may_try_again([attempt(number, cause) for number, cause in enumerate(causes, 1)], profile) is expected
