"""The project's pages: their headings, links and commands."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchyard.common.project_root import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_SKIPPED = re.compile(r"<!-- not here: (.+?) -->")
_FILE = re.compile(r"<!-- file: (.+?) -->")
_SEPARATORS = ("&&", "||", "|", ";")


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands. `elsewhere`: why they cannot run here, as a comment before the block says."""

    page: str
    number: int
    lines: tuple[str, ...]
    skip_reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; a second heading of one name has `-1`."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", _FENCE.sub("", text), re.MULTILINE):
        heading_text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", heading_text).strip().replace(" ", "-")
        anchors.add(next(candidate for candidate in _number_anchors(anchor) if candidate not in anchors))
    return anchors


def _number_anchors(anchor: str) -> Iterator[str]:
    yield anchor
    yield from (f"{anchor}-{number}" for number in range(1, 100))


def list_links(text: str) -> list[str]:
    """Where the links of a page lead, code left out."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))


def list_files(path: Path) -> dict[str, str]:
    """The files that a page asks its reader to write: a comment before the block names them."""
    text = path.read_text()
    files = {}
    for match in _FENCE.finditer(text):
        preceding_line = text[: match.start()].rstrip().rpartition("\n")[2]
        if file_match := _FILE.search(preceding_line):
            files[file_match[1]] = textwrap.dedent(match[3])
    return files


def list_blocks(path: Path) -> list[Block]:
    """The page's blocks without a language, or of sh: its commands, and examples of output."""
    text = path.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        if match[2] not in ("", "sh", "bash"):
            continue
        preceding_line = text[: match.start()].rstrip().rpartition("\n")[2]
        reason = _SKIPPED.search(preceding_line)
        lines = tuple(line.strip() for line in match[3].replace("\\\n", " ").splitlines() if line.strip())
        number = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(name_page(path), number, lines, reason[1] if reason else None))
    return blocks


def split_commands(line: str) -> list[list[str]]:
    """The commands of a line, without comments, redirections and variables before them."""
    tokens = shlex.split(line, comments=True)
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token in _SEPARATORS:
            commands.append([])
        elif not (not commands[-1] and re.match(r"[A-Z_]+=", token)):
            commands[-1].append(token)
    without_redirections = [
        command[: next((index for index, arg in enumerate(command) if re.match(r"\d?>", arg)), len(command))]
        for command in commands
    ]
    return [command for command in without_redirections if command]
