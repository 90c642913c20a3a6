"""Values of a profile: durations, texts, quantities."""

import pytest

from tests.conftest import Write, load


def test_durations_are_read_with_their_units(write: Write) -> None:
    """30m is 1800 seconds and 1.5h is 5400."""
    deadlines = load(write(deadlines={"start": "30m", "run": "1.5h"})).deadlines
    assert (deadlines.start, deadlines.run) == (1800.0, 5400.0)


def test_numbers_become_text_in_env_and_args(write: Write) -> None:
    """A number in env or args becomes text."""
    profile = load(write(env={"NCCL_IB_TC": 41}, args=["--lr", 0.1]))
    assert (profile.env, profile.args) == ({"NCCL_IB_TC": "41"}, ("--lr", "0.1"))


@pytest.mark.parametrize("amount", [64, 0.5, "500m", "1.5", "512Gi", "1Ti", "2k"])
def test_quantities_are_those_of_kubernetes(write: Write, amount: object) -> None:
    """A quantity is stored as it is written."""
    assert load(write(launcher="volcano", image="i:1", resources={"cpu": amount})).resources == {"cpu": str(amount)}
