"""The text of a message about a run: what happened, and where to look."""

import platform
import shlex
from collections.abc import Sequence

from torchyard.common.escaping import shorten_text, single_line, strip_control_codes
from torchyard.common.project_root import runs_folder
from torchyard.common.text import format_duration
from torchyard.model.hang import Hang
from torchyard.model.observe import RunEvent
from torchyard.model.profile import Profile
from torchyard.model.run import BadLoss, End, Report
from torchyard.notify.delivery import Message, Tone

_MAX_SENTENCE_CHARS = 1000
_FAILED_ENDS: frozenset[End] = frozenset({"failed", "gave-up", "swept"})
# Those of the job itself: an end by a person is not a fact about the runs before and after it.
_JOB_ENDS = (*_FAILED_ENDS, "succeeded")
_TONES: dict[RunEvent, Tone] = {
    "failed": "failure",
    "regressed": "warning",
    "recovered": "success",
    "waiting": "warning",
    "hanging": "warning",
    "bad-loss": "warning",
    "succeeded": "success",
}


def list_end_events(report: Report, previous_ends: Sequence[str]) -> list[RunEvent]:
    """The events of a run's end, the most important first. `previous_ends`: of the profile's earlier runs."""
    events: list[RunEvent] = []
    if report.trend and report.trend.verdict == "worse":
        events.append("regressed")
    if report.end in _FAILED_ENDS:
        return [*events, "failed"]
    if report.end != "succeeded":
        return []
    if _explain_recovery(report, previous_ends) is not None:
        events.append("recovered")
    return [*events, "succeeded"]


def write_end_message(event: RunEvent, report: Report, previous_ends: Sequence[str], link: str) -> Message:
    """The message about an event at the end of a run. `link`: the address of the run's page; "" if it has none."""
    sentences = [report.sentence]
    if event == "regressed" and report.trend and report.trend.sentence not in report.sentence:
        sentences.append(report.trend.sentence)
    if event == "recovered":
        sentences.append(_explain_recovery(report, previous_ends) or "")
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    if failure:
        sentences.append(f"cause: {failure.cause}")
        hang = report.attempts[-1].outcome.hang
        if hang and hang.sentence not in report.sentence:
            sentences.append(single_line(hang.sentence))
    if report.leftovers:
        sentences.append(f"left behind: {len(report.leftovers)}, see the report")
    summary = f"{report.run}: {report.end} after {format_duration(report.seconds)}"
    return _write(report.profile, event, sentences, [summary, *_list_links(report.run, link)])


def write_waiting_message(profile: Profile, run: str, waited_s: float, reason: str, link: str) -> Message:
    """The message about a job that has waited for `waited_s` seconds, and the reason why it has not started."""
    sentences = [f"the job has waited {format_duration(waited_s)} to start", reason]
    return _write(profile.name, "waiting", sentences, [f"{run}: {profile.launcher}", *_list_links(run, link)])


def write_hang_message(profile: Profile, run: str, hang: Hang, link: str) -> Message:
    """The message about a rank that hangs, and torchyard's reaction to it."""
    actions = {"restart": "the attempt ends, and another one follows", "fail": "the run ends"}
    action = actions.get(profile.on_hang, "the job still runs: on_hang: report")
    links = [f"torchyard why {run}", *_list_links(run, link)]
    return _write(profile.name, "hanging", [single_line(hang.sentence), action], links)


def write_bad_loss_message(profile: Profile, run: str, bad_loss: BadLoss, link: str) -> Message:
    """The message about a loss that is nan or infinite, and torchyard's reaction to it."""
    action = "the run ends" if profile.on_nan == "fail" else "the job still runs: on_nan: report"
    return _write(profile.name, "bad-loss", [bad_loss.sentence, action], _list_links(run, link))


def _explain_recovery(report: Report, previous_ends: Sequence[str]) -> str | None:
    """Why the success of a run is a recovery; None if it is not. `previous_ends`: the oldest first."""
    reasons: list[str] = []
    if len(report.attempts) > 1:
        reasons.append(f"attempt {len(report.attempts)} succeeded")
    loss_count = sum(step.name == "resume" for step in report.steps)  # a step of each further launcher
    if loss_count == 1:
        reasons.append("the launcher was lost once")
    elif loss_count > 1:
        reasons.append(f"the launcher was lost {loss_count} times")
    job_ends = [end for end in previous_ends if end in _JOB_ENDS]
    if job_ends and job_ends[-1] != "succeeded":
        reasons.append("the run before it did not succeed")
    return "; ".join(reasons) if reasons else None


def _list_links(run: str, link: str) -> list[str]:
    """The run's page, if it has one, and the command that prints its log in any folder of the launcher's machine."""
    command = f"on {platform.node()}: TORCHYARD_RUNS={shlex.quote(str(runs_folder()))} torchyard logs {run}"
    return [link, command] if link else [command]


def _write(profile: str, event: RunEvent, sentences: Sequence[str], links: Sequence[str]) -> Message:
    lines = [shorten_text(sentence, _MAX_SENTENCE_CHARS) for sentence in sentences if sentence]
    body = "\n".join([*lines, "", *links])
    return Message(single_line(f"{profile}: {event}"), strip_control_codes(body), _TONES[event])
