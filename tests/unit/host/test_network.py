"""The addresses of a host on which a run's etcd listens: only those at which its agents reach it."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import Write, load
from tests.processes.lone_processes import build_lone_plan
from tests.processes.supervised import read_log_texts, start_script, wait_for_exit
from torchyard.host.network import (
    LISTEN_URLS_PLACEHOLDER,
    find_listen_urls,
    find_source_address,
    is_own_address,
    resolve_name,
)
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.teardown import teardown

FOREIGN_ADDRESS = "192.0.2.1"  # reserved for documentation: no host has it
UNKNOWN_NAME = "no-such-host.invalid"


def test_store_listens_on_the_addresses_of_its_name_and_route() -> None:
    """The store listens on the address of its host's name, and on the one from which the host reaches the others."""
    assert find_listen_urls({"name": "127.0.0.5", "port": 9, "toward": ["127.0.0.7"]}) == (
        "http://127.0.0.5:9,http://127.0.0.1:9"
    )


def test_foreign_address_is_not_listened_on() -> None:
    """An address that the host does not have is left out: behind NAT, others use an address of the router."""
    assert find_listen_urls({"name": FOREIGN_ADDRESS, "port": 9, "toward": ["127.0.0.7"]}) == "http://127.0.0.1:9"


def test_store_listens_everywhere_if_no_route_is_known() -> None:
    """If no route is known, as for a launcher's ssh alias, the store listens everywhere: the agents must reach it."""
    assert find_listen_urls({"name": "localhost", "port": 9, "toward": [UNKNOWN_NAME]}) == "http://0.0.0.0:9"
    assert find_listen_urls({"name": UNKNOWN_NAME, "port": 9, "toward": [UNKNOWN_NAME]}) == "http://0.0.0.0:9"


def test_own_addresses_are_recognized() -> None:
    """An address is the host's own if it can be bound to."""
    assert [is_own_address(address) for address in ("127.0.0.1", FOREIGN_ADDRESS, "", "0.0.0.0")] == [
        True,
        False,
        False,
        False,
    ]
    assert (resolve_name("127.0.0.3"), resolve_name(UNKNOWN_NAME), find_source_address(UNKNOWN_NAME)) == (
        ["127.0.0.3"],
        [],
        None,
    )


def test_supervisor_fills_in_the_listen_urls(folder: Path) -> None:
    """The supervisor fills in the addresses on the host, before it starts the store."""
    serves = {"name": "127.0.0.5", "port": 9, "toward": ["127.0.0.7"]}
    start_script(folder, "", argv=["echo", f"--listen={LISTEN_URLS_PLACEHOLDER}"], serves=serves)
    wait_for_exit(folder)
    assert read_log_texts(folder) == ["--listen=http://127.0.0.5:9,http://127.0.0.1:9"]


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def test_etcd_listens_only_on_these_addresses(write: Write, tmp_path: Path) -> None:
    """A real etcd answers on the first host's addresses and on no other address of this machine."""
    hosts = [{"host": "localhost", "address": "127.0.0.5"}, {"host": "127.0.0.1", "address": "127.0.0.7"}]
    keys = {"nodes": 2, "rendezvous": "etcd-v2", "options": {"hosts": hosts}}
    plan = build_lone_plan(load(write(**keys)), tmp_path / "run")
    try:
        assert ensure_rendezvous(plan) == plan.probe
        port = urlsplit(str(plan.probe)).port or 0
        assert [is_listening(host, port) for host in ("127.0.0.5", "127.0.0.1", "127.0.0.9")] == [True, True, False]
    finally:
        assert teardown(plan) == ()
