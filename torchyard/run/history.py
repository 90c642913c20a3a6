"""The history of a run, from its journal: when it started, the steps of earlier processes, and how they were lost."""

import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from torchyard.common.identity import get_user_name
from torchyard.common.text import format_duration
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Step
from torchyard.run.folder import RunFolder
from torchyard.run.folder_lease import read_renewal_time
from torchyard.run.record import JournalEvent, RunRecord, has_left


def build_start_fields(profile: Profile, folder: RunFolder) -> dict[str, Any]:
    """The fields of the `start` event: this process, when the previous one last renewed the lease, and the profile."""
    return {
        "host": socket.gethostname(),
        "user": get_user_name(),
        "folder": str(folder.path),
        "lost_at": read_renewal_time(folder),
        "profile": profile.name,
        "launcher": profile.launcher,
        "processes": None if profile.manifest else profile.processes,
        "gpus": _count_gpus(profile),
    }


def _count_gpus(profile: Profile) -> int | None:
    """The GPUs of all nodes; None for a manifest, whose pods request their own."""
    if profile.manifest:
        return None
    return profile.nodes.max * int(resolve(profile).resources.get("gpus", "0"))


def _select_current_launches(record: RunRecord) -> list[list[JournalEvent]]:
    """The processes since the last fresh start: a run can be started again after its end."""
    launches = record.launches
    fresh_starts = [index for index, launch in enumerate(launches) if launch[0].get("entry") == "fresh"]
    return launches[fresh_starts[-1] if fresh_starts else 0 :]


def find_start_time(record: RunRecord, now: float) -> float:
    """When the run's first process started it; `now` if the journal is empty."""
    launches = _select_current_launches(record)
    return float(launches[0][0]["at"]) if launches else now


def list_past_steps(record: RunRecord) -> list[Step]:
    """The steps of all launcher processes but the last one, and a step for each gap between two processes."""
    steps: list[Step] = []
    for process_events, next_process_events in pairwise(_select_current_launches(record)):
        steps += _list_process_steps(process_events, next_process_events[0])
    return steps


def _list_process_steps(process_events: Sequence[JournalEvent], next_start: JournalEvent) -> Iterator[Step]:
    """The steps of one process, and the gap until the next process took over."""
    for event in process_events:
        if event["event"] == "step-end":
            yield Step(name=event["name"], seconds=event["seconds"], detail=event["detail"])
    last_seen_at = _find_last_seen_time(process_events, next_start)
    last_event = _find_last_transition(process_events)
    if last_event["event"] == "end":
        yield Step(
            name=last_event["end"],
            seconds=_elapsed_seconds(last_seen_at, next_start["at"]),
            detail=last_event.get("sentence", ""),
        )
        return
    during_step = ""
    loss = "handed the run over" if _is_handed_over(process_events) else "was lost"
    if last_event["event"] == "step":
        during_step = f" in {last_event['name']}"
        elapsed_s = _elapsed_seconds(last_event["at"], last_seen_at)
        yield Step(name=last_event["name"], seconds=elapsed_s, detail="cut off: the launcher was lost")
    seen_text = datetime.fromtimestamp(last_seen_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    launcher = _describe_process(process_events[0])
    successor = _describe_process(next_start)
    detail = f"the launcher ({launcher}) {loss}{during_step} at {seen_text}; {successor} took over"
    yield Step(name="resume", seconds=_elapsed_seconds(last_seen_at, next_start["at"]), detail=detail)


def _find_last_transition(process_events: Sequence[JournalEvent]) -> JournalEvent:
    """The last event but `running`, which reports the job and not a step of the process."""
    for event in reversed(process_events):
        if event["event"] != "running":
            return event
    return process_events[-1]


def _is_handed_over(process_events: Sequence[JournalEvent]) -> bool:
    """Whether a process left the run to the next one on purpose, by its own journal or the run's Lease."""
    return bool(process_events[0].get("handed_over")) or has_left(process_events)


def describe_last_loss(steps: Sequence[Step]) -> str | None:
    """The last loss of a launcher in a sentence; None if the last process was not lost."""
    if not steps or steps[-1].name != "resume":
        return None
    loss = steps[-1]
    return f"{loss.detail} after {format_duration(loss.seconds)}"


def _find_last_seen_time(process_events: Sequence[JournalEvent], next_start: JournalEvent) -> float:
    """When a process was last alive: by its own journal, by the run's Lease, or by its last renewal of the lease."""
    return max(
        float(process_events[-1]["at"]),
        float(process_events[0].get("seen_at") or 0),
        float(next_start.get("lost_at") or 0),
    )


def _elapsed_seconds(start: float, end: float) -> float:
    """Seconds from `start` to `end`; never negative, because they may come from two clocks."""
    return max(end - start, 0.0)


def _describe_process(start: JournalEvent) -> str:
    """A process as shown to a user."""
    host = f" on {start['host']}" if start.get("host") else ""
    return str(start.get("holder") or f"process {start['pid']}{host}")
