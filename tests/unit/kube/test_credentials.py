"""Credentials that expire: which thread reloads them, and when."""

import contextlib
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.waiting import TIMEOUT_S, wait_until
from torchyard.host.processes import send_signal
from torchyard.kube import credentials
from torchyard.kube.credentials import Credentials, load_first
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError


def test_credentials_that_were_renewed_meanwhile_are_not_reloaded() -> None:
    """A thread that was refused with the old credentials uses those that another thread has loaded since."""
    loaded = iter(["second", "third"])
    tokens = Credentials("first", lambda: next(loaded))
    assert [tokens.renew("first"), tokens.renew("first"), tokens.current] == [True, True, "second"]


def test_credentials_refused_anew_are_not_reloaded_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """After freshly loaded credentials are refused, they are loaded again only after a while."""
    loaded = iter(["second", "third"])
    tokens = Credentials("first", lambda: next(loaded))
    tokens.renew("first")
    assert not tokens.renew("second")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + credentials.RELOAD_INTERVAL_S)
    assert (tokens.renew("second"), tokens.current) == (True, "third")


def test_credentials_that_cannot_be_reloaded_are_kept() -> None:
    """While the kubeconfig cannot be read, the old credentials are kept, and the error is transient."""

    def load() -> str:
        raise ClusterError("kubeconfig", "read it", "half of it is written", 0)

    tokens = Credentials("first", load)
    with pytest.raises(TransientError, match="half of it is written"):
        tokens.renew("first")
    assert tokens.current == "first"


def test_credentials_of_another_thread_are_used_for_as_long_as_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was refused with old credentials causes no reload, however long ago the new ones were loaded."""
    loaded = iter(["second", "third"])
    tokens = Credentials("first", lambda: next(loaded))
    tokens.renew("first")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 2 * credentials.RELOAD_INTERVAL_S)
    assert (tokens.renew("first"), tokens.current) == (True, "second")


# --- a plugin that does not end


def test_reload_that_hangs_holds_up_no_thread_for_long() -> None:
    """While a plugin hangs, each thread gets a transient 401 that names it, no second one starts; its end counts."""
    may_end = threading.Event()
    loads: list[str] = []

    def load() -> str:
        loads.append("started")
        may_end.wait(TIMEOUT_S)
        return "second"

    tokens = Credentials("first", load, "the kubeconfig's plugin sso", timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(TransientError, match="plugin sso has not responded") as caught:
            tokens.renew("first")
        assert caught.value.status == 401
    assert loads == ["started"]
    may_end.set()
    for thread in threading.enumerate():
        if thread.name == "credentials":
            thread.join(TIMEOUT_S)
    assert (tokens.renew("first"), tokens.current) == (True, "second")


def test_hanging_plugin_is_killed_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that has hung for minutes is killed, a parent before its children, and the credentials load again."""
    killed: list[int] = []

    def kill(pids: list[int], signal_number: int) -> None:
        killed.extend(pids)
        send_signal(pids, signal_number)

    monkeypatch.setattr(credentials, "send_signal", kill)
    monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT_S", 0.0)
    plugins: list[int] = []

    def load() -> str:
        command = "echo second" if plugins else "sleep 1000; echo half"
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as plugin:
            plugins.append(plugin.pid)
            output, _ = plugin.communicate()
        if plugin.returncode != 0:
            raise ClusterError("kubeconfig", "load the credentials", "the plugin was killed", 0)
        return output.strip()

    tokens = Credentials("first", load, timeout_s=0.2)

    def is_renewed() -> bool:
        with contextlib.suppress(TransientError):
            return tokens.renew("first")
        return False

    wait_until(is_renewed)
    assert (tokens.current, killed[0]) == ("second", plugins[0])


def test_first_load_that_hangs_is_reported_and_then_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A plugin that hangs at the first load gets a warning, and then a named error instead of blocking for ever."""
    monkeypatch.setattr(credentials, "RELOAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT_S", 1.0)
    has_ended = threading.Event()

    def load() -> None:
        subprocess.run(["sh", "-c", "sleep 1000; true"], check=False)
        has_ended.set()

    with pytest.raises(ClusterError, match="plugin has not responded for 1 s") as caught:
        load_first(load)
    assert caught.value.is_transient
    assert "plugin may wait for a login" in caplog.text
    assert has_ended.wait(TIMEOUT_S)  # its processes were killed


def test_error_of_the_first_load_is_raised() -> None:
    """What the first load raises is raised to the caller, and its result is returned."""

    def fail() -> None:
        raise ClusterError("kubeconfig", "read it", "no such context", 0)

    with pytest.raises(ClusterError, match="no such context"):
        load_first(fail)
    assert load_first(lambda: "token") == "token"


def test_threads_wait_for_one_reload_together() -> None:
    """Threads that are refused during a reload wait for it, and none of them starts another."""
    all_wait = threading.Barrier(2)
    loads: list[str] = []

    def load() -> str:
        loads.append("started")
        all_wait.wait(TIMEOUT_S)
        return "second"

    tokens = Credentials("first", load)

    def renew() -> bool:
        return tokens.renew("first")

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(renew), pool.submit(renew)]
        all_wait.wait(TIMEOUT_S)  # the load, and this thread
        assert [result.result(TIMEOUT_S) for result in results] == [True, True]
    assert loads == ["started"]
