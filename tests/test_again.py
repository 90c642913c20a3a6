"""What another attempt does otherwise, and how the report tells of it."""

import pytest

from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Attempt, Collected, Failure, Metrics, Outcome, Report, Run, Status
from torchyard.run.next_attempt import _list_failed_machines, avoid_failed_machines
from torchyard.run.report import render_markdown, render_text

RUN = Run(id="0190c7f0-0000-7000-8000-0000a1b2c3d4", attempt=2, folder="/runs/r")


def attempt(number: int, cause: str, machine: str = "gpu-7") -> Attempt:
    """An attempt that failed on worker-1; without a cause it succeeded."""
    failure = Failure(cause=cause, sentence="it broke", node="worker-1", retry=True) if cause else None
    status = Status(state="failed" if cause else "succeeded", reason="2 of 2 pods succeeded")
    machines = {"worker-0": "gpu-1", "worker-1": machine} if machine else {}
    outcome = Outcome(status=status, exits={}, machines=machines)
    return Attempt(number=number, outcome=outcome, collected=Collected(logs=(), metrics=Metrics(), failure=failure))


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
    """A node is kept off where the failure was its own: not where its place was taken, nor where it is not known."""
    assert _list_failed_machines([attempt(1, cause, machine)]) == kept_off


def plan(**overrides: object) -> str:
    """The job of the attempt after one that failed on gpu-7, as text."""
    profile = avoid_failed_machines(load_profile("yolov5-volcano", overrides), [attempt(1, "node-lost")])
    made = registry.load_launcher(profile.launcher).plan(profile, RUN)
    assert isinstance(made, ManifestPlan)
    return str(made.main)


def test_next_attempt_keeps_off_the_node_that_failed() -> None:
    """With avoid_failed the pods of the next attempt have an affinity against the node's host name."""
    wanted = "{'key': 'kubernetes.io/hostname', 'operator': 'NotIn', 'values': ['gpu-3', 'gpu-7']}"
    assert wanted in plan(avoid_failed=True, **{"pod.avoid": {"kubernetes.io/hostname": ["gpu-3"]}})


def test_next_attempt_may_meet_the_node_again() -> None:
    """Without avoid_failed the next attempt may run where the last one failed."""
    assert "gpu-7" not in plan()


def report(*attempts: Attempt) -> Report:
    return Report(
        profile="p", run="p-1", end="succeeded", sentence="done", seconds=1, steps=(), attempts=attempts, folder="/r"
    )


@pytest.mark.parametrize("form", [render_text, render_markdown])
def test_report_lists_the_attempts(form: object) -> None:
    """Each attempt has its cause and the machine it failed on; a single attempt needs no list."""
    said = form(report(attempt(1, "node-lost"), attempt(2, "")))  # type: ignore[operator]
    assert "node-lost: it broke (on gpu-7)" in said
    assert "attempt 2" in said
    assert "attempt 1" not in form(report(attempt(1, "")))  # type: ignore[operator]
