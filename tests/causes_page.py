"""Writes docs/causes.md, the table of all causes, from the code: `python -m tests.causes_page`."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from tests.failure_logs import NAMES, SPELLINGS, load_log
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.event_rules import EVENT_RULES
from torchyard.diagnosis.log_patterns import (
    CAUSES,
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    RANK_HANGS,
    STORE_ENDED,
    UNKNOWN_CAUSE,
    Cause,
)
from torchyard.diagnosis.pod_reasons import REASONS, PodCause
from torchyard.diagnosis.root_cause import diagnose_failure

PAGE = ROOT / "docs" / "causes.md"
HEADER = """\
# Why a run failed

The report of a failed run names one cause: a slug that stays the same between versions, a sentence with a remedy, the
line that proves it, and whether another attempt may succeed. With `attempts` above 1, a new attempt starts only if the
cause is worth one. This page is generated from the code by `python -m tests.causes_page`.

A cause is named only if a line, a status or an event proves it. Warnings, and exceptions that the program caught, are
not proofs; without a proof the cause is `unknown`. If several processes failed, the first one counts, unless it only
lost a peer or waited for one: then the failure of the peer counts.

## From the logs
The line that proves the cause provides the values in braces.
"""
PODS_HEADER = """
## From the pods' status
`after` is the time that a pod must be in this state before the job is ended.
[Why a job makes no progress](kubernetes.md#why-a-job-makes-no-progress) lists the reasons that prevent a start, and the
time limits.
"""
EVENTS_HEADER = """
## From events
"""


def find_example(cause: Cause) -> str:
    """A line that shows a cause, posted somewhere or recorded; empty if there is none."""
    posted = (line for slug, line in SPELLINGS if slug == cause.slug and cause.pattern and cause.pattern.search(line))
    for line in posted:
        if line:
            return line
    for name in NAMES:
        logs, exit_codes, _ = load_log(name)
        failure = diagnose_failure(logs, exit_codes)
        if failure and failure.cause == cause.slug and failure.line:
            return failure.line
    return ""


def render_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    all_rows = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in all_rows) + "\n"


def format_code(text: str, max_length: int = 140) -> str:
    short = text if len(text) <= max_length else f"{text[:max_length]}..."
    return f"`{short.replace('`', chr(39))}`" if text else ""


def render() -> str:
    """The page."""
    rows = [
        (format_code(cause.slug), cause.description, format_code(find_example(cause)), "yes" if cause.retry else "no")
        for cause in (*CAUSES, PROGRAM_ERROR, PROGRAM_EXIT, RANK_HANGS, STORE_ENDED, UNKNOWN_CAUSE)
    ]
    causes = sorted(REASONS.items(), key=lambda item: item[1].slug)
    pods = []
    for cause, entries in groupby(causes, lambda item: item[1]):
        reasons = ", ".join(format_code(reason) for reason, _ in entries)
        pods.append((format_code(cause.slug), cause.description, reasons, describe_retry(cause)))
    events = [
        (
            format_code(rule.cause.slug),
            rule.cause.description,
            format_code(rule.reason_pattern)
            + (f" with {format_code(rule.message_pattern)}" if rule.message_pattern else ""),
            describe_retry(rule.cause),
        )
        for rule in EVENT_RULES
    ]
    return "".join(
        (
            HEADER,
            render_table(("cause", "sentence", "a line that shows it", "another attempt"), rows),
            PODS_HEADER,
            render_table(("cause", "sentence", "reason", "another attempt"), pods),
            EVENTS_HEADER,
            render_table(("cause", "sentence", "event", "another attempt"), events),
        )
    )


def describe_retry(cause: PodCause) -> str:
    """Whether another attempt may work, and for how long the cause is waited out."""
    is_worth = "yes" if cause.retry else "no"
    if cause.patience_s == math.inf:
        return f"{is_worth}; ends no job by itself"
    return f"{is_worth}; after {cause.patience_s:.0f} s" if cause.patience_s else is_worth


if __name__ == "__main__":
    PAGE.write_text(render())
