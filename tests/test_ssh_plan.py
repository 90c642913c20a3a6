"""Hosts behind ssh, on paper: which of them are used, how ssh is called, and what their keepers' words mean."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.launchers.baremetal import read_status
from torchyard.machines.processes import _build_argv
from torchyard.machines.staging import _list_checkpoints
from torchyard.model.errors import ProfileError
from torchyard.model.plan import Command
from torchyard.model.run import Observation

USERS = (
    "Host gpu1\n  User me\n  BatchMode no\n  ServerAliveInterval 0\n  PermitLocalCommand yes\n  RemoteCommand tmux\n"
)


Chosen = Callable[..., list[str]]


@pytest.fixture
def chosen(write: Write, tmp_path: Path) -> Chosen:
    """The hosts that a job of two nodes is on."""

    def choose(hosts: list[str], *avoid: str) -> list[str]:
        options = {"hosts": hosts, "avoid": list(avoid)}
        return [block.host for block in command_plan_of(load(write(nodes=2, options=options)), tmp_path).on]

    return choose


@pytest.mark.parametrize(("hosts", "avoid", "used"), [
    (["a", "b", "c"], [], ["a", "b"]),
    (["a", "b", "c"], ["a"], ["b", "c"]),
    (["a", "b", "c"], ["b", "nobody"], ["a", "c"]),
    (["a", "a", "b", "b"], ["a"], ["b", "b"]),
])  # fmt: skip
def test_spare_takes_the_place_of_a_host(chosen: Chosen, hosts: list[str], avoid: list[str], used: list[str]) -> None:
    """The first hosts are used that are not to be avoided; those behind them are spares."""
    assert chosen(hosts, *avoid) == used


def test_too_few_hosts_are_an_error(chosen: Chosen) -> None:
    """Where too few hosts are left, that is said with what was left out."""
    with pytest.raises(ProfileError, match=r"options.hosts: 1 hosts for 2 nodes, without a \(options.avoid\): name"):
        chosen(["a", "b"], "a")


def test_next_attempt_takes_checkpoints_from_any_host(write: Write, tmp_path: Path) -> None:
    """With other hosts than before, what each of the former left is still put back."""
    profile = load(write(nodes=2, options={"hosts": ["a", "b", "c"], "avoid": ["a"]}))
    (site, _) = command_plan_of(profile, tmp_path, attempt=2).sites
    for node in (0, 1):
        (tmp_path / f"attempt-1/node-{node}/files/checkpoints").mkdir(parents=True)
        (tmp_path / f"attempt-1/node-{node}/files/checkpoints/{node}.pt").touch()
    assert [name for _, name in _list_checkpoints(site.before)] == ["checkpoints/0.pt", "checkpoints/1.pt"]


def test_plan_of_the_version_before_finds_its_checkpoints(tmp_path: Path) -> None:
    """A plan that names every folder of the attempt before is still understood, whatever letters are in it."""
    (tmp_path / "[1]" / "checkpoints").mkdir(parents=True)
    (tmp_path / "[1]" / "checkpoints" / "0.pt").touch()
    assert [name for _, name in _list_checkpoints([f"{tmp_path}/[1]", f"{tmp_path}/gone"])] == ["checkpoints/0.pt"]


def test_plan_of_many_hosts_grows_with_them(write: Write, tmp_path: Path) -> None:
    """Twice the hosts make a second attempt's plan twice as large, and no more."""

    def size(count: int) -> int:
        profile = load(write(nodes=count, options={"hosts": [f"h{number:03}" for number in range(count)]}))
        return len(command_plan_of(profile, tmp_path, attempt=2).model_dump_json())

    assert size(80) < 2.2 * size(40)


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What ssh itself makes of our options, over a user's configuration that says otherwise."""
    config = tmp_path_factory.mktemp("ssh") / "config"
    config.write_text(USERS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHYARD_SSH", f"ssh -G -F {config}")
        argv = _build_argv("gpu1", Command(argv=("true",)))
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)


@pytest.mark.parametrize(("key", "value"), [
    ("batchmode", "yes"),
    ("serveraliveinterval", "10"),
    ("serveralivecountmax", "3"),
    ("connecttimeout", "15"),
    ("requesttty", "false"),
    ("controlmaster", "false"),
    ("clearallforwardings", "yes"),
    ("permitlocalcommand", "no"),
    ("user", "me"),
])  # fmt: skip
def test_ssh_cannot_ask_or_hang(settled: dict[str, str], key: str, value: str) -> None:
    """ssh asks no person, notices a network that is away, and leaves nothing behind; the rest is the user's."""
    assert settled[key] == value


@pytest.mark.parametrize("other", [
    {"phase": "running"},
    {"phase": "exited", "exit": 1},
    {"phase": "exited", "exit": 0},
    {},
])  # fmt: skip
def test_end_of_a_lease_is_the_cause(other: dict[str, Any]) -> None:
    """Whatever other agents say, a job that a keeper has ended was looked after by nobody, and is not tried again."""
    seen = {"node-0": other, "node-1": {"phase": "exited", "exit": 0, "abandoned": 1800.0}}
    status = read_status(Observation(seen, frozenset(seen)))
    why = "node-1 was ended by its keeper: nobody had looked after it for 1800 s (deadlines.lease)"
    assert (status.state, status.reason) == ("failed", why)
    assert status.failure
    assert (status.failure.cause, status.failure.retry) == ("lease-ended", False)
