"""Credentials that expire: who loads them again, and when."""

import time

import pytest

from torchyard.kube import credentials
from torchyard.kube.credentials import Credentials
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError


def test_credentials_that_were_renewed_meanwhile_are_not_loaded() -> None:
    """A thread that was refused with the old credentials uses those that another thread has loaded since."""
    loaded = iter(["second", "third"])
    known = Credentials("first", lambda: next(loaded))
    assert [known.renew("first"), known.renew("first"), known.now] == [True, True, "second"]


def test_credentials_refused_anew_are_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """After freshly loaded credentials are refused, they are loaded again only after a while."""
    loaded = iter(["second", "third"])
    known = Credentials("first", lambda: next(loaded))
    known.renew("first")
    assert not known.renew("second")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + credentials._RELOAD_INTERVAL_S)
    assert (known.renew("second"), known.now) == (True, "third")


def test_credentials_that_cannot_be_loaded_stay() -> None:
    """While the kubeconfig cannot be read, the old credentials stay, and the error is transient."""

    def load() -> str:
        raise ClusterError("kubeconfig", "read it", "half of it is written", 0)

    known = Credentials("first", load)
    with pytest.raises(TransientError, match="half of it is written"):
        known.renew("first")
    assert known.now == "first"


def test_credentials_of_another_thread_are_used_for_as_long_as_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was refused with old credentials causes no reload, however long ago the new ones were loaded."""
    loaded = iter(["second", "third"])
    known = Credentials("first", lambda: next(loaded))
    known.renew("first")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 2 * credentials._RELOAD_INTERVAL_S)
    assert (known.renew("first"), known.now) == (True, "second")
