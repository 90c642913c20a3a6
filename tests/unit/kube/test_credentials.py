"""Credentials that expire: which thread reloads them, and when."""

import time

import pytest

from torchyard.kube import credentials
from torchyard.kube.credentials import Credentials
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
