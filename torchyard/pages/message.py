"""The text of a message about a run: what happened, and where to look."""

from collections.abc import Sequence

from torchyard.common.escaping import shorten_text, single_line, strip_control_codes
from torchyard.model.hang import Hang
from torchyard.model.observe import RunEvent
from torchyard.model.profile import Profile
from torchyard.model.run import End, Report
from torchyard.notify.delivery import Message, Tone
from torchyard.pages.text import format_duration

_MAX_SENTENCE_CHARS = 1000
_BAD_ENDS: frozenset[End] = frozenset({"failed", "gave-up", "swept"})
# What a person has ended says nothing about the nights before and after it.
_JUDGED_ENDS = (*_BAD_ENDS, "succeeded")
_TONES: dict[RunEvent, Tone] = {
    "failed": "failure",
    "regressed": "warning",
    "recovered": "success",
    "waiting": "warning",
    "hanging": "warning",
    "succeeded": "success",
}


def list_end_events(report: Report, ends_before: Sequence[str]) -> list[RunEvent]:
    """What the end of a run is, the most important first. `ends_before`: how the profile's earlier runs ended."""
    found: list[RunEvent] = ["regressed"] if report.trend and report.trend.verdict == "worse" else []
    if report.end in _BAD_ENDS:
        return [*found, "failed"]
    if report.end != "succeeded":
        return []
    return [*found, "recovered", "succeeded"] if _explain_recovery(report, ends_before) else [*found, "succeeded"]


def write_end_message(event: RunEvent, report: Report, ends_before: Sequence[str], link: str) -> Message:
    """The text for an event at the end of a run."""
    said, trend = [report.sentence], report.trend
    if event == "regressed" and trend and trend.sentence not in report.sentence:
        said.append(trend.sentence)
    if event == "recovered":
        said.append(_explain_recovery(report, ends_before))
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    said += [f"cause: {failure.cause}"] if failure else []
    hang = report.attempts[-1].outcome.hang if failure else None
    said += [single_line(hang.sentence)] if hang and hang.sentence not in report.sentence else []
    said += [f"left behind: {len(report.left)}, see the report"] if report.left else []
    after = f"{report.run}: {report.end} after {format_duration(report.seconds)}"
    return _write(report.profile, event, said, [after, *_list_places(report.run, link)])


def write_waiting_message(profile: Profile, run: str, waited: tuple[float, str], link: str) -> Message:
    """The text for a job that has waited for so many seconds, and why."""
    seconds, why = waited
    said = [f"the job has waited {format_duration(seconds)} to start", why]
    return _write(profile.name, "waiting", said, [f"{run}: {profile.launcher}", *_list_places(run, link)])


def write_hang_message(profile: Profile, run: str, hang: Hang, link: str) -> Message:
    """The text for a rank that hangs, and what follows from it."""
    then = {"restart": "the attempt ends, and another one follows", "fail": "the run ends"}
    said = [single_line(hang.sentence), then.get(profile.on_hang, "the job still runs: on_hang: report")]
    return _write(profile.name, "hanging", said, [f"torchyard why {run}", *_list_places(run, link)])


def _explain_recovery(report: Report, ends_before: Sequence[str]) -> str:
    """Why a success is a recovery; empty if it is none."""
    lost = sum(step.name == "comeback" for step in report.steps)
    judged = [end for end in ends_before if end in _JUDGED_ENDS]
    said = [f"attempt {len(report.attempts)} succeeded"] if len(report.attempts) > 1 else []
    said += [f"the launcher was lost {lost} times" if lost > 1 else "the launcher was lost once"] if lost else []
    said += ["the run before it did not succeed"] if judged and judged[-1] != "succeeded" else []
    return "; ".join(said)


def _list_places(run: str, link: str) -> list[str]:
    return [*([link] if link else []), f"torchyard logs {run}"]


def _write(profile: str, event: RunEvent, said: Sequence[str], places: Sequence[str]) -> Message:
    lines = [*(shorten_text(each, _MAX_SENTENCE_CHARS) for each in said if each), "", *places]
    return Message(single_line(f"{profile}: {event}"), strip_control_codes("\n".join(lines)), _TONES[event])
