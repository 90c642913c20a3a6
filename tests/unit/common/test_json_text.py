"""JSON that anybody may have written."""

import inspect
import sys

import pytest

from torchyard.common.json_text import parse_json


def test_json_is_parsed_as_by_the_standard_library() -> None:
    """Numbers that JSON lacks, surrogates and bytes are read as json.loads reads them."""
    assert parse_json('{"a": [1, 2.5, null, "\\ud800"], "b": Infinity}') == {
        "a": [1, 2.5, None, "\ud800"],
        "b": float("inf"),
    }
    assert parse_json('{"é": true}'.encode()) == {"é": True}


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff", '"\n"'])
def test_other_text_is_refused(text: str | bytes) -> None:
    """A text that is not JSON is a ValueError."""
    with pytest.raises(ValueError, match=r"Expecting|Invalid|decode"):
        parse_json(text)


@pytest.mark.parametrize("text", ["[" * 201, "[" * 9000, '{"a":' * 100_000, '"' + "[" * 300])
def test_deep_text_does_not_use_up_the_stack(text: str) -> None:
    """A text of many levels, complete or not, is a ValueError, found with a tenth of the usual stack."""
    depth = len(inspect.stack(context=0))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 100)
    try:
        with pytest.raises(ValueError, match=r"more than 200 levels|Unterminated"):
            parse_json(text)
    finally:
        sys.setrecursionlimit(limit)


def test_string_that_is_cut_off_is_read_once() -> None:
    """A line that ends within a string, in which another document is quoted, is refused at once."""
    with pytest.raises(ValueError, match="Unterminated"):
        parse_json('{"a": "' + '[\\"' * 300_000)


def test_wide_text_is_read() -> None:
    """Many objects beside each other, and brackets in strings, are not levels."""
    assert len(parse_json("[" + ",".join(['{"a": []}'] * 1000) + "]")) == 1000
    assert parse_json('["' + "[" * 1000 + '\\"[[", 1]')[1] == 1
    assert parse_json("[" * 200 + "]" * 200)
