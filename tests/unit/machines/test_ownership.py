"""This launcher as the owner of a run, and what hosts report about another one."""

from typing import Any

import pytest

from torchyard.machines import ownership
from torchyard.model.errors import RunInUseError


def test_confirmation_counts_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has confirmed an owner is asked again after ten seconds, and for another owner at once."""
    now_s = 100.0
    monkeypatch.setattr(ownership, "read_uptime", lambda: now_s)
    ownership.record_confirmation("gpu1", "here:/a")
    assert (ownership.is_confirmed("gpu1", "here:/a"), ownership.is_confirmed("gpu1", "there:/a")) == (True, False)
    now_s += 11.0
    assert not ownership.is_confirmed("gpu1", "here:/a")


def test_refusal_names_the_owner() -> None:
    """A response with another owner is an error that names the host and the owner; every other response is none."""
    responses: tuple[Any, ...] = ({"left": []}, {"other_owner": ""}, [], None)
    for response in responses:
        ownership.check_response("gpu1", response)
    with pytest.raises(RunInUseError, match="gpu1 is owned by there:/b"):
        ownership.check_response("gpu1", {"other_owner": "there:/b"})
