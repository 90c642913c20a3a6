"""The animation in README.md: docs/pictures/demo.svg."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tools.demo_animation import COLUMNS, PICTURE, Piece, draw, play, wrap
from torchyard.common.project_root import ROOT

_TEXT = "{http://www.w3.org/2000/svg}text"


def _list_texts() -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.parse(PICTURE).iter(_TEXT)]


@pytest.mark.parametrize(
    "line",
    [
        "torchyard demo",
        r".* \| INFO    \| digits  digits-\w+  succeeded in .* s",
        "preflight .* 5 of 5 checks",
        r"collect .* 2 logs, \d+ lines, complete \(runs/digits-\w+/attempt-1\)",
        "torchyard demo --fail",
        r"\| fails  fails-\w+  failed in .* s",
        "cause .* file-missing, another attempt would not help",
        "proof .* FileNotFoundError: .* 'shard-1.bin'",
        "touch torchyard-demo/shard-1.bin .* the missing file",
    ],
)
def test_picture_shows_a_success_and_a_failure(line: str) -> None:
    """The lines of both reports are in the picture."""
    assert any(re.fullmatch(line, text) for text in _list_texts())


def test_picture_is_self_contained_and_names_no_machine() -> None:
    """The picture has no script, link or path of the machine that recorded it, and less than 200 kB."""
    text = PICTURE.read_text(encoding="utf-8")
    assert not re.search(r"<script|\bon\w+=|href|url\(|@import|<foreignObject", text)
    assert not re.search(r"(?<!\w)/(tmp|home|root|work|usr|var|opt)\b", text)
    assert len(text) < 200_000
    assert "@keyframes" in text


def test_loop_is_short() -> None:
    """Two runs take at most twelve seconds, and no row is longer than the terminal is wide."""
    assert {float(seconds) <= 12 for seconds in re.findall(r"([\d.]+)s step-end", PICTURE.read_text())} == {True}
    assert max(map(len, _list_texts())) <= COLUMNS


def test_readme_shows_the_picture() -> None:
    assert f"({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_pauses_are_shortened_and_the_folder_is_left_out(tmp_path: Path) -> None:
    """A pause of a minute takes less than a second, and paths are relative to the folder."""
    lines, length = play({"torchyard demo": [(60.0, f"log {tmp_path}/runs/a\r\n")]}, tmp_path)
    assert [line.text for line in lines] == ["$ torchyard demo", "log runs/a"]
    assert length < 6
    assert "log runs/a<" in draw(lines, length)


def test_long_line_breaks_at_the_edge() -> None:
    assert wrap("x" * (COLUMNS + 1) + "\r\n\r\n") == [(Piece(0, "x" * COLUMNS),), (Piece(0, "x"),), ()]
    assert wrap("x" * COLUMNS + "\r\ny\r\n") == [(Piece(0, "x" * COLUMNS),), (Piece(0, "y"),)]


def test_colours_of_the_terminal_are_kept(tmp_path: Path) -> None:
    """A level has the colour that it has on the terminal, in its place in the row."""
    text = "12:00 | \x1b[33mWARNING\x1b[0m | rank 0\r\n"
    assert wrap(text) == [(Piece(0, "12:00 | "), Piece(8, "WARNING", "warning"), Piece(15, " | rank 0"))]
    picture = draw(*play({"torchyard demo": [(0.1, text)]}, tmp_path))
    assert re.search(r'class="warning"[^>]*>WARNING</text>', picture)


def test_escape_codes_are_refused() -> None:
    """Output with other escape codes than colours raises ValueError, because the picture would be wrong."""
    with pytest.raises(ValueError, match="contains escape codes"):
        wrap("\x1b[2J")
