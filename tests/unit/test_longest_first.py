"""The modules that begin first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.longest_first import LONGEST, TESTS, sort_tests


@pytest.mark.parametrize("name", LONGEST)
def test_named_module_exists(name: str) -> None:
    """A module that is renamed or removed is renamed or removed in the list too."""
    assert (TESTS / name).is_file()


def test_longest_modules_begin_and_the_others_keep_their_order() -> None:
    """The named modules come first, in the order of the list; the others follow in the order of the collection."""
    paths = [TESTS / "local" / "b.py", TESTS / LONGEST[1], TESTS / "local" / "a.py", TESTS / LONGEST[0]]
    items: list[Any] = [SimpleNamespace(path=path) for path in paths]
    sort_tests(items)
    assert [Path(item.path) for item in items] == [paths[3], paths[1], paths[0], paths[2]]
