"""The guides' jobs, field by field: what differs in ours has a reason that docs/guides.md gives."""

import pytest

from tests.guide_fields import HEADING, PAGE, compare, load_reasons, load_rows, render


@pytest.mark.parametrize("row", load_rows())
def test_every_difference_has_one_reason(row: str) -> None:
    """A field is as in the guide, or one reason in tests/guides/reasons.yaml says why not."""
    reasons = load_reasons()
    for difference in compare(row)[1]:
        explanations = [reason.text for reason in reasons if reason.covers(difference.row, difference.field)]
        assert len(explanations) == 1, f"{difference}: {explanations or 'give a reason in tests/guides/reasons.yaml'}"


def test_every_reason_is_needed() -> None:
    """A reason without a difference is removed."""
    differences = [difference for row in load_rows() for difference in compare(row)[1]]
    idle = [reason for reason in load_reasons() if not any(reason.covers(one.row, one.field) for one in differences)]
    assert idle == []


def test_page_has_the_table() -> None:
    """docs/guides.md shows all reasons; `python -m tests.guide_fields` writes them."""
    _, heading, rest = PAGE.read_text().partition(HEADING)
    assert (heading + rest).startswith(render())
