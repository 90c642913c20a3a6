"""The earlier processes of a run in its report, from the journal alone."""

from typing import Any

import pytest

from torchyard.run.history import describe_last_loss, find_start_time, list_past_steps
from torchyard.run.record import RunRecord

T0 = 1_800_000_000.0
HERE = {"pid": 7, "host": "here"}


def start(offset_s: float, entry: str = "fresh", **fields: Any) -> dict[str, Any]:
    return {"at": T0 + offset_s, "event": "start", "entry": entry} | HERE | fields


def step(offset_s: float, name: str) -> dict[str, Any]:
    return {"at": T0 + offset_s, "event": "step", "name": name, "pid": 7}


def did(offset_s: float, name: str, seconds: float = 1.0) -> dict[str, Any]:
    return {
        "at": T0 + offset_s,
        "event": "step-end",
        "name": name,
        "seconds": seconds,
        "detail": f"{name} is done",
        "pid": 7,
    }


LOST = [start(0), step(1, "preflight"), did(2, "preflight"), step(3, "wait")]
RUNNING = {"at": T0 + 5, "event": "running", "waited_s": 2.0, "pid": 7}
BACK = start(60, "attach", lost_at=T0 + 50, pid=8, host="there")


def name_steps(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """The name and the seconds of each step of earlier processes."""
    return [(step.name, step.seconds) for step in list_past_steps(RunRecord(events))]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([start(0)], []),
        (LOST, []),
        ([*LOST, BACK], [("preflight", 1.0), ("wait", 47.0), ("resume", 10.0)]),
        ([*LOST, RUNNING, BACK], [("preflight", 1.0), ("wait", 47.0), ("resume", 10.0)]),
        ([RUNNING, BACK], [("resume", 10.0)]),
        ([start(0), step(1, "submit"), did(2, "submit"), start(9)], []),
        ([start(0), step(1, "submit"), did(2, "submit"), start(9, "attach")], [("submit", 1.0), ("resume", 7.0)]),
        ([*LOST, {"at": T0 + 5, "event": "end", "end": "failed", "sentence": "no"}, start(9)], []),
        (
            [start(0), {"at": T0 + 5, "event": "end", "end": "gave-up", "sentence": "no"}, start(9, "attach")],
            [("gave-up", 4.0)],
        ),
        ([*LOST, start(2, "attach", lost_at=T0 + 1)], [("preflight", 1.0), ("wait", 0.0), ("resume", 0.0)]),
    ],
)
def test_steps_of_lost_processes_are_listed(events: list[dict[str, Any]], expected: list[tuple[str, float]]) -> None:
    """Finished steps are listed, an interrupted one lasts until its process was last alive, and the gap follows."""
    assert name_steps(events) == expected


def test_loss_names_processes_step_time_and_gap() -> None:
    """One sentence names the lost process, its step, the time, the process that took over, and the gap."""
    assert describe_last_loss(list_past_steps(RunRecord([*LOST, BACK]))) == (
        "the launcher (process 7 on here) was lost in wait at 2027-01-15 08:00:50 UTC; process 8 on there took over "
        "after 10 s"
    )


def test_loss_on_another_machine_names_its_host_and_folder() -> None:
    """For a launcher on another machine the Lease gives host, folder and last renewal, but no process id."""
    moved = start(0, "moved", holder="far:/runs/a", seen_at=T0 + 40)
    resumed = start(60, "attach", lost_at=0.0)
    loss = describe_last_loss(list_past_steps(RunRecord([moved, resumed]))) or ""
    assert "the launcher (far:/runs/a) was lost at 2027-01-15 08:00:40 UTC" in loss
    moved["handed_over"] = True
    loss = describe_last_loss(list_past_steps(RunRecord([moved, resumed]))) or ""
    assert "the launcher (far:/runs/a) handed the run over at 2027-01-15 08:00:40 UTC" in loss


def test_run_whose_last_process_ended_has_no_loss() -> None:
    """A run whose last process recorded its end has lost no launcher."""
    record = RunRecord([start(0), step(1, "submit"), did(2, "submit"), start(9)])
    assert describe_last_loss(list_past_steps(record)) is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [([], 99.0), (LOST, 0.0), ([*LOST, BACK], 0.0), ([*LOST, start(80)], 80.0), ([start(3, "moved"), BACK], 3.0)],
)
def test_run_lasts_from_its_first_start(events: list[dict[str, Any]], expected: float) -> None:
    """A resumed run counts from its first start; one that a user starts again counts from that start."""
    assert find_start_time(RunRecord(events), T0 + 99.0) == T0 + expected
