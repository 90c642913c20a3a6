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
_ELSEWHERE = re.compile(r"<!-- not here: (.+?) -->")
_FILE = re.compile(r"<!-- file: (.+?) -->")
_SHELL_WORDS = ("&&", "||", "|", ";")


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands. `elsewhere`: why they cannot run here, as a comment before the block says."""

    page: str
    number: int
    lines: tuple[str, ...]
    elsewhere: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; a second heading of one name has `-1`."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", _FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(next(each for each in _number(anchor) if each not in found))
    return found


def _number(anchor: str) -> Iterator[str]:
    yield anchor
    yield from (f"{anchor}-{number}" for number in range(1, 100))


def list_links(text: str) -> list[str]:
    """Where the links of a page lead, code left out."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))


def list_files(path: Path) -> dict[str, str]:
    """The files that a page asks its reader to write: a comment before the block names them."""
    text = path.read_text()
    found = {}
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        if named := _FILE.search(before):
            found[named[1]] = textwrap.dedent(match[3])
    return found


def list_blocks(path: Path) -> list[Block]:
    """The page's blocks without a language, or of sh: its commands, and examples of output."""
    text = path.read_text()
    found = []
    for match in _FENCE.finditer(text):
        if match[2] not in ("", "sh", "bash"):
            continue
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        reason = _ELSEWHERE.search(before)
        lines = tuple(line.strip() for line in match[3].replace("\\\n", " ").splitlines() if line.strip())
        number = text.count("\n", 0, match.start()) + 1
        found.append(Block(name_page(path), number, lines, reason[1] if reason else None))
    return found


def split_commands(line: str) -> list[list[str]]:
    """The commands of a line, without comments, redirections and variables before them."""
    words = shlex.split(line, comments=True)
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SHELL_WORDS:
            commands.append([])
        elif not (not commands[-1] and re.match(r"[A-Z_]+=", word)):
            commands[-1].append(word)
    cut = [
        each[: next((at for at, word in enumerate(each) if re.match(r"\d?>", word)), len(each))] for each in commands
    ]
    return [each for each in cut if each]
