"""The project's pages: their headings, links and commands."""

import itertools
import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from torchyard.common.project_root import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "SKILL.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / name for name in ("CODE_OF_CONDUCT.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_SKIPPED = re.compile(r"<!-- not here: (.+?) -->")
_FILE = re.compile(r"<!-- file: (.+?) -->")
_SEPARATORS = ("&&", "||", "|", ";")


@dataclass(frozen=True)
class Block:
    """A fenced block of shell commands. `skip_reason`: why tests cannot run them, from the comment before the block."""

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
        unique_anchor = anchor
        for number in itertools.count(1):
            if unique_anchor not in anchors:
                break
            unique_anchor = f"{anchor}-{number}"
        anchors.add(unique_anchor)
    return anchors


def list_links(text: str) -> list[str]:
    """The targets of a page's links, without those in code."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))


def list_files(path: Path) -> dict[str, str]:
    """The files that the reader of a page must write, by the name in the comment before their block."""
    text = path.read_text()
    files = {}
    for match in _FENCE.finditer(text):
        preceding_line = text[: match.start()].rstrip().rpartition("\n")[2]
        file_match = _FILE.search(preceding_line)
        if file_match:
            files[file_match[1]] = textwrap.dedent(match[3])
    return files


def list_blocks(path: Path) -> list[Block]:
    """The page's blocks of shell commands and of output: those of sh or bash, or without a language."""
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
        elif commands[-1] or not re.match(r"[A-Z_]+=", token):
            commands[-1].append(token)
    without_redirections = [list(itertools.takewhile(_is_plain_argument, command)) for command in commands]
    return [command for command in without_redirections if command]


def _is_plain_argument(arg: str) -> bool:
    return not re.match(r"\d?>", arg)
