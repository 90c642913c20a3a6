"""Writes docs/causes.md, the table of all causes, from the code: `python -m tests.causes_page`."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from tests.failure_logs import NAMES, SPELLINGS, load
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
HEAD = """\
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
PODS = """
## From the pods' status
`after` is how long a pod has to be in this state before the job is ended for it. docs/kubernetes.md lists what keeps a
job from starting, and how long that is waited for.
"""
EVENTS = """
## From events
"""


def example(cause: Cause) -> str:
    """A line that shows a cause: posted somewhere, or recorded."""
    posted = (line for slug, line in SPELLINGS if slug == cause.slug and cause.pattern and cause.pattern.search(line))
    recorded = (
        found.line for name in NAMES if (found := diagnose_failure(*load(name)[:2])) and found.cause == cause.slug
    )
    return next((line for line in (*posted, *recorded) if line), "")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    every = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in every) + "\n"


def code(text: str, most: int = 140) -> str:
    short = text if len(text) <= most else f"{text[:most]}..."
    return f"`{short.replace('`', chr(39))}`" if text else ""


def render() -> str:
    """The page."""
    rows = [
        (code(cause.slug), cause.description, code(example(cause)), "yes" if cause.retry else "no")
        for cause in (*CAUSES, PROGRAM_ERROR, PROGRAM_EXIT, RANK_HANGS, STORE_ENDED, UNKNOWN_CAUSE)
    ]
    causes = sorted(REASONS.items(), key=lambda each: each[1].slug)
    pods = [
        (code(known.slug), known.description, ", ".join(code(name) for name, _ in same), describe_retry(known))
        for known, same in ((key, list(part)) for key, part in groupby(causes, lambda each: each[1]))
    ]
    events = [
        (
            code(rule.cause.slug),
            rule.cause.description,
            code(rule.reason_pattern) + (f" with {code(rule.message_pattern)}" if rule.message_pattern else ""),
            describe_retry(rule.cause),
        )
        for rule in EVENT_RULES
    ]
    return "".join(
        (
            *(HEAD, table(("cause", "sentence", "a line that shows it", "another attempt"), rows)),
            *(PODS, table(("cause", "sentence", "reason", "another attempt"), pods)),
            *(EVENTS, table(("cause", "sentence", "event", "another attempt"), events)),
        )
    )


def describe_retry(known: PodCause) -> str:
    """Whether another attempt may work, and for how long the cause is waited out."""
    worth = "yes" if known.retry else "no"
    if known.patience_s == math.inf:
        return f"{worth}; ends no job by itself"
    return f"{worth}; after {known.patience_s:.0f} s" if known.patience_s else worth


if __name__ == "__main__":
    PAGE.write_text(render())
