"""What torchrun's agents report about their workers."""

from tests.inputs.failure_logs import build_summary_entry, load_log
from torchyard.diagnosis.log_line_parts import parse_line
from torchyard.diagnosis.worker_reports import AgentReport, read_agent_report
from torchyard.model.run import LogLine

LOST = "E1121 api.py:1002] failed (exitcode: 3) local_rank: 1 (pid: 42) of binary: python"


def read(*texts: str) -> AgentReport:
    lines = [LogLine(float(index), "node-0", text) for index, text in enumerate(texts)]
    return read_agent_report([part for line in lines for part in parse_line(line)])


def test_root_cause_is_the_first_failure() -> None:
    """Only the item under Root Cause is torchrun's first failure, and the report then names all workers."""
    report = read(
        *build_summary_entry(0, 0, 1, 10), "Root Cause (first observed failure):", *build_summary_entry(1, 1, 3, 10)
    )
    assert [(worker.rank, worker.is_first) for worker in report.workers] == [(0, False), (1, True)]
    assert report.is_complete


def test_blank_lines_do_not_separate_a_report() -> None:
    """A viewer of logs may put a blank line after each: the report is read as without them."""
    texts = ["Root Cause (first observed failure):", *build_summary_entry(1, 1, 3, 10)]
    spaced = read(*[text for line in texts for text in (line, "")])
    assert [(worker.rank, worker.exit_code, worker.is_first) for worker in spaced.workers] == [(1, 3, True)]
    assert spaced.is_complete


def test_no_first_failure_is_invented_for_a_report_that_is_cut_off() -> None:
    """Without the root cause, the line about the lost worker names the first one, and else nothing does."""
    report = read(LOST, "Failures:", *build_summary_entry(4, 0, 1, 10), *build_summary_entry(6, 2, 1, 10))
    assert [(worker.rank, worker.local_rank, worker.is_first) for worker in report.workers if worker.is_first] == [
        (None, 1, True)
    ]
    assert not report.is_complete
    assert not any(worker.is_first for worker in read("Failures:", *build_summary_entry(4, 0, 1, 10)).workers)


def test_lost_worker_of_an_earlier_start_is_forgotten() -> None:
    """After a restart, a worker that was lost before is not a failure."""
    assert read(LOST, "I1121 api.py:715] [default] Starting worker group").workers == []


def test_worker_that_was_stopped_is_told_from_one_that_got_a_signal() -> None:
    """A worker that its agent has stopped did not fail; one that got SIGTERM from elsewhere did."""
    report = read(
        "W1121 api.py:1028] Sending process 41 closing signal SIGTERM",
        "Root Cause (first observed failure):",
        *[row.replace("pid: 42", "pid: 41") for row in build_summary_entry(0, 0, -15, 10)],
        *build_summary_entry(1, 1, -15, 10),
    )
    assert [report.is_stopped(worker) for worker in report.workers] == [True, False]
    alone = read(*build_summary_entry(0, 0, -15, 10))
    assert alone.is_stopped(alone.workers[0])


def test_failure_time_is_in_seconds_since_the_epoch() -> None:
    """torchrun's local time is converted by the time of the line that reports it."""
    logs, _, _ = load_log("program-exit-code")
    report = read_agent_report([part for line in logs["node-1"] for part in parse_line(line)])
    (first,) = (worker for worker in report.workers if worker.is_first)
    assert 0 <= first.exit_line.timestamp - first.get_failure_time() < 5
    assert first.rank == 3
    undated = first._replace(failed_at="")
    assert undated.get_failure_time() == first.exit_line.timestamp


def test_agent_whose_workers_ended_with_0_reports_it() -> None:
    """torchrun logs that its workers have finished while it waits for the other agents."""
    logs, _, _ = load_log("program-node-ends-early")
    report = read_agent_report([part for line in logs["node-1"] for part in parse_line(line)])
    assert report.success
    assert sorted(report.global_ranks.values()) == [2, 3]
