"""Puts runs together: the pipeline with its sinks, its archive and the comparison with earlier runs.

The only module that chooses what implements the interfaces of torchyard/run/services.py.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from torchyard.archive.contents import RECORD
from torchyard.archive.copier import open_run_archive
from torchyard.common.local_errors import LocalErrorGuard
from torchyard.common.private_files import write_private_text
from torchyard.model.event import AttemptStarted, RunEvent
from torchyard.model.profile import Profile
from torchyard.model.run import Collected, End, Report, RunEnd
from torchyard.run.control import RunControl
from torchyard.run.folder import RunFolder
from torchyard.run.runner import Runner
from torchyard.run.services import Judgement, RunServices, Sink, Sinks
from torchyard.run.sweep import end_lost_run
from torchyard.sinks.log import LogSink
from torchyard.sinks.messages import MessageSink
from torchyard.sinks.metrics import MetricsSink
from torchyard.sinks.progress_file import ProgressFileSink
from torchyard.steps.step_functions import StepFunctions
from torchyard.trend.night import build_record, compare_run
from torchyard.trend.records import RunIdentity, history_path

LAUNCHER_LOST_END = RunEnd("swept", "the launcher died, and the profile says stop (on_launcher_lost)")
_PROFILE = "receivers.json"  # the profile of a run that has receivers, for a sweep: it has no other


def create_runner(
    profile: Profile,
    run_id: str,
    control: RunControl,
    steps: StepFunctions | None = None,
    other_sinks: Sequence[Sink] = (),
    rank_zero_output: TextIO | None = None,
) -> Runner:
    """A runner with everything that the profile and this machine's settings ask for.

    steps: of the orchestrator; None: plain functions.
    other_sinks: of the orchestrator, beside those of `list_sinks`.
    rank_zero_output: gets each line that rank 0 prints, instead of the summaries in the log.
    """
    sinks = (*list_sinks(profile, run_id, control.link, rank_zero_output), *other_sinks)
    services = RunServices(sinks, open_run_archive, judge_run)
    return Runner(profile, run_id, control, services, steps)


def list_sinks(profile: Profile, run_id: str, link: str, rank_zero_output: TextIO | None = None) -> tuple[Sink, ...]:
    """The log, the file with the progress, and the receivers that the profile names.

    link: the run's address in the orchestrator; "" if none.
    rank_zero_output: as for LogSink.
    """
    folder = RunFolder.of(profile, run_id)
    return (LogSink(rank_zero_output), ProgressFileSink(folder), *_list_receivers(profile, run_id, folder, link))


def judge_run(profile: Profile, folder: Path, end: End, collected: Collected | None, started_at: float) -> Judgement:
    """Save the run's numbers, also into its folder for the archive, and compare them with those of earlier runs."""
    runs = folder.parent
    record = build_record(profile, RunIdentity(folder.name, round(started_at, 3)), end, collected)
    with contextlib.suppress(OSError):  # a full disk is reported when the report is written
        write_private_text(folder / RECORD, record.model_dump_json(exclude_defaults=True) + "\n")
    return Judgement(compare_run(runs, record), str(history_path(runs, record.key)))


def sweep_run(
    folder: RunFolder,
    ended_by: str,
    default_end: RunEnd,
    on_end: Callable[[str, End, str], object] | None = None,
    *,
    only_expired: bool = False,
    is_end_reported: bool = False,
) -> tuple[str, ...] | None:
    """Tear down everything of a run without a launcher, and report its end to the run's receivers and to `on_end`.

    default_end: that of a run whose launcher has recorded none.
    is_end_reported: another machine has ended the run, and has reported that: nothing is sent.

    Returns the leftovers; None if a living process owns the run, or its lease has not ended (see run/sweep.py).
    """

    def report_end(run_id: str, report: Report) -> None:
        if is_end_reported:
            return
        if on_end:
            on_end(run_id, report.end, report.sentence)
        _send_swept_end(folder, run_id, report)

    return end_lost_run(folder, ended_by, default_end, open_run_archive, report_end, only_expired=only_expired)


class _ProfileSink(Sink):
    """Saves the profile of a run that has receivers, for a sweep that ends it."""

    purpose = "save the profile for messages about the run's end"

    def __init__(self, profile: Profile, folder: RunFolder) -> None:
        self._profile = profile
        self._path = folder.path / _PROFILE

    def take(self, event: RunEvent) -> None:
        if isinstance(event, AttemptStarted):
            write_private_text(self._path, self._profile.model_dump_json(exclude_unset=True))


def _list_receivers(profile: Profile, run_id: str, folder: RunFolder, link: str) -> list[Sink]:
    receivers: list[Sink] = []
    if profile.notify:
        receivers.append(MessageSink(profile, profile.notify, folder, link))
    if profile.metrics_to:
        receivers.append(MetricsSink(profile, run_id, folder, link))
    if receivers:
        receivers.append(_ProfileSink(profile, folder))
    return receivers


def _send_swept_end(folder: RunFolder, run_id: str, report: Report) -> None:
    """Send the end of a run that a sweep has ended. Nothing is raised.

    Nothing is sent if the run's folder has no profile, because then the run had no receivers.
    """
    no_profile = contextlib.suppress(FileNotFoundError)
    with LocalErrorGuard().tolerate(f"send the end of {folder.name}", ignore_errors=True), no_profile:
        profile = Profile.model_validate_json((folder.path / _PROFILE).read_bytes())
        sinks = Sinks(_list_receivers(profile, run_id, folder, ""))
        sinks.emit(AttemptStarted(len(folder.attempts()), ""))
        sinks.end(report)


def main(argv: Sequence[str]) -> int:
    """`keep FOLDER` and `stop FOLDER`: what a watchdog does about a run whose process has died.

    With `keep` the job keeps running until its lease expires, and a user can attach to it.
    """
    verb, folder = argv
    if verb == "stop":
        sweep_run(RunFolder(Path(folder)), "guard", LAUNCHER_LOST_END)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
