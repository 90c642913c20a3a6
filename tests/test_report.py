"""A report says what a run was, whatever the run was: it is bounded, and nothing that it quotes is obeyed."""

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.common.escaping import (
    escape_markdown,
    escape_paragraph,
    format_code,
    format_code_block,
    shorten_text,
    strip_control_codes,
)
from torchyard.model.run import Attempt, Collected, Failure, LogFile, Metrics, Outcome, Report, Row, Status, Step
from torchyard.run.plot import _MAX_POINTS, _thin_points
from torchyard.run.report import _MAX_PAGE_BYTES, render_markdown, render_text

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m<img src=x onerror=alert(1)> [x](javascript:1) ``` | **a** \u202e\x00"
FORMS = [render_text, render_markdown]
Form = Callable[[Report], str]


def report(sentence: str = "it broke", rows: tuple[Row, ...] = (), attempts: int = 1, **found: object) -> Report:
    logs = found.get("logs", (LogFile(node="node-0", path="/runs/x/node-0/log", lines=1),))
    failure = Failure.model_validate({"cause": "program-error", "sentence": sentence, "tail": found.get("tail", ())})
    collected = Collected.model_validate({"logs": logs, "metrics": Metrics(rows=rows), "failure": failure})
    outcome = Outcome(status=Status(state="failed", reason=sentence), exits={})
    return Report(
        profile="x",
        run="x-1",
        end="failed",
        sentence=sentence,
        seconds=761,
        steps=(Step(name="wait", seconds=1, detail=sentence),) * 5 * attempts,
        attempts=tuple(Attempt(number=at, outcome=outcome, collected=collected) for at in range(1, attempts + 1)),
        left=tuple(f"{sentence} {at}" for at in range(2_000 if attempts > 1 else 1)),
        folder="/runs/x",
    )


def huge(letter: str, rows: int = 2_000) -> Report:
    """The most of everything, said with one letter."""
    long = letter * 5_000
    row: Row = {f"{letter * 40}{key}": long for key in range(30)} | {"loss": 0.1, "accuracy": 0.2, "rate": 0.3}
    made: tuple[Row, ...] = tuple(
        {"step": at, "loss": at % 7 / 7, "accuracy": at % 11, "rate": 1 / (at + 1)} for at in range(rows)
    )
    logs = tuple(
        LogFile(node=f"node-{at}", path=f"/{letter * 300}/{at}", lines=10**9, lost=long) for at in range(1_000)
    )
    return report(long, ({"step": 0, **row}, *made), attempts=20, logs=logs, tail=(long,) * 50)


@pytest.mark.parametrize("letter", ["|", "\U0001f600", "\n"])
def test_a_page_is_small_whatever_the_run_was(letter: str) -> None:
    """Wide and long tables, a thousand logs that lack something, twenty attempts, two thousand things left."""
    made = huge(letter)
    assert (
        len(render_markdown(made).encode()) <= _MAX_PAGE_BYTES,
        len(render_text(made).encode()) <= _MAX_PAGE_BYTES,
    ) == (True, True)


def test_the_page_of_a_long_run_has_its_picture_still() -> None:
    """100,000 rows are thinned, not left out."""
    rows: tuple[Row, ...] = tuple(
        {"step": at, "loss": at * 7919 % 10007, "rate": at * 104729 % 9973, "x": at * 31 % 8191}
        for at in range(100_000)
    )
    text = render_markdown(report(rows=(*rows, {"step": 100_000, "loss": 1.0, "rate": 0.2, "x": 1})))
    assert "data:image/svg+xml;base64," in text
    assert len(text) < _MAX_PAGE_BYTES


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3_000))
@settings(max_examples=30)
def test_a_thinned_curve_keeps_its_peaks_and_its_ends(values: list[float]) -> None:
    """The lowest and the highest of each stretch stay, in their order."""
    points = [(float(at), value) for at, value in enumerate(values)]
    kept = _thin_points(points)
    assert len(kept) <= _MAX_POINTS
    assert [kept[0], kept[-1]] == [points[0], points[-1]]
    assert (min(y for _, y in kept), max(y for _, y in kept)) == (min(values), max(values))
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    "value", [10**400, float("inf"), float("nan"), 1e308, "text", None, True, "$\\frac$", "$x$", "<b>"]
)
def test_no_value_or_name_of_a_metric_costs_the_page(value: float | str | None) -> None:
    """What cannot be drawn is left out of the picture."""
    key = value if isinstance(value, str) else "loss"
    rows: tuple[Row, ...] = ({"step": 1, key: 1.0, "x": 2}, {"step": 2, key: value, "x": 3})
    assert "data:image/svg+xml;base64," in render_markdown(report(rows=rows))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_is_quoted_reaches_a_terminal_as_more_than_text(form: Form) -> None:
    """Sentences, steps, log lines, what is left, names and values of metrics."""
    rows: tuple[Row, ...] = ({"step": 1, EVIL: 1, "b": EVIL}, {"step": 2, EVIL: 2, "b": 2})
    made = report(EVIL, rows, attempts=2, tail=(EVIL,), logs=(LogFile(node="n", path=EVIL, lines=1, lost=EVIL),))
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]|owned", form(made)) == []


def test_nothing_that_is_quoted_becomes_a_mark_of_the_page() -> None:
    """A page keeps its tables, its only picture and its fence; there is no tag and no link in it."""
    rows: tuple[Row, ...] = ({"step": 1, EVIL: 1, "b": EVIL}, {"step": 2, EVIL: 2, "b": 2})
    made = report(EVIL, rows, attempts=2, tail=("```", EVIL, "# big"), logs=(LogFile(node="n", path=EVIL, lines=1),))
    text = render_markdown(made)
    html = rendered(re.sub(r"base64,[\w+/=]+", "", text).replace("data:image/svg+xml;", "picture"))
    assert re.findall(r"<(?:a|b|strong|em|h2|script)\b", html) == []
    assert (html.count("<img"), html.count("<pre>"), html.count("<h1>")) == (1, 1, 1)
    cells = {row.count("<td>") for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)}
    assert cells <= {0, 1, 2, 3}


