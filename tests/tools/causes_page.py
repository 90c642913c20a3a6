"""Writes docs/causes.md, the table of all causes, from the code: `python -m tests.tools.causes_page`."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from tests.inputs.failure_logs import NAMES, SPELLINGS, load_log
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.model.causes.cause import Cause, LogRule, PodRule
from torchyard.model.causes.events import EVENT_RULES
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.memory import HOST_MEMORY_NOT_PINNED
from torchyard.model.causes.pods import MESSAGE_RULES, POD_RULES
from torchyard.model.causes.program import (
    PROGRAM_ERROR,
    PROGRAM_EXIT,
    PROGRAM_SILENT_EXIT,
    RANKS_ENDED_EARLY,
    UNKNOWN_CAUSE,
)
from torchyard.model.causes.registry import CAUSES, LOG_RULES
from torchyard.model.causes.rendezvous import STORE_ENDED, RendezvousCause

PAGE = ROOT / "docs" / "causes.md"
HEADER = """\
# Why a run failed

The report of a failed run names one cause: a slug that stays the same between versions, a sentence with a remedy, the
line that proves it, and whether another attempt may succeed. With `attempts` above 1, a new attempt starts only if the
cause is worth one. This page is generated from the code by `python -m tests.tools.causes_page`.

A cause is named only if a line, a status or an event proves it; without a proof the cause is `unknown`. A line proves a
cause only if something failed there. Warnings are not proofs, nor are lines and exceptions after which the process made
progress. A process that is told to end may make progress for five minutes, its grace period. A signal or a timeout is
its own cause: the report quotes another error of that process as `seen before it`. An exception of another thread, of a
task of asyncio or at exit is a cause only if the main thread has raised none.

A line that only follows from another one is not the cause: a kill after the scheduler's time limit or cancel, the
cancel of a step after a task failed, the end of the processes that a launcher stops after one has failed, an exception
about the end of another process whose kill is logged, and an error of CUDA where the kernel reports a fault of the GPU.
Of a general error of NCCL, the warning of NCCL is quoted.

If several processes failed, the first one counts, unless it only lost a peer or waited for one: then the failure of the
peer counts, also if the peer left without a traceback, or ended with 0 before the others.

## All causes
`avoid_failed` lets the next attempt avoid the node of a failure if its cause points at a node. Where a line, a status
or an event shows more than the cause, it decides about another attempt: the tables below list these cases.
"""
_OWN_CAUSES = {*LauncherCause, RendezvousCause.RENDEZVOUS_STORE}  # that torchyard detects, also without a log
LOGS_HEADER = """
## From the logs
The line that proves the cause provides the values in braces.
"""
PODS_HEADER = """
## From the pods' status
`after` is the time that a pod must be in this state before the job is ended.
[Why a job makes no progress](kubernetes.md#why-a-job-makes-no-progress) lists the reasons that prevent a start, and the
time limits.
"""
MESSAGES_HEADER = """
The message of some reasons shows more. The first pattern that is found in it decides:

"""
EVENTS_HEADER = """
## From events
"""


def find_example(rule: LogRule) -> str:
    """A line that shows a rule's cause, posted somewhere or recorded; empty if there is none."""
    posted = (line for slug, line in SPELLINGS if slug == rule.cause and rule.pattern and rule.pattern.search(line))
    for line in posted:
        if line:
            return line
    for name in NAMES:
        logs, exit_codes, _ = load_log(name)
        failure = diagnose_failure(logs, exit_codes)
        if failure and failure.cause is rule.cause and failure.line:
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
    causes = [
        (
            format_code(cause),
            format_flag(cause.retry),
            format_flag(cause.points_at_node),
            list_sources(cause),
            cause.advice,
        )
        for cause in CAUSES.values()
    ]
    logs = [
        (format_code(rule.cause), rule.description, format_code(find_example(rule)), format_flag(rule.retry))
        for rule in (
            *LOG_RULES,
            HOST_MEMORY_NOT_PINNED,
            PROGRAM_ERROR,
            PROGRAM_EXIT,
            PROGRAM_SILENT_EXIT,
            RANKS_ENDED_EARLY,
            STORE_ENDED,
            UNKNOWN_CAUSE,
        )
    ]
    pods = []
    for rule, entries in groupby(sorted(POD_RULES.items(), key=lambda item: item[1].cause), lambda item: item[1]):
        reasons = ", ".join(format_code(reason) for reason, _ in entries)
        pods.append((format_code(rule.cause), rule.description, reasons, describe_retry(rule)))
    messages = []
    for message_rules, items in groupby(MESSAGE_RULES.items(), lambda item: item[1]):
        reasons = ", ".join(format_code(reason) for reason, _ in items)
        for pattern, rule in message_rules:
            found = f"{reasons} with {format_code(pattern)}"
            messages.append((format_code(rule.cause), rule.description, found, describe_retry(rule)))
    events = []
    for event_rule in EVENT_RULES:
        pod_rule = event_rule.pod_rule
        event = format_code(event_rule.reason_pattern)
        if event_rule.message_pattern:
            event += f" with {format_code(event_rule.message_pattern)}"
        events.append((format_code(pod_rule.cause), pod_rule.description, event, describe_retry(pod_rule)))
    return "".join(
        (
            HEADER,
            render_table(("cause", "another attempt", "points at a node", "shown by", "advice"), causes),
            LOGS_HEADER,
            render_table(("cause", "sentence", "a line that shows it", "another attempt"), logs),
            PODS_HEADER,
            render_table(("cause", "sentence", "reason", "another attempt"), pods),
            MESSAGES_HEADER,
            render_table(("cause", "sentence", "reason and message", "another attempt"), messages),
            EVENTS_HEADER,
            render_table(("cause", "sentence", "event", "another attempt"), events),
        )
    )


def list_sources(cause: Cause) -> str:
    """Where a cause is found: `logs, pods`; `torchyard` if it detects the cause itself."""
    sources = []
    if any(rule.cause is cause for rule in (*LOG_RULES, PROGRAM_ERROR, RANKS_ENDED_EARLY, UNKNOWN_CAUSE)):
        sources.append("logs")
    message_rules = [rule for rules in MESSAGE_RULES.values() for _, rule in rules]
    if any(rule.cause is cause for rule in (*POD_RULES.values(), *message_rules)):
        sources.append("pods")
    if any(rule.pod_rule.cause is cause for rule in EVENT_RULES):
        sources.append("events")
    if not sources or cause in _OWN_CAUSES:
        sources.append("torchyard")
    return ", ".join(sources)


def format_flag(value: bool) -> str:
    return "yes" if value else "no"


def describe_retry(rule: PodRule) -> str:
    """Whether another attempt may work, and for how long the cause is waited out."""
    is_worth = format_flag(rule.retry)
    if rule.patience_s == math.inf:
        return f"{is_worth}; ends no job by itself"
    return f"{is_worth}; after {rule.patience_s:.0f} s" if rule.patience_s else is_worth


if __name__ == "__main__":
    PAGE.write_text(render())
