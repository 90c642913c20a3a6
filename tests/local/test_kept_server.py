"""Prefect's server on a socket that outlives it: no other user gets its port, and with it the password."""

import os
from pathlib import Path

import pytest

from scripts import listener
from tests.processes.kept_servers import kept_server
from tests.support.waiting import wait_until


def test_password_is_never_sent_to_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed server is started again with its password; a killed keeper takes its server with it, not the port."""
    monkeypatch.setattr(listener, "PREFECT_HOME", tmp_path)
    with kept_server(tmp_path) as server:
        borrowed = listener.BorrowedListener()
        pid = server.find_server()
        assert server.request("/api/admin/version") == 200
        os.kill(pid, 9)
        assert not server.is_port_free_for_others()
        wait_until(lambda: server.find_server() not in (0, pid), 30)
        wait_until(lambda: server.request("/api/admin/version") == 200, 180)
        pid = server.find_server()
        server.keeper.kill()
        server.keeper.wait()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30)
        assert not borrowed.is_server_kept()
        assert not server.is_port_free_for_others()
        borrowed.close()
        assert server.is_port_free_for_others()
