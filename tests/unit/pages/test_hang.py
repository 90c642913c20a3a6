"""The part of a report about a hang: the rank that hangs, and the rank that the others wait for."""

import re
from typing import Any

import pytest

from tests.builders.hang_examples import HANG, STRAGGLER
from tests.builders.reports import short_report
from tests.support.markdown import render_html
from torchyard.common.page import Paragraph
from torchyard.diagnosis.hang.stragglers import describe_straggler
from torchyard.model.hang import HangUpdate, RankGroup
from torchyard.model.run import Report
from torchyard.pages.hang import build_hang_blocks, render_hang_page
from torchyard.pages.report import MAX_PAGE_BYTES, render_markdown, render_text

LATE = "rank 3 on node-1 arrives last: the others wait 22 % of their time for it (13 s a minute)"


def ended(**fields: Any) -> Report:
    """A run whose last attempt ended with a hang or a straggler."""
    report = short_report("failed")
    (attempt,) = report.attempts
    return report.model_copy(
        update={"attempts": (attempt.model_copy(update={"outcome": attempt.outcome.model_copy(update=fields)}),)}
    )


def test_terminal_shows_the_hang() -> None:
    """The report contains the sentence, the evidence and the locations of the ranks; the one that hangs is marked."""
    lines = render_text(ended(hang=HANG, straggler=STRAGGLER)).splitlines()
    index = lines.index(f"  hang         {HANG.sentence}")
    assert lines[index + 1 : index + 7] == [
        *[f"  - {evidence}" for evidence in HANG.evidence],
        "    ranks      place",
        "    0-1, 3     all_reduce (distributed.py:99)",
        "    2 (hangs)  read_shard (train.py:12)",
        f"  straggler    {LATE}",
    ]


def test_page_has_a_section_of_the_hang() -> None:
    """Sentence, table and evidence are in Prefect's page."""
    html = render_html(render_markdown(ended(hang=HANG, straggler=STRAGGLER)))
    for part in (HANG.sentence, "<td>2 (hangs)</td>", f"<li>{HANG.evidence[0]}</li>", LATE):
        assert part in html


def test_straggler_alone_is_one_line() -> None:
    """A run without a hang has a sentence about the late rank, and no table."""
    assert build_hang_blocks(ended(straggler=STRAGGLER)) == [Paragraph(LATE, label="straggler")]
    assert "straggler    " + LATE in render_text(ended(straggler=STRAGGLER))


def test_run_that_did_not_hang_has_no_section() -> None:
    """A report without a hang, or without an attempt, has no section about one."""
    assert (build_hang_blocks(ended()), build_hang_blocks(ended().model_copy(update={"attempts": ()}))) == ([], [])
    assert "hang" not in render_text(ended())


@pytest.mark.parametrize("form", [render_text, render_markdown])
def test_hang_of_any_size_is_shown_small_and_as_text(form: Any) -> None:
    """A thousand long locations, with control codes and markup, give a small page and are shown as text."""
    evil = "\x1b[2J<img src=x> | **a**\n# big" * 100
    rank_groups = tuple(RankGroup(ranks=tuple(range(start, 3000, 7)), location=evil) for start in range(1000))
    hang = HANG.model_copy(update={"sentence": evil, "rank_groups": rank_groups, "evidence": (evil,) * 100})
    text = form(ended(hang=hang))
    assert len(text.encode()) < MAX_PAGE_BYTES / 2
    assert not re.search(r"\x1b|\n# big", text)
    assert form is render_text or "<img src=x" not in render_html(text)


def test_straggler_without_a_delay_is_reported() -> None:
    """A window of 0 s is not an error."""
    assert describe_straggler(STRAGGLER.model_copy(update={"window_s": 0})).endswith("(0 s a minute)")


def test_page_of_a_running_job() -> None:
    """While a rank hangs, the page has the section of the report; afterwards it reports that no rank hangs."""
    html = render_html(render_hang_page("yolo", HangUpdate(hang=HANG)))
    for part in ("<h1>yolo</h1>", HANG.sentence, "<td>2 (hangs)</td>", f"<li>{HANG.evidence[0]}</li>"):
        assert part in html
    assert "No rank hangs." not in html
    assert "<p>No rank hangs.</p>" in render_html(render_hang_page("yolo", HangUpdate()))
