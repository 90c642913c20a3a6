"""The rules of a .gitignore, as git reads them (gitignore(5), and wildmatch.c of git).

A rule is tried on one file or folder and not on what is in it: the caller leaves out the content of ignored folders. So
`!keep/` adds the folder itself, and another rule may still ignore a file in it.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_NEVER = "(?!)"  # an expression that matches nothing: git ignores malformed rules
_POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_POSIX_CLASS = re.compile(r"\[:([^\]:]*):\]")


class IgnoreRule(NamedTuple):
    """One line of a .gitignore.

    is_ignored: False of a rule with `!`, which adds what an earlier one ignores.
    folders_only: it ends in `/`.
    is_base_name: it has no other `/`, and is tried on the last part of a path.
    pattern: an expression for the path relative to the folder of the .gitignore, or for its last part.
    """

    is_ignored: bool
    folders_only: bool
    is_base_name: bool
    pattern: re.Pattern[str]


def parse_rules(lines: Iterable[str]) -> list[IgnoreRule]:
    """The rules of a .gitignore. `lines`: without line ends."""
    rules: list[IgnoreRule] = []
    for line in lines:
        text = _strip_spaces(line)
        if text.startswith("#"):
            continue
        is_ignored = not text.startswith("!")
        text = text.removeprefix("!")
        folders_only = text.endswith("/")
        text = text.removesuffix("/")
        if text:
            pattern = re.compile(_translate_glob(text.removeprefix("/")), re.DOTALL)
            rules.append(IgnoreRule(is_ignored, folders_only, "/" not in text, pattern))
    return rules


def find_verdict(rules: Iterable[IgnoreRule], path: str, *, is_folder: bool) -> bool | None:
    """Whether the rules ignore a file or folder: the last one that matches decides. None if none matches.

    `path`: relative to the folder of the .gitignore, without `/` at its end. A link is a file.
    """
    base_name = path.rpartition("/")[2]
    verdict = None
    for rule in rules:
        if rule.folders_only and not is_folder:
            continue
        if rule.pattern.fullmatch(base_name if rule.is_base_name else path):
            verdict = rule.is_ignored
    return verdict


def _strip_spaces(line: str) -> str:
    """The line without the spaces at its end, except one behind a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    if backslashes % 2 and text != line:
        text += " "
    return text


def _translate_glob(glob: str) -> str:
    """The regular expression of a pattern."""
    pieces: list[str] = []
    position = 0
    while position < len(glob):
        piece = _translate_piece(glob, position)
        if piece is None:
            return _NEVER
        pieces.append(piece.pattern)
        position = piece.end
    return "".join(pieces)


class _Piece(NamedTuple):
    """The regular expression of a part of a pattern, and the offset behind that part."""

    pattern: str
    end: int


def _translate_piece(glob: str, start: int) -> _Piece | None:
    """The part of a pattern that begins at `start`; None if it is malformed."""
    match glob[start]:
        case "*":
            return _translate_stars(glob, start)
        case "?":
            return _Piece("[^/]", start + 1)
        case "[":
            return _translate_bracket(glob, start)
        case "\\" if start + 1 == len(glob):
            return None
        case _:
            char, end = _read_char(glob, start)
            return _Piece(re.escape(char), end)


def _translate_stars(glob: str, start: int) -> _Piece:
    """The stars that begin at `start`. Two or more as a whole part of a path match several parts."""
    end = start
    while glob[end : end + 1] == "*":
        end += 1
    is_whole_part = glob[:start][-1:] in ("", "/") and glob[end : end + 1] in ("", "/")
    if end - start == 1 or not is_whole_part:
        return _Piece("[^/]*", end)
    if end == len(glob):
        return _Piece(".*", end)
    return _Piece("(?:.*/)?", end + 1)  # no folder, or several


def _translate_bracket(glob: str, start: int) -> _Piece | None:
    """The brackets that begin at `start`, such as `[a-z]`; None if they are malformed."""
    position = start + 1
    is_negated = glob[position : position + 1] in ("!", "^")
    if is_negated:
        position += 1
    first = position
    items: list[str] = []
    while position < len(glob):
        if glob[position] == "]" and position > first:
            members = "".join(items)
            if is_negated:
                return _Piece(f"[^/{members}]", position + 1)
            return _Piece(f"(?!/)[{members}]" if members else _NEVER, position + 1)
        posix_class = _POSIX_CLASS.match(glob, position)
        if posix_class:
            if posix_class[1] not in _POSIX_CLASSES:
                return None
            items.append(_POSIX_CLASSES[posix_class[1]])
            position = posix_class.end()
            continue
        low, position = _read_char(glob, position)
        items.append(re.escape(low))
        if glob[position : position + 1] == "-" and glob[position + 1 : position + 2] not in ("", "]"):
            high, position = _read_char(glob, position + 1)
            if low <= high:  # else only the first character counts
                items.append(f"{re.escape(low)}-{re.escape(high)}")
    return None


def _read_char(glob: str, position: int) -> tuple[str, int]:
    """The character at `position`, which a backslash may precede, and the offset behind it."""
    if glob[position] == "\\" and position + 1 < len(glob):
        position += 1
    return glob[position], position + 1
