"""A run's etcd on machines listens where its agents reach it and nowhere else: who writes to it runs code in them."""

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import Write, command_plan_of, load
from tests.test_keep import ended, folder, start, texts
from torchyard.host.network import (
    LISTEN_URLS_PLACEHOLDER,
    _find_source_address,
    _is_own_address,
    _resolve_name,
    find_listen_urls,
)
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.teardown import teardown

__all__ = ["folder"]
NOBODYS = "192.0.2.1"  # of documentation: no host has it
UNKNOWN = "no-such-host.invalid"


def store_of(write: Write, tmp_path: Path, hosts: list[Any]) -> dict[str, Any]:
    """What the keeper of a plan's etcd is told."""
    keys = {"nodes": len(hosts), "rendezvous": "etcd-v2", "options": {"hosts": hosts, "port": 23456}}
    plan = command_plan_of(load(write(**keys)), tmp_path)
    assert plan.store
    assert plan.store.submit
    assert plan.store.submit.input
    return plan.store.submit.input


def listens(spec: dict[str, Any]) -> list[str]:
    return [word.partition("=")[2] for word in spec["argv"] if word.startswith("--listen-")]


@pytest.mark.parametrize("hosts", [["localhost"] * 2, ["gpu1", "gpu1"], [{"host": "localhost", "address": "10.0.0.9"}]])
def test_agents_of_one_host_meet_on_its_loopback(write: Write, tmp_path: Path, hosts: list[Any]) -> None:
    """Nobody else has to reach the store; its peers' port is never anywhere else."""
    spec = store_of(write, tmp_path, hosts)
    assert listens(spec) == ["http://127.0.0.1:23456", "http://127.0.0.1:23457"]


def test_agents_of_several_hosts_meet_where_the_first_is_reached(write: Write, tmp_path: Path) -> None:
    """Which addresses these are only that host knows."""
    spec = store_of(write, tmp_path, ["me@gpu1", {"host": "gpu2", "address": "10.0.0.2"}, "gpu1", "gpu3"][:2])
    assert listens(spec) == [LISTEN_URLS_PLACEHOLDER, "http://127.0.0.1:23457"]
    assert spec["serves"] == {"name": "gpu1", "port": 23456, "toward": ["10.0.0.2"]}


def test_a_name_is_listened_on_as_this_host_understands_it() -> None:
    """The agent beside the store uses it; others come by the way that leads to them."""
    assert find_listen_urls({"name": "127.0.0.5", "port": 9, "toward": ["127.0.0.7"]}) == (
        "http://127.0.0.5:9,http://127.0.0.1:9"
    )


def test_an_address_of_another_machine_is_not_listened_on() -> None:
    """Behind a router that translates addresses, the host does not have the one that others use."""
    assert find_listen_urls({"name": NOBODYS, "port": 9, "toward": ["127.0.0.7"]}) == "http://127.0.0.1:9"


def test_where_no_way_is_known_the_store_listens_everywhere() -> None:
    """An alias of the launcher's ssh need not be a name on the host; the run must meet all the same."""
    assert find_listen_urls({"name": "localhost", "port": 9, "toward": [UNKNOWN]}) == "http://0.0.0.0:9"
    assert find_listen_urls({"name": UNKNOWN, "port": 9, "toward": [UNKNOWN]}) == "http://0.0.0.0:9"


def test_own_addresses_are_told_from_others() -> None:
    """By binding to them."""
    assert [_is_own_address(each) for each in ("127.0.0.1", NOBODYS, "", "0.0.0.0")] == [True, False, False, False]
    assert (_resolve_name("127.0.0.3"), _resolve_name(UNKNOWN), _find_source_address(UNKNOWN)) == (
        ["127.0.0.3"],
        [],
        "",
    )


def test_the_keeper_fills_in_where_a_store_listens(folder: Path) -> None:
    """At its start, on the host."""
    serves = {"name": "127.0.0.5", "port": 9, "toward": ["127.0.0.7"]}
    start(folder, "", argv=["echo", f"--listen={LISTEN_URLS_PLACEHOLDER}"], serves=serves)
    ended(folder)
    assert texts(folder) == ["--listen=http://127.0.0.5:9,http://127.0.0.1:9"]


def answers(host: str, port: int) -> bool:
    with socket.socket() as end:
        return end.connect_ex((host, port)) == 0


def test_a_real_etcd_is_reached_there_alone(write: Write, tmp_path: Path) -> None:
    """By the first host's address; on no other of this machine, as on none of its networks."""
    hosts = [{"host": "localhost", "address": "127.0.0.5"}, {"host": "127.0.0.1", "address": "127.0.0.7"}]
    keys = {"nodes": 2, "rendezvous": "etcd-v2", "options": {"hosts": hosts}}
    plan = command_plan_of(load(write(**keys)), tmp_path / "run")
    try:
        assert ensure_rendezvous(plan) == plan.probe
        port = urlsplit(str(plan.probe)).port or 0
        assert [answers(host, port) for host in ("127.0.0.5", "127.0.0.1", "127.0.0.9")] == [True, True, False]
    finally:
        assert teardown(plan) == ()
