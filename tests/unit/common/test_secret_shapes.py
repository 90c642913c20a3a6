"""The families of secrets that have no name, and the expression that finds their keywords."""

import re

import pytest

from torchyard.common.secret_shapes import SECRET_SHAPES, SecretShape, build_literal_pattern, find_shapes


@pytest.mark.parametrize("shape", SECRET_SHAPES, ids=lambda shape: shape.keywords[0])
def test_shape_can_be_found(shape: SecretShape) -> None:
    """Each keyword is in lower case, as the text is in which it is looked for, and each pattern has its group."""
    for keyword in shape.keywords:
        assert keyword == keyword.lower()
        assert shape in list(find_shapes(f"x {keyword} y"))
    assert "secret" in shape.pattern.groupindex


def test_text_without_a_keyword_has_no_shape() -> None:
    """Only the families whose keywords are in a text are tried on it."""
    assert list(find_shapes("step 1 loss 0.5")) == []


@pytest.mark.parametrize(("text", "is_found"), [("ab", True), ("x.", True), ("zzxaz", False), ("xy", False)])
def test_pattern_of_literals_finds_each_of_them(text: str, is_found: bool) -> None:
    """The expression finds the literals as they are written, also if one of them is the beginning of another."""
    pattern = re.compile(build_literal_pattern(["ab", "abc", "x."]))
    assert bool(pattern.search(text)) is is_found
