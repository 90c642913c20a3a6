"""The mutations of `make mutate`: which it makes, of which lines, and which tests run for a module."""

import ast

import pytest

from tests.tools.mutate import Mutation, Verdict, find_tests, format_diff, list_mutations

SAMPLE = b"""LIMIT = 3


def check(age: int, name: str | None = None) -> int | None:
    if not name and age >= LIMIT:
        raise ValueError(f"{age + 1} is too old")
    while ready():
        self.count = 1
        send(name)
    get_log().info("checked")
    return age
"""


def mutate(source: bytes) -> set[str]:
    """The mutated lines of a source, without indentation."""
    before = source.decode().splitlines()
    mutated_lines = set()
    for mutation in list_mutations("sample.py", source, set(range(1, 100))):
        after = mutation.apply(source)
        ast.parse(after)
        mutated_lines.add(next(line for line in after.decode().splitlines() if line not in before).strip())
    return mutated_lines


def test_every_kind_of_mutation_is_made() -> None:
    """Conditions, constants, statements and returned values are mutated, and each result is valid Python."""
    assert mutate(SAMPLE) == {
        "if (not name or age >= LIMIT):",
        "if (name) and age >= LIMIT:",
        "if not name and (age > LIMIT):",
        "pass",
        "while not ready():",
        "self.count = 2",
        "return None",
    }


def test_module_constants_texts_and_log_lines_stay() -> None:
    """A constant of the module, a part of an f-string, an annotation and a line of the log are not mutated."""
    source = b'LIMIT = 3\n\n\ndef f(age: "int | None") -> None:\n    get_log().info(f"{age == 1}")\n'
    assert list_mutations("sample.py", source, set(range(1, 100))) == []


def test_only_the_requested_lines_are_mutated() -> None:
    """A mutation belongs to the line at which its expression or statement starts."""
    assert {mutation.line for mutation in list_mutations("sample.py", SAMPLE, {6, 11})} == {6, 11}


@pytest.mark.parametrize("text", ["größe == 1", "(größe\n        == 1)"])
def test_position_is_counted_in_bytes(text: str) -> None:
    """Letters of several bytes, and expressions of several lines, are replaced as a whole."""
    source = f"def f(größe: int) -> None:\n    ä = {text}\n".encode()
    (comparison,) = [m for m in list_mutations("sample.py", source, {2}) if m.kind == "comparison"]
    assert ast.unparse(ast.parse(comparison.apply(source)).body[0]).endswith("ä = größe != 1")


def test_own_test_files_run_first() -> None:
    """The module's own test files run first, also those with a suffix; those that import it follow."""
    own, importers = find_tests("torchyard/cluster/orphans.py")
    assert own == ["tests/unit/cluster/test_orphans.py", "tests/unit/cluster/test_orphans_unproven.py"]
    assert importers
    assert not set(own) & set(importers)


def test_survivor_is_printed_with_its_diff() -> None:
    """A survivor shows its file, its line, and the line before and after the mutation."""
    mutation = Mutation("a.py", 1, "constant", 4, 5, "2")
    verdict = Verdict(mutation, "survived", format_diff(b"x = 1\n", mutation.apply(b"x = 1\n")))
    assert str(verdict) == "survived   a.py:1 constant\n    -x = 1\n    +x = 2"
