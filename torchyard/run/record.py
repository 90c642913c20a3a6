"""What a run's journal says: the only interpretation of its events, for every module that asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from torchyard.model.checkpoint import StopRequest

JournalEvent = dict[str, Any]
_ENDS_WITH_A_JOB = ("gave-up", "moved")  # ends after which the job may run on: for a sweep, or for another machine


class JobRecord(NamedTuple):
    """The last job of a run, which may exist from its submit to the end of its teardown.

    submitting_since: when its submit began, in seconds since the epoch.
    is_submitted: its submit has finished.
    has_started: its processes or pods have run.
    is_removing: its teardown has begun: no process attaches to it any more.
    """

    submitting_since: float
    is_submitted: bool = False
    has_started: bool = False
    is_removing: bool = False


@dataclass(frozen=True)
class RunRecord:
    """A run as its journal describes it; each property is computed once.

    Example: `folder.read_record().end`
    """

    events: Sequence[JournalEvent]

    @cached_property
    def launches(self) -> list[list[JournalEvent]]:
        """The events of each process that has run the run, the first process first."""
        launches: list[list[JournalEvent]] = []
        for event in self.events:
            if event["event"] == "start" or not launches:
                launches.append([])
            launches[-1].append(event)
        return launches

    def find_last(self, kind: str) -> JournalEvent:
        """The last event of a kind; empty if there is none."""
        return find_last_event(self.events, kind)

    def find_stop(self, attempt: int) -> StopRequest | None:
        """The first request to stop the job of an attempt that was not withdrawn.

        None if there was none, or if it cannot be parsed.
        """
        request: JournalEvent = {}
        for event in self.events:
            if event.get("attempt") != attempt:
                continue
            if event["event"] == "stop-withdrawn":
                request = {}
            elif event["event"] == "stop":
                request = request or event
        try:
            return StopRequest.model_validate({name: request.get(name) for name in StopRequest.model_fields})
        except ValidationError:
            return None

    @property
    def last_start(self) -> JournalEvent:
        """The start of the last process; empty if there is none."""
        return self.find_last("start")

    def count_starts(self, entry: str | None = None) -> int:
        """How many processes have run the run, or have started in this way (see `choose_entry`)."""
        return sum(event["event"] == "start" and entry in (None, event.get("entry")) for event in self.events)

    @property
    def active_count(self) -> int:
        """The count (see RunControl) of the last process that did more than to report an end again; 0 if none did."""
        for event in reversed(self.events):
            if event["event"] == "start" and event.get("entry") != "echo":
                return int(event.get("count", 0))
        return 0

    @property
    def run_id(self) -> str:
        return str(self.last_start.get("run", ""))

    @property
    def flow_run_id(self) -> str:
        """The id of the flow run that contains the run; empty without an orchestrator."""
        return str(self.last_start.get("flow_run", ""))

    @property
    def end(self) -> str:
        """How the last process has ended the run; empty if it has recorded no end: it is alive, or it was lost."""
        return str(self.events[-1].get("end", "")) if self.events and self.events[-1]["event"] == "end" else ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run goes on here: it has ended and its job is removed, or another machine has it."""
        return self.end == "moved" or (bool(self.end) and self.job is None)

    @property
    def is_lost(self) -> bool:
        """Whether the last process has recorded no end: it was lost, unless it is still alive."""
        return bool(self.events) and not self.end

    @property
    def ending(self) -> JournalEvent:
        """The end that the last process was coming to; empty if it had not begun to end the run.

        A run that was started again has not the ending of an earlier process.
        """
        return find_last_event(self.launches[-1], "ending") if self.launches else {}

    @property
    def submitted_at(self) -> float | None:
        """When the job that may still run was submitted; None if the submit did not finish, or the job is over."""
        if self.job is None or self.job.is_removing or not self.job.is_submitted:
            return None
        return self.job.submitting_since

    @cached_property
    def job(self) -> JobRecord | None:
        """The job that may still exist; None if none can."""
        job: JobRecord | None = None
        for event in self.events:
            if _is_job_gone(event):
                job = None
            elif _is_step(event, "submit") and (job is None or job.is_removing):
                job = JobRecord(submitting_since=float(event["at"]))
            elif job is None:
                continue
            elif _is_step(event, "wait"):
                job = job._replace(is_submitted=True)
            elif event["event"] == "running":
                job = job._replace(has_started=True)
            elif _is_step(event, "teardown"):
                job = job._replace(is_removing=True)
        return job

    @cached_property
    def has_possible_job(self) -> bool:
        """Whether an earlier process, or one on another machine, may have left a running job."""
        may_have_job = has_submitted = False
        for event in self.events:
            if _is_job_gone(event) or _is_step(event, "teardown"):
                may_have_job = has_submitted = False
            elif event["event"] == "start":
                may_have_job = may_have_job or has_submitted or event.get("entry") == "moved"
            has_submitted = has_submitted or _is_step(event, "submit")
        return may_have_job


def find_last_event(events: Sequence[JournalEvent], kind: str) -> JournalEvent:
    """The last event of a kind; empty if there is none."""
    for event in reversed(events):
        if event["event"] == kind:
            return event
    return {}


def has_left(process_events: Sequence[JournalEvent]) -> bool:
    """Whether a process left the run to the next one on purpose, because of its own problem or of a hand-over."""
    return bool(find_last_event(process_events, "left"))


def _is_step(event: JournalEvent, name: str) -> bool:
    return event["event"] == "step" and event.get("name") == name


def _is_job_gone(event: JournalEvent) -> bool:
    """Whether no job exists after this event: its teardown is done, or the run has ended, which includes one."""
    is_removed = event["event"] == "step-end" and event.get("name") == "teardown"
    return is_removed or (event["event"] == "end" and event.get("end") not in _ENDS_WITH_A_JOB)
