"""The report of a run, and its result, which is small enough to be passed to a caller on another machine."""

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from torchyard.common.escaping import shorten_text
from torchyard.diagnosis.checkpoints import select_resume_checkpoint
from torchyard.model.run import MAX_CHECKPOINTS, Attempt, End, Metrics, Report, Row, RowValue, RunEnd, RunResult, Step
from torchyard.run.folder import RunFolder

# Limits of one result, which callers get as JSON.
_MAX_VALUES = 100
_MAX_TEXT_CHARS = 1000


def build_report(
    folder: RunFolder,
    profile: str,
    end: RunEnd,
    *,
    started_at: float,
    steps: Sequence[Step],
    attempts: Sequence[Attempt],
) -> Report:
    """The report of a run that ends now, whoever ends it. Its secrets are not masked, its leftovers not known yet.

    profile: its name; "" if no journal has it.
    started_at: seconds since the epoch.
    """
    return Report(
        profile=profile,
        run=folder.name,
        end=end.end,
        sentence=end.sentence,
        seconds=time.time() - started_at,
        steps=tuple(steps),
        attempts=tuple(attempts),
        findings=end.findings,
        folder=str(folder.path),
    )


def build_result(report: Report) -> RunResult:
    """The result that callers get, built from the report."""
    metrics = report.collected.metrics if report.collected else Metrics()
    row: Row = dict(metrics.rows[-1]) if metrics.rows else {}
    row.update(metrics.summary)  # the summary of the whole run counts, as a later line of the program does
    return RunResult(
        profile=report.profile,
        run=report.run,
        end=report.end,
        sentence=report.sentence,
        seconds=round(report.seconds, 3),
        attempts=len(report.attempts),
        metrics={key: _shorten(value) for key, value in islice(row.items(), _MAX_VALUES)},
        warnings=tuple(shorten_text(warning, _MAX_TEXT_CHARS) for warning in _list_warnings(report)),
        checkpoints=_find_checkpoints(report),
        resume=_find_resume_path(report),
        report=f"{report.folder}/report.json",
    )


def describe_end(end: End, sentence: str, attempts: Sequence[Attempt]) -> str:
    """Why a run has ended, and what of its work is saved if it has not succeeded."""
    saved_work = attempts[-1].collected.saved_work if attempts else None
    if saved_work is None or end == "succeeded":
        return sentence
    return f"{sentence.removesuffix('.')}; {saved_work.sentence}"


def _list_warnings(report: Report) -> tuple[str, ...]:
    return report.collected.warnings if report.collected else ()


def _shorten(value: RowValue) -> RowValue:
    """Shorten a text to `_MAX_TEXT_CHARS`; numbers, booleans and None are returned as they are."""
    return shorten_text(value, _MAX_TEXT_CHARS) if isinstance(value, str) else value


def _find_checkpoints(report: Report) -> tuple[str, ...]:
    """The paths that the logs show, then those in the run's folder; of each at most the last `MAX_CHECKPOINTS`.

    Those that are known to be torn or removed are left out.
    """
    checkpoints = report.collected.checkpoints if report.collected else ()
    usable_paths = [checkpoint.path for checkpoint in checkpoints if checkpoint.state in ("complete", "unverified")]
    unusable_paths = {checkpoint.path for checkpoint in checkpoints} - set(usable_paths)
    # The checkpoints of an agent behind ssh are copied back to the attempt's folder.
    saved_paths = [
        *_list_newest_last(report.folder, "attempt-*/*/files/checkpoints/*"),
        *_list_newest_last(report.folder, "checkpoints/*"),
    ]
    paths = dict.fromkeys((*_keep_last(usable_paths), *_keep_last(saved_paths)))
    return tuple(path for path in paths if path not in unusable_paths)


def _find_resume_path(report: Report) -> str | None:
    """The checkpoint from which another run would continue, of all attempts; None if there is none."""
    checkpoint = select_resume_checkpoint(RunFolder(Path(report.folder)).checkpoints())
    return checkpoint.path if checkpoint else None


def _keep_last(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))[-MAX_CHECKPOINTS:]


def _list_newest_last(folder: str, pattern: str) -> list[str]:
    """The files and folders that match, without unfinished ones; a checkpoint may be either."""
    try:
        checkpoints = [(path.stat().st_mtime, str(path)) for path in Path(folder).glob(pattern)]
    except OSError:  # a user removes files at this moment
        return []
    return [path for _, path in sorted(checkpoints) if not path.endswith((".tmp", ".part"))]
