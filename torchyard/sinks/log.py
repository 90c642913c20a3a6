"""The log of a run: the newest values of its job as lines, and its report."""

import logging
import signal
from collections.abc import Sequence
from typing import TextIO

from torchyard.common.escaping import strip_control_codes
from torchyard.common.log import get_log
from torchyard.common.secrets import mask_text
from torchyard.common.text import format_ranks
from torchyard.model.event import AttemptStarted, RankFailed, ReportWritten, RowsRead, RunEvent, WaitEnded
from torchyard.pages.report import render_text
from torchyard.run.services import Sink
from torchyard.sinks.progress import OutputProgress, Progress, ProgressUpdate

_ENDS_WITHOUT_A_FAULT = ("succeeded", "cancelled", "stopped")
_MAX_RANK_RANGES = 8


class LogSink(Sink):
    """Writes to the run's log: the terminal, or the log of the flow run.

    `rank_zero_output`: gets each line that rank 0 prints, instead of the summaries in the log; without control codes if
    it is a terminal, and masked like the log.
    """

    purpose = "log the progress of the run"

    def __init__(self, rank_zero_output: TextIO | None = None) -> None:
        self._rank_zero_output = rank_zero_output
        self._progress = Progress()
        self._output_progress = OutputProgress()

    def take(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                self._progress = Progress()
                self._output_progress = OutputProgress()
            case RowsRead() if self._rank_zero_output:
                _print_lines(event.lines, self._rank_zero_output)
            case RowsRead():
                self._log(self._progress.add(event.rows))
                summary = self._output_progress.add(event)
                if summary:
                    get_log().info("%s", summary)
            case RankFailed():
                get_log().warning("%s", describe_failed_rank(event))
            case WaitEnded():
                self._log(self._progress.flush())
            case ReportWritten():
                level = logging.INFO if event.report.end in _ENDS_WITHOUT_A_FAULT else logging.ERROR
                get_log().log(level, "%s", render_text(event.report))
            case _:
                pass

    def _log(self, update: ProgressUpdate | None) -> None:
        if update:
            get_log().info("%s", update.line)


def _print_lines(lines: Sequence[str], output: TextIO) -> None:
    """Print lines at once. OSError if the output is closed."""
    if not lines:
        return
    text = mask_text("\n".join(lines))
    print(strip_control_codes(text) if output.isatty() else text, file=output, flush=True)


def describe_failed_rank(event: RankFailed) -> str:
    """`rank 1 on node-0 printed a traceback; ranks 2-3 print the same:`, and below it these lines."""
    subject = event.node
    if event.rank is not None:
        subject = f"rank {event.rank} on {event.node}"
    elif event.local_rank is not None:
        subject = f"local rank {event.local_rank} on {event.node}"
    clauses = [f"{subject} {_describe_end(event)}"]
    if event.same_ranks:
        noun = "rank" if len(event.same_ranks) == 1 else "ranks"
        verb = "prints" if len(event.same_ranks) == 1 else "print"
        clauses.append(f"{noun} {format_ranks(event.same_ranks, _MAX_RANK_RANGES)} {verb} the same")
    if event.lines and event.has_ended:
        clauses.append("its last lines")
    title = "; ".join(clauses)
    if not event.lines:
        return title
    return "\n".join([f"{title}:", *(f"  | {line}" for line in event.lines)])


def _describe_end(event: RankFailed) -> str:
    """`has ended with exit code 1`, `was ended by SIGKILL`, `has ended`, or `printed a traceback`."""
    if not event.has_ended:
        return "printed a traceback"
    if event.exit_code is None:
        return "has ended"
    try:
        return f"was ended by {signal.Signals(-event.exit_code).name}"
    except ValueError:
        return f"has ended with exit code {event.exit_code}"
