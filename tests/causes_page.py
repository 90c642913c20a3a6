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

The report of a failed run names one cause: a slug that stays the same between versions, a sentence with what to do, the
line that proves it, and whether another attempt may work. With `attempts` above 1, only a cause that is worth another
attempt gets one. This page is made from the code by `python -m tests.causes_page`.

A cause is named only where a line, a status or an event shows it. Warnings, and exceptions that the program caught,
prove nothing; where nothing is proven the cause is `unknown`. If several processes failed, the first one counts, unless
it only lost a peer or waited for one: then the failure of that peer does.

## From the logs
What is in braces comes from the line that proves the cause.
"""
PODS_HEADER = """
## From the pods' status
`after` is how long a pod has to be in this state before the job is ended for it. docs/kubernetes.md lists what keeps a
job from starting, and how long that is waited for.
"""
EVENTS_HEADER = """
## From events
"""


def find_example(cause: Cause) -> str:
    """A line that shows a cause: posted somewhere, or recorded."""
    posted = (line for slug, line in SPELLINGS if slug == cause.slug and cause.pattern and cause.pattern.search(line))
    recorded = (
        failure.line
        for name in NAMES
        if (failure := diagnose_failure(*load_log(name)[:2])) and failure.cause == cause.slug
    )
    return next((line for line in (*posted, *recorded) if line), "")


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
    pods = [
        (
            format_code(cause.slug),
            cause.description,
            ", ".join(format_code(name) for name, _ in entries),
            describe_retry(cause),
        )
        for cause, entries in ((cause, list(group)) for cause, group in groupby(causes, lambda item: item[1]))
    ]
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
            *(HEADER, render_table(("cause", "sentence", "a line that shows it", "another attempt"), rows)),
            *(PODS_HEADER, render_table(("cause", "sentence", "reason", "another attempt"), pods)),
            *(EVENTS_HEADER, render_table(("cause", "sentence", "event", "another attempt"), events)),
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
