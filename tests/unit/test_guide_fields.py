"""The guides' jobs, field by field: each difference in ours has a reason in docs/guides.md."""

import pytest

from tests.tools.guide_fields import HEADING, PAGE, compare, load_reasons, load_rows, render


@pytest.mark.parametrize("row", load_rows())
def test_every_difference_has_one_reason(row: str) -> None:
    """A field is the same as in the guide, or one reason in tests/guides/reasons.yaml explains the difference."""
    reasons = load_reasons()
    for difference in compare(row)[1]:
        explanations = [reason.text for reason in reasons if reason.covers(difference.row, difference.field)]
        assert len(explanations) == 1, f"{difference}: {explanations or 'give a reason in tests/guides/reasons.yaml'}"


def test_every_reason_is_needed() -> None:
    """Every reason explains at least one difference."""
    differences = [difference for row in load_rows() for difference in compare(row)[1]]
    unused = [
        reason
        for reason in load_reasons()
        if not any(reason.covers(difference.row, difference.field) for difference in differences)
    ]
    assert unused == []


def test_page_has_the_table() -> None:
    """docs/guides.md contains the table that `python -m tests.tools.guide_fields` writes."""
    _, heading, rest = PAGE.read_text().partition(HEADING)
    assert (heading + rest).startswith(render())
