"""The part of a report about a hang: which rank hangs, and which rank the others wait for."""

from collections.abc import Sequence

from torchyard.common.escaping import escape_markdown, escape_paragraph, format_markdown_table, single_line
from torchyard.common.ranks import format_ranks
from torchyard.common.text import select_ends
from torchyard.diagnosis.hang.stragglers import describe_straggler
from torchyard.model.hang import Hang, HangUpdate, RankGroup, Straggler
from torchyard.model.run import Outcome, Report

# The limits of a page.
_MAX_RANK_GROUPS = 12
_MAX_EVIDENCE = 8
_MAX_TEXT_CHARS = 240
_MAX_SENTENCE_CHARS = 600


def describe_hang(report: Report) -> list[tuple[str, str]]:
    """Labels and texts for the terminal: the hang of the last attempt, its evidence, and a rank that was late."""
    outcome = _get_last_outcome(report)
    if outcome is None:
        return []
    entries: list[tuple[str, str]] = []
    if outcome.hang:
        entries.append(("hang", single_line(outcome.hang.sentence, _MAX_SENTENCE_CHARS)))
        entries += [("", evidence) for evidence in _list_evidence(outcome.hang)]
    if outcome.straggler:
        entries.append(("straggler", describe_straggler(outcome.straggler)))
    return entries


def tabulate_rank_groups(report: Report) -> list[list[str]]:
    """The locations of the ranks in the last attempt's hang, as a table with its header; empty without a hang."""
    outcome = _get_last_outcome(report)
    return tabulate_locations(outcome.hang) if outcome and outcome.hang else []


def render_hang(report: Report) -> list[str]:
    """The section of a page; empty if no rank hung, and none was late."""
    outcome = _get_last_outcome(report)
    return _render_section(outcome.hang, outcome.straggler) if outcome else []


def render_hang_page(job: str, update: HangUpdate) -> str:
    """The page of a running job: the present hang, or that no rank hangs."""
    lines = [f"# {escape_markdown(job)}"]
    if not update.hang:
        lines += ["", "No rank hangs."]
    return "\n".join([*lines, *_render_section(update.hang, update.straggler)])


def _render_section(hang: Hang | None, straggler: Straggler | None) -> list[str]:
    """The hang, the locations of all ranks, the evidence, and the rank that arrives last."""
    straggler_lines = [escape_paragraph(describe_straggler(straggler)), ""] if straggler else []
    if hang is None:
        return ["", "## Straggler", *straggler_lines] if straggler_lines else []
    lines = ["", "## Hang", escape_paragraph(hang.sentence, _MAX_SENTENCE_CHARS), ""]
    table = tabulate_locations(hang)
    if table:
        lines += [*format_markdown_table(table[0], table[1:]), ""]
    lines += [f"- {escape_markdown(evidence)}" for evidence in _list_evidence(hang)]
    return [*lines, "", *straggler_lines]


def tabulate_locations(hang: Hang) -> list[list[str]]:
    """The locations of the ranks, those that hang marked, as a table with its header; empty if none is known."""
    if not hang.rank_groups:
        return []
    rows = [["ranks", "place"]]
    for group in select_ends(hang.rank_groups, _MAX_RANK_GROUPS):
        rows.append([single_line(cell, _MAX_TEXT_CHARS) for cell in _describe_rank_group(group, hang)])
    return rows


def _describe_rank_group(group: RankGroup, hang: Hang) -> Sequence[str]:
    ranks = format_ranks(group.ranks)
    if group.ranks and set(group.ranks) <= set(hang.ranks):
        ranks += " (hangs)"
    return ranks, group.location


def _list_evidence(hang: Hang) -> list[str]:
    return [single_line(evidence, _MAX_TEXT_CHARS) for evidence in select_ends(hang.evidence, _MAX_EVIDENCE)]


def _get_last_outcome(report: Report) -> Outcome | None:
    """The outcome of the last attempt; None before the first attempt has ended."""
    return report.attempts[-1].outcome if report.attempts else None
