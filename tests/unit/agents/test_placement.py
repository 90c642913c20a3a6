"""Which of the hosts a job uses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.model.errors import ProfileError

ChooseHosts = Callable[..., list[str]]


@pytest.fixture
def choose_hosts(write: Write, tmp_path: Path) -> ChooseHosts:
    """The hosts that a job of two nodes uses."""

    def choose(hosts: list[str], *avoid: str) -> list[str]:
        options = {"hosts": hosts, "avoid": list(avoid)}
        return [process.host for process in command_plan_of(load(write(nodes=2, options=options)), tmp_path).processes]

    return choose


@pytest.mark.parametrize(("hosts", "avoid", "used"), [
    (["a", "b", "c"], [], ["a", "b"]),
    (["a", "b", "c"], ["a"], ["b", "c"]),
    (["a", "b", "c"], ["b", "nobody"], ["a", "c"]),
    (["a", "a", "b", "b"], ["a"], ["b", "b"]),
])  # fmt: skip
def test_spare_takes_the_place_of_a_host(
    choose_hosts: ChooseHosts, hosts: list[str], avoid: list[str], used: list[str]
) -> None:
    """The first hosts that are not avoided are used; those after them are spares."""
    assert choose_hosts(hosts, *avoid) == used


def test_too_few_hosts_are_an_error(choose_hosts: ChooseHosts) -> None:
    """If too few hosts are left, the error names the avoided ones."""
    with pytest.raises(ProfileError, match=r"options.hosts: 1 hosts for 2 nodes, without a \(options.avoid\): name"):
        choose_hosts(["a", "b"], "a")