def rendered(text: str) -> str:
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


@pytest.mark.parametrize(
    "text",
    [
        *("# head", "- item", "1. one", "+ x", "> said", "===", "<b>x</b>", "&lt;b&gt;", "[a](b)", "![a](b)"),
        *("*a*", "_a_", "**a**", "`a`", "a|b", "<https://x.org>", "\\*a\\*", "    code", "~~a~~", "a_b_c"),
    ],
)
def test_a_quoted_line_is_shown_as_it_was_written(text: str) -> None:
    """In Markdown nothing of it is a mark, and nothing of it is lost."""
    import html

    assert html.unescape(rendered(escape_markdown(text))).strip() == f"<p>{text.strip()}</p>"


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_a_fence_shows_any_text(text: str) -> None:
    """It is longer than the longest run of backticks in it."""
    assert rendered("\n".join(format_code_block([text, "end"]))).count("<pre>") == 1


def test_code_holds_backticks_and_bars() -> None:
    """A path may have any letter."""
    assert rendered(format_code("a`b")) == "<p><code>a`b</code></p>\n"
    assert format_code("a|b") == "`a\\|b`"


def test_addresses_and_mentions_are_no_links() -> None:
    """GitHub's Markdown makes links of bare words."""
    assert escape_markdown("see https://x.org, www.x.org, a@x.org") == "see https\\://x.org, www\\.x.org, a\\@x.org"


def test_several_lines_stay_several_lines() -> None:
    """As in preflight's list of findings."""
    assert rendered(escape_paragraph("2 failed\n  # a: b")) == "<p>2 failed<br />\n# a: b</p>\n"


def test_a_terminal_gets_text_with_tabs_and_newlines_alone() -> None:
    """Colours, titles, links and half sequences go; words and other alphabets stay."""
    said = "a\tb\nc \x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1bc \x1b] \x9d0;t\x9c \u6f22 e\u0301"
    assert strip_control_codes(said) == "a\tb\nc red link    \u6f22 e\u0301"


def test_what_is_cut_keeps_both_ends() -> None:
    """The middle says least."""
    assert [shorten_text("abcdefghijkl", 11), shorten_text("abc", 11), shorten_text("abc", 0)] == [
        "abc ... jkl",
        "abc",
        "abc",
    ]


def test_a_sentence_of_many_lines_looks_like_no_other_row() -> None:
    """A program cannot write `succeeded` where the report says it."""
    assert "\n  succeeded" not in render_text(report("x\n  succeeded    all is well"))


def test_a_locale_without_letters_ends_nothing(tmp_path: Path) -> None:
    """What it cannot spell is printed as an escape, and files are UTF-8 all the same."""
    program = (
        "from pathlib import Path; import sys; from torchyard.common.escaping import spell_anything; spell_anything();"
        "from torchyard.run.folder import RunFolder; from tests.test_report import report;"
        "f = RunFolder(Path(sys.argv[1])); f.save_report(report('\\u6f22')); f.note('end', sentence='\\u6f22');"
        "assert f.report() == report('\\u6f22'); assert f.last('end')['sentence'] == '\\u6f22'; print('\\u6f22')"
    )
    env = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "run"], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\u6f22\n", b"")


def test_the_picture_is_svg_without_a_script() -> None:
    """The names in it are a program's."""
    rows: tuple[Row, ...] = ({"step": 1, "<script>": 1.0}, {"step": 2, "<script>": 2.0})
    found = re.search(r"base64,([\w+/=]+)", render_markdown(report(rows=rows)))
    assert found
    assert b"<script" not in base64.b64decode(found[1])
