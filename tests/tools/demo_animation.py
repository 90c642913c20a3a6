"""Records `torchyard demo` and `torchyard demo --fail` into docs/pictures/demo.svg: `make picture`.

The picture shows the terminal output of an installed package, with shorter pauses and without the path of the folder in
which the commands run. It contains no script, so it plays wherever an image is displayed.
"""

import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from torchyard.common.project_root import ROOT

PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
COMMANDS = ("torchyard demo", "torchyard demo --fail")
COLUMNS = 100
ROWS = 34
# In pixels, for a font of 14.
_CHARACTER_WIDTH = 8.4
_LINE_HEIGHT = 18
_MARGIN = 14
_KEY_S = 0.04  # between two typed keys
_MAX_PAUSE_S = 0.35  # longer pauses of a command are shortened to this
_READING_S = 2.5  # after a command's output
_END_S = 3.0  # before the animation repeats
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from torchyard.cli.console import main; main()"
_STYLE = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d4dae2;white-space:pre}
.typed{fill:#fff;font-weight:600}.prompt{fill:#7ee787}.warning{fill:#e3b341}.error{fill:#ff7b72}
"""
# The colours that the demo's output may have, as the classes of `_STYLE`.
_CLASSES = {"\x1b[0m": "printed", "\x1b[31m": "error", "\x1b[33m": "warning"}
_COLOUR_CODE = re.compile(f"({'|'.join(map(re.escape, _CLASSES))})")


class Piece(NamedTuple):
    """Characters of one row in one colour, which is a class of `_STYLE`; `column`: of the first one."""

    column: int
    text: str
    style: str = "printed"


@dataclass(frozen=True)
class Line:
    """A line of the screen. `is_typed`: a command, which appears key by key from `appears_at_s` on."""

    appears_at_s: float
    pieces: tuple[Piece, ...]
    is_typed: bool = False

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def record(command: str, package: Path, folder: Path) -> list[tuple[float, str]]:
    """The command's output in a pseudo terminal: each chunk with its seconds after the start.

    RuntimeError if the command fails.
    """
    started_at = time.monotonic()
    output = []
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execv(sys.executable, [sys.executable, "-P", "-c", _START, str(package), *command.split()[1:]])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    while text := _read(terminal):
        output.append((time.monotonic() - started_at, text))
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise RuntimeError(f"{command} ended with {code}:\n{''.join(text for _, text in output)}")
    return output


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError:  # Linux reports the end this way, once the last process has closed its side
        return ""


def wrap(text: str) -> list[tuple[Piece, ...]]:
    """The text as rows of the terminal, which breaks lines after `COLUMNS` characters.

    ValueError for escape codes other than the colours of `_CLASSES`.
    """
    if "\x1b" in _COLOUR_CODE.sub("", text):
        raise ValueError("the demo's output contains escape codes (cursor moves ...), which this picture cannot show")
    rows: list[list[Piece]] = [[]]
    column = 0
    style = "printed"
    for part in _COLOUR_CODE.split(text.replace("\r", "").removesuffix("\n")):
        if part in _CLASSES:
            style = _CLASSES[part]
            continue
        for index, line in enumerate(part.split("\n")):
            if index > 0:
                rows.append([])
                column = 0
            remaining = line
            while remaining:
                if column == COLUMNS:
                    rows.append([])
                    column = 0
                piece = Piece(column, remaining[: COLUMNS - column], style)
                rows[-1].append(piece)
                column += len(piece.text)
                remaining = remaining[len(piece.text) :]
    return [tuple(row) for row in rows]


def play(recordings: dict[str, list[tuple[float, str]]], folder: Path) -> tuple[list[Line], float]:
    """Every line with the time at which it appears, and the length of the animation in seconds."""
    lines = []
    now = 0.4
    for command, output in recordings.items():
        lines.append(Line(now, (Piece(0, "$ ", "prompt"), Piece(2, command, "typed")), is_typed=True))
        now += len(command) * _KEY_S
        last_output_s = 0.0
        for output_s, text in output:
            now += min(output_s - last_output_s, _MAX_PAUSE_S)
            last_output_s = output_s
            if text.strip():
                lines += [Line(now, row) for row in wrap(text.replace(f"{folder}/", ""))]
        now += _READING_S
    return lines, now - _READING_S + _END_S


def draw(lines: list[Line], length: float) -> str:
    """The picture as SVG. A viewer without animation shows the last rows."""
    width = 2 * _MARGIN + COLUMNS * _CHARACTER_WIDTH
    height = 2 * _MARGIN + ROWS * _LINE_HEIGHT
    steps = {0.0: {"transform": "translateY(0)"}}
    shapes: list[str] = []
    frames: list[str] = []
    moments = sorted({line.appears_at_s for line in lines})
    for moment in moments:
        number = len(frames)
        frames.append(_keyframes(f"m{number}", length, {0.0: {"opacity": "0"}, moment: {"opacity": "1"}}))
        shapes += [_draw_line(row, line, f"m{number}") for row, line in enumerate(lines) if line.appears_at_s == moment]
        hidden_rows = max(sum(line.appears_at_s <= moment for line in lines) - ROWS, 0)
        steps[moment] = {"transform": f"translateY({-hidden_rows * _LINE_HEIGHT}px)"}
    for row, line in enumerate(lines):
        if line.is_typed:
            keys = len(line.text) - 2
            cover_moves = {line.appears_at_s + key * _KEY_S: _move(key * _CHARACTER_WIDTH) for key in range(keys + 1)}
            frames.append(_keyframes(f"t{row}", length, {0.0: _move(0)} | cover_moves))
            shapes.append(_draw_cover(row, keys, f"t{row}"))
    frames.append(_keyframes("scroll", length, steps))
    names = [frame.split("{", 1)[0].removeprefix("@keyframes ") for frame in frames]
    rules = "\n".join(f".{name}{{animation:{name} {length:.2f}s step-end infinite}}" for name in names)
    end = steps[moments[-1]]["transform"]
    label = "A terminal: torchyard demo trains and shows its report; torchyard demo --fail shows why a run failed"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" aria-label="{label}">\n'
        f"<style>{_STYLE}{rules}\n" + "\n".join(frames) + "\n.scroll{transform:" + end + "}\n"
        "@media (prefers-reduced-motion:reduce){*{animation:none!important}}</style>\n"
        f'<rect width="{width:g}" height="{height}" rx="8" fill="#0d1117"/>\n'
        f'<svg y="{_MARGIN}" width="{width:g}" height="{ROWS * _LINE_HEIGHT}"><g class="scroll">\n'
        + "\n".join(shapes)
        + "\n</g></svg>\n</svg>\n"
    )


def _move(pixels: float) -> dict[str, str]:
    return {"transform": f"translateX({pixels:.1f}px)"}


def _keyframes(name: str, length: float, values: dict[float, dict[str, str]]) -> str:
    """A CSS animation: each value applies from its time (in seconds) until the next one, the last until `length`."""
    keyframes = values | {length: values[max(values)]}
    rules = []
    for start_s, style in keyframes.items():
        declarations = ";".join(f"{css_property}:{css_value}" for css_property, css_value in style.items())
        rules.append(f"{start_s / length:.3%}{{{declarations}}}")
    return f"@keyframes {name}{{{''.join(rules)}}}"


def _draw_line(row: int, line: Line, name: str) -> str:
    """A row of the screen, stretched to its columns so that every font fits; empty for a blank line."""
    texts = "".join(_draw_piece(piece) for piece in line.pieces if piece.text.strip())
    if not texts:
        return ""
    return f'<g class="{name}" transform="translate(0 {row * _LINE_HEIGHT + 13})">{texts}</g>'


def _draw_piece(piece: Piece) -> str:
    stripped = piece.text.strip()
    left = _MARGIN + (piece.column + len(piece.text) - len(piece.text.lstrip())) * _CHARACTER_WIDTH
    return (
        f'<text x="{left:.1f}" textLength="{len(stripped) * _CHARACTER_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" '
        f'class="{piece.style}" xml:space="preserve">{escape(stripped, quote=False)}</text>'
    )


def _draw_cover(row: int, keys: int, name: str) -> str:
    """The rectangle that hides the keys that are not yet typed; it moves to the right key by key."""
    left = _MARGIN + 2 * _CHARACTER_WIDTH
    width = keys * _CHARACTER_WIDTH
    return (
        f'<rect class="{name}" x="{left:.1f}" y="{row * _LINE_HEIGHT}" width="{width:.1f}" height="{_LINE_HEIGHT}" '
        f'fill="#0d1117" '
        f'style="transform:translateX({width:.1f}px)"/>'
    )


def main() -> None:
    """Run both commands as a user of the installed package would, and write the picture."""
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary, "package")
        folder = Path(temporary, "folder").resolve()
        folder.mkdir()
        shutil.copytree(ROOT / "torchyard", package / "torchyard", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("profiles", "programs"):  # where a wheel has them: runs then lie in the current folder
            shutil.copytree(ROOT / name, package / "torchyard" / name)
        lines, length = play({command: record(command, package, folder) for command in COMMANDS}, folder)
    PICTURE.write_text(draw(lines, length), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {len(lines)} lines, {length:.1f} s, {PICTURE.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
