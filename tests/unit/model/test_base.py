"""Values of a profile: durations, texts, quantities."""

import pytest

from tests.conftest import Write, load
from torchyard.model.errors import ProfileError


def test_durations_are_read_with_their_units(write: Write) -> None:
    """30m is 1800 seconds and 1.5h is 5400."""
    deadlines = load(write(deadlines={"start": "30m", "run": "1.5h"})).deadlines
    assert (deadlines.start, deadlines.run) == (1800.0, 5400.0)


def test_numbers_become_text_in_env_and_args(write: Write) -> None:
    """A number in env or args becomes text."""
    profile = load(write(env={"NCCL_IB_TC": 41}, args=["--lr", 0.1]))
    assert (profile.env, profile.args) == ({"NCCL_IB_TC": "41"}, ("--lr", "0.1"))


@pytest.mark.parametrize("amount", [64, 0.5, "500m", "1.5", "512Gi", "1Ti", "2k", "1Ki"])
def test_quantities_are_those_of_kubernetes(write: Write, amount: object) -> None:
    """A quantity is stored as it is written."""
    assert load(write(launcher="volcano", image="i:1", resources={"cpu": amount})).resources == {"cpu": str(amount)}


@pytest.mark.parametrize("amount", ["1ki", "1K", "1mi", "512 Gi", "many", True])
def test_amount_that_kubernetes_refuses_is_refused(write: Write, amount: object) -> None:
    """A unit that Kubernetes does not have is refused; Ki is spelled with a capital letter, and k with a small one."""
    with pytest.raises(ProfileError, match="an amount is a number with or without a unit of Kubernetes"):
        load(write(launcher="volcano", image="i:1", resources={"cpu": amount}))
