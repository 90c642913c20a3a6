"""What torchrun's agents report about their workers: which failed, which they stopped, and which ended with 0."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from torchyard.diagnosis.log_line_parts import LogLinePart, parse_lost_worker

# torchrun's own report on its workers, unchanged since torch 1.9
_GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]{1,2000})\]")
_REPORT_FIELD = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file|traceback|msg)\s{0,8}: ?(.{0,400})")
_REPORT_RANK = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_REPORT_EXIT_CODE = re.compile(r"(-?\d{1,5})(?: \(pid: (\d{1,9})\))?")
_ROOT_CAUSE = re.compile(r"Root Cause\b")
_OTHER_FAILURES = re.compile(r"Failures:\s*$")  # since torch 1.10 before the first one
CLOSING_MARKER = "closing signal"  # of a line by which an agent reports that it stops a worker
_CLOSING_SIGNAL = re.compile(r"Sending process (\d{1,9}) closing signal")
START_MARKER = "tarting worker"  # of a line by which an agent may report that it starts its workers
_WORKERS_STARTED = re.compile(r"\[\w{1,80}\] starting workers for entrypoint|\] Starting worker group")
_WORKERS_SUCCEEDED = re.compile(r"worker group successfully finished")
_SIGTERM_CODE = -15
_TIME_FORMAT = "%Y-%m-%d_%H:%M:%S"
_TIME_ZONE_STEP_S = 900  # every time zone differs from UTC by a multiple of it
_MAX_REPORT_DELAY_S = 60.0  # between a failure and the report about it


class WorkerReport(NamedTuple):
    """What torchrun reports of one failed worker.

    pid: 0 if the report does not contain it.
    failed_at: as torchrun prints it, in whole seconds of its own clock; it sorts as text. Empty if it is not known.
    exit_line: the line with the exit code.
    traceback: the lines that @record has added; empty if it is not used.
    is_first: torchrun names it as the one that failed first.
    """

    rank: int | None
    local_rank: int
    exit_code: int
    pid: int
    failed_at: str
    exit_line: LogLinePart
    traceback: list[LogLinePart]
    is_first: bool

    def get_failure_time(self) -> float:
        """When torchrun saw the failure, in seconds since the epoch; that of the report if it is not known."""
        reported_at = self.exit_line.timestamp
        try:
            local_time = datetime.strptime(self.failed_at, _TIME_FORMAT).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return reported_at
        time_zone_s = round((reported_at - local_time) / _TIME_ZONE_STEP_S) * _TIME_ZONE_STEP_S
        failed_at = local_time + time_zone_s
        return failed_at if 0 <= reported_at - failed_at <= _MAX_REPORT_DELAY_S else reported_at


class AgentReport(NamedTuple):
    """What one agent reports.

    workers: those that failed or were stopped.
    stopped_pids: the workers that were alive when the agent stopped them.
    started_at: when it started its workers for the last time; 0 if no line shows it.
    global_ranks: by local rank, as the last rendezvous assigned them; empty if no line shows it.
    success: the line that reports that all its workers ended with 0; None if there is none.
    is_complete: no worker is missing in `workers` but those that ended with 0.
    is_cut_off: the report ends before the first failure, so that `workers` are others.
    """

    workers: list[WorkerReport]
    stopped_pids: frozenset[int]
    started_at: float
    global_ranks: dict[int | None, int]
    success: LogLinePart | None
    is_complete: bool
    is_cut_off: bool

    def is_stopped(self, worker: WorkerReport) -> bool:
        """Whether the worker was alive when the agent stopped it, so that something else failed before it.

        A worker that ended by SIGTERM was stopped too, if the report does not name it as the first failure and the
        agent has not logged whom it stopped.
        """
        if worker.pid in self.stopped_pids:
            return True
        return worker.exit_code == _SIGTERM_CODE and not (worker.is_first or self.stopped_pids)


def read_agent_report(lines: Sequence[LogLinePart]) -> AgentReport:
    """What the agent whose lines these are reports; lines of its workers may be among them."""
    agent_lines = [line for line in lines if line.local_rank is None and line.text.strip()]
    global_ranks: dict[int | None, int] = {}
    stopped_pids: set[int] = set()
    started_at = 0.0
    success = None
    lost_lines: list[LogLinePart] = []
    for line in agent_lines:
        if _GLOBAL_RANKS.search(line.text):
            global_ranks = parse_global_ranks(line.text)
        elif (pid := parse_stopped_pid(line.text)) is not None:
            stopped_pids.add(pid)
        elif has_started_workers(line.text):
            started_at = line.timestamp
            lost_lines = []
        elif _WORKERS_SUCCEEDED.search(line.text):
            success = line
        elif parse_lost_worker(line.text):
            lost_lines.append(line)
    items = list(_parse_items(agent_lines))
    has_root_cause = any(item.is_first for item in items)
    workers = items if has_root_cause else _add_lost_workers(items, lost_lines, global_ranks)
    is_first_known = any(worker.is_first for worker in workers)
    reported_pids = {item.pid for item in items}
    return AgentReport(
        workers=workers,
        stopped_pids=frozenset(stopped_pids),
        started_at=started_at,
        global_ranks=global_ranks,
        success=success,
        is_complete=has_root_cause and stopped_pids <= reported_pids,
        is_cut_off=not is_first_known and any(_OTHER_FAILURES.match(line.text) for line in agent_lines),
    )


def has_started_workers(text: str) -> bool:
    """Whether an agent reports by this line that it starts its workers, for the first time or again."""
    return bool(_WORKERS_STARTED.search(text))


def parse_stopped_pid(text: str) -> int | None:
    """The worker that an agent reports to stop, by its process id; None for other lines."""
    match = _CLOSING_SIGNAL.search(text)
    return int(match[1]) if match else None


def parse_global_ranks(text: str) -> dict[int | None, int]:
    """The global ranks of a node by local rank, from the line by which its agent logs them; empty for other lines."""
    match = _GLOBAL_RANKS.search(text)
    return dict(enumerate(int(rank) for rank in re.findall(r"\d{1,6}", match[1]))) if match else {}


def _add_lost_workers(
    items: Iterable[WorkerReport], lost_lines: Iterable[LogLinePart], global_ranks: Mapping[int | None, int]
) -> list[WorkerReport]:
    """The items of a report whose end is cut off, with the first failure as the lines about lost workers name it."""
    workers = list(items)
    for line in lost_lines:
        lost = parse_lost_worker(line.text)
        if lost is None:
            continue
        rank = global_ranks.get(lost.local_rank)
        first = WorkerReport(rank, lost.local_rank, lost.exit_code, 0, "", line, [], is_first=True)
        for worker in workers:
            if worker.local_rank == lost.local_rank:
                first = worker._replace(is_first=True)
        workers = [first, *(worker for worker in workers if worker.local_rank != lost.local_rank)]
    return workers


def _parse_items(lines: Iterable[LogLinePart]) -> Iterator[WorkerReport]:
    """The items of `Failures:` and `Root Cause`; a traceback that @record wrote is indented by two.

    The traceback follows the exit code: its lines are added to the list of the report that was yielded last.
    """
    fields: dict[str, str] = {}
    traceback: list[LogLinePart] = []
    is_first = False
    for line in lines:
        is_first = is_first or bool(_ROOT_CAUSE.match(line.text.lstrip()))
        field = _REPORT_FIELD.match(line.text)
        if field is None:
            if not line.text.startswith("  "):
                fields = {}
            elif "traceback" in fields:
                traceback.append(line._replace(text=line.text[2:]))
            continue
        key = field[1]
        if key == "time":  # the first field of an item
            fields = {}
        fields[key] = field[2]
        if key == "exitcode":
            rank = _REPORT_RANK.match(fields.get("rank", ""))
            exit_code = _REPORT_EXIT_CODE.match(fields["exitcode"])
            if rank and exit_code:
                traceback = []
                yield WorkerReport(
                    rank=int(rank[1]),
                    local_rank=int(rank[2]),
                    exit_code=int(exit_code[1]),
                    pid=int(exit_code[2] or 0),
                    failed_at=fields.get("time", ""),
                    exit_line=line,
                    traceback=traceback,
                    is_first=is_first,
                )
        elif key in ("traceback", "msg"):
            traceback.append(line)
