"""What each step of a run has done, as one line of the report."""

from collections.abc import Sequence
from pathlib import Path

from torchyard.common.escaping import shorten_text
from torchyard.common.text import MAX_SENTENCE_CHARS, format_duration
from torchyard.metrics.registry import describe_row
from torchyard.model.plan import CommandPlan
from torchyard.model.run import Attempt, Handle, Outcome


def describe_logs(attempt: Attempt) -> str:
    """`2 logs, 1,204 lines, complete (FOLDER)`."""
    logs = attempt.collected.logs
    completeness = "incomplete" if any(log.lost for log in logs) else "complete"
    line_count = sum(log.lines for log in logs)
    noun = "log" if len(logs) == 1 else "logs"
    return f"{len(logs)} {noun}, {line_count:,} lines, {completeness} ({Path(logs[0].path).parent.parent})"


def describe_success(attempt: Attempt) -> str:
    """`2 of 2 agents ended with 0; epoch 10: accuracy 0.9861`."""
    sentences = [attempt.outcome.status.reason]
    sentences += [describe_row(row) for row in attempt.collected.metrics.rows[-1:]]
    return shorten_text("; ".join(sentences), MAX_SENTENCE_CHARS)


def describe_submission(handle: Handle) -> str:
    """`yolov5-volcano-a1b2c3d4-1, 2 pods, adopted`."""
    noun = "agents" if isinstance(handle.plan, CommandPlan) else "pods"
    suffix = "" if handle.created else ", adopted"
    return f"{handle.plan.job}, {len(handle.plan.nodes)} {noun}{suffix}"


def describe_outcome(outcome: Outcome, handle: Handle) -> str:
    """How the job ended; for an adopted job also its total time, of which this wait saw only a part."""
    description = f"{outcome.status.state}: {outcome.status.reason}"
    if outcome.started_after is not None:
        description += f", program started {outcome.started_after:.1f} s after the submit"
    total_s = (outcome.ended_at or handle.submitted_at) - handle.submitted_at
    if total_s > 0 and not handle.created:
        description += f", ended {format_duration(total_s)} after its submit"
    return description


def describe_leftovers(leftovers: Sequence[str]) -> str:
    return ", ".join(leftovers) or "nothing left"
