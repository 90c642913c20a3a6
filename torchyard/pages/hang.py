"""The part of a report that says which rank hangs, and which rank the others wait for."""

from collections.abc import Sequence

from torchyard.common.escaping import escape_markdown, escape_paragraph, format_markdown_table, single_line
from torchyard.common.ranks import format_ranks
from torchyard.diagnosis.hang.stragglers import describe_straggler
from torchyard.model.hang import Cluster, Hang, HangNews, Straggler
from torchyard.model.run import Outcome, Report
from torchyard.pages.text import select_ends

_MAX_CLUSTERS, _MAX_EVIDENCE = 12, 8  # of a page, at most
_MAX_TEXT_CHARS, _MAX_SENTENCE_CHARS = 240, 600  # characters, at most


def describe_hang(report: Report) -> list[tuple[str, str]]:
    """Rows of a terminal: the hang of the last attempt, what proves it, and a rank that the others wait for."""
    outcome = _get_last_outcome(report)
    hang, late = (outcome.hang, outcome.straggler) if outcome else (None, None)
    told = [("hang", single_line(hang.sentence, _MAX_SENTENCE_CHARS))] if hang else []
    told += [("", each) for each in _list_evidence(hang)]
    return [*told, *([("straggler", describe_straggler(late))] if late else [])]


def tabulate_clusters(report: Report) -> list[list[str]]:
    """Where the ranks of the last attempt's hang are, as a table with its head; empty if there was none."""
    outcome = _get_last_outcome(report)
    return tabulate_places(outcome.hang) if outcome and outcome.hang else []


def render_hang(report: Report) -> list[str]:
    """The section of a page; empty if no rank hung, and none was late."""
    outcome = _get_last_outcome(report)
    return _render_parts(outcome.hang, outcome.straggler) if outcome else []


def render_hang_page(job: str, news: HangNews) -> str:
    """The page of a job that runs: what hangs now, or that it goes on."""
    parts = _render_parts(news.hang, news.straggler)
    told = [] if news.hang else ["", "No rank hangs."]
    return "\n".join([f"# {escape_markdown(job)}", *told, *parts])


def _render_parts(hang: Hang | None, straggler: Straggler | None) -> list[str]:
    """What hangs, where all ranks are, what proves it, and who arrives last."""
    late = [escape_paragraph(describe_straggler(straggler)), ""] if straggler else []
    if hang is None:
        return ["", "## Straggler", *late] if late else []
    table = tabulate_places(hang)
    parts = ["", "## Hang", escape_paragraph(hang.sentence, _MAX_SENTENCE_CHARS), ""]
    parts += [*format_markdown_table(table[0], table[1:]), ""] if table else []
    return [*parts, *(f"- {escape_markdown(each)}" for each in _list_evidence(hang)), "", *late]


def tabulate_places(hang: Hang) -> list[list[str]]:
    """Where the ranks are, those that hang marked, as a table with its head; empty if nothing is known."""
    head = [["ranks", "place"]] if hang.clusters else []
    rows = [_describe_cluster(each, hang) for each in select_ends(hang.clusters, _MAX_CLUSTERS)]
    return [*head, *([single_line(cell, _MAX_TEXT_CHARS) for cell in row] for row in rows)]


def _describe_cluster(cluster: Cluster, hang: Hang) -> Sequence[str]:
    is_culprit = bool(cluster.ranks) and set(cluster.ranks) <= set(hang.ranks)
    return format_ranks(cluster.ranks) + (" (hangs)" if is_culprit else ""), cluster.place


def _list_evidence(hang: Hang | None) -> list[str]:
    return [single_line(each, _MAX_TEXT_CHARS) for each in select_ends(hang.evidence if hang else (), _MAX_EVIDENCE)]


def _get_last_outcome(report: Report) -> Outcome | None:
    return report.attempts[-1].outcome if report.attempts else None
