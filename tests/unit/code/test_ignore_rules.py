"""The rules of a .gitignore: which paths each form of a rule matches, as git decides."""

import pytest

from torchyard.code.ignore_rules import find_verdict, parse_rules


@pytest.mark.parametrize(
    ("line", "matched", "unmatched"),
    [
        ("*.o", "a/b.o", "a/b.oo"),
        ("/a.py", "a.py", "b/a.py"),
        ("a/b", "a/b", "c/a/b"),
        ("**/a/b", "c/d/a/b", "xa/b"),
        ("a/**", "a/b/c", "a"),
        ("a/**/b", "a/b", "a/cb"),
        ("a**b", "axb", "a/b"),
        ("a/*", "a/b", "a/b/c"),
        ("a?c", "abc", "a/c"),
        ("[!a]x", "bx", "ax"),
        ("[]-a]", "]", "b"),
        ("[b-a]", "b", "a"),
        ("[[:digit:]]", "7", "d"),
        (r"\#x", "#x", r"\#x"),
        (r"\!x", "!x", "x"),
        ("x  ", "x", "x  "),
        ("x\\ ", "x ", "x"),
    ],
)
def test_rule_matches_as_in_git(line: str, matched: str, unmatched: str) -> None:
    """A rule matches the one path, and not the other."""
    rules = parse_rules([line])
    assert find_verdict(rules, matched, is_folder=False) is True
    assert find_verdict(rules, unmatched, is_folder=False) is None


@pytest.mark.parametrize("line", ["", "  ", "# a", "[a", "[[:letter:]]", "\\", "/", "!/"])
def test_malformed_rule_matches_nothing(line: str) -> None:
    """A comment, an empty line and a malformed rule decide nothing."""
    assert find_verdict(parse_rules([line]), "a", is_folder=True) is None


def test_last_rule_decides() -> None:
    """The last rule that matches decides; one with `/` at its end is for folders alone."""
    rules = parse_rules(["*", "!keep/", "!a.py", "a.py/"])
    assert find_verdict(rules, "keep", is_folder=True) is False
    assert find_verdict(rules, "keep", is_folder=False) is True
    assert find_verdict(rules, "a.py", is_folder=False) is False
