"""Which lines of a log are worth reading for the cause of a failure: those with a text from the rules of causes.

A line that a rule's pattern matches contains the literal texts of that pattern, and searching for a text costs far less
than matching a pattern.
"""

import re
from collections.abc import Iterable

from torchyard.model.causes.cause import LogRule
from torchyard.model.causes.program import PROGRAM_ERROR
from torchyard.model.causes.registry import LOG_RULES

_MIN_LITERAL_CHARS = 3
# One element of a pattern: an escaped character, a set, a count, the start of a group, or any other character.
_ELEMENT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|\(\?(?:P<\w+>|<?[=!]|:)|.", re.DOTALL)
_OPTIONAL_COUNTS = ("?", "*", "{0", "{,")
# Removed from words and lines: most lines of a training then equal another one, and are searched once.
DIGITS = b"0123456789"
_WITHOUT_DIGITS = str.maketrans("", "", DIGITS.decode())


def find_literals(pattern: str) -> list[str]:
    """The texts outside of groups that each match of a pattern contains; empty if it has alternatives there."""
    literals = [""]
    depth = 0
    for element in _ELEMENT.findall(pattern):
        if element == "|" and depth == 0:
            return []
        if element.startswith("("):
            depth += 1
        elif element == ")":
            depth -= 1
        elif depth:
            continue
        elif element.startswith(_OPTIONAL_COUNTS):
            literals[-1] = literals[-1][:-1]
        elif _is_literal(element):
            literals[-1] += element[-1]
            continue
        literals.append("")
    return [literal for literal in literals if len(literal) >= _MIN_LITERAL_CHARS]


def _is_literal(element: str) -> bool:
    """Whether an element of a pattern stands for one certain character."""
    if element.startswith("\\"):
        return not element[1].isalnum()  # `\d` is any digit, `\.` is a dot
    return len(element) == 1 and element not in ".^$+"


def list_failure_words(rules: Iterable[LogRule]) -> tuple[str, ...]:
    """The texts of rules: one of each pattern, the longest, and those that a rule names itself."""
    words: set[str] = set()
    for rule in rules:
        words.update(rule.failure_words)
        for pattern in rule.patterns:
            literals = find_literals(pattern)
            if literals:
                words.add(max(literals, key=len))
    words = {word.translate(_WITHOUT_DIGITS) for word in words}
    return tuple(sorted(word for word in words if not _contains_other(word, words)))


def _contains_other(word: str, words: Iterable[str]) -> bool:
    """Whether another one of the words is a part of this one, which is then not needed."""
    return any(other in word for other in words if other != word)


_WORDS = tuple(word.encode() for word in list_failure_words((*LOG_RULES, PROGRAM_ERROR)))


def has_failure_word(text: bytes) -> bool:
    """Whether a text without digits may show the cause of a failure, or helps to explain it."""
    for word in _WORDS:  # noqa: SIM110 - a generator would take twice as long, and this runs on many lines
        if word in text:
            return True
    return False
