"""The part of a report about a hang: which rank hangs, and which rank the others wait for."""

from collections.abc import Sequence

from torchyard.common import page
from torchyard.common.escaping import shorten_text, single_line
from torchyard.common.page import Block, Items, Page, Paragraph, Table
from torchyard.common.text import format_ranks, select_ends
from torchyard.diagnosis.hang.stragglers import describe_straggler
from torchyard.model.hang import Hang, HangUpdate, RankGroup, Straggler
from torchyard.model.run import Report

# The limits of a page.
_MAX_RANK_GROUPS = 12
_MAX_EVIDENCE = 8
_MAX_TEXT_CHARS = 240
_MAX_SENTENCE_CHARS = 600
NO_HANG_SENTENCE = "No rank hangs."


def build_hang_blocks(report: Report) -> list[Block]:
    """The section of a report; empty if no rank hung in the last attempt, and none was late."""
    outcome = report.attempts[-1].outcome if report.attempts else None
    return _build_section(outcome.hang, outcome.straggler) if outcome else []


def render_hang_page(job: str, update: HangUpdate) -> str:
    """The page of a running job: the present hang, or that no rank hangs."""
    blocks: list[Block] = [] if update.hang else [Paragraph(NO_HANG_SENTENCE)]
    return page.render_markdown(Page(job, [*blocks, *_build_section(update.hang, update.straggler)]))


def _build_section(hang: Hang | None, straggler: Straggler | None) -> list[Block]:
    """The hang, the evidence, the locations of all ranks, and the rank that arrives last."""
    blocks: list[Block] = []
    if hang:
        blocks.append(Paragraph(shorten_text(hang.sentence, _MAX_SENTENCE_CHARS), label="hang"))
        evidence = [single_line(text, _MAX_TEXT_CHARS) for text in select_ends(hang.evidence, _MAX_EVIDENCE)]
        if evidence:
            blocks.append(Items(evidence))
        locations = tabulate_locations(hang)
        if locations:
            blocks.append(Table(locations[0], locations[1:]))
    if straggler:
        blocks.append(Paragraph(describe_straggler(straggler), label="straggler"))
    return blocks


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
