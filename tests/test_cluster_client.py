"""What a client does while an API server is away: how long it pauses, and whose credentials it loads."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from torchyard.kube import credentials
from torchyard.kube.credentials import Credentials
from torchyard.kube.retry import Backoff, TransientError, read_retry_after
from torchyard.model.errors import ClusterError


def test_pauses_grow_to_a_bound() -> None:
    """A pause is never longer than what it follows and a second more, and never longer than the most."""
    pauses, before = Backoff(), 0.0
    for _ in range(100):
        pause = pauses.next(5.0)
        assert pause <= min(5.0, before + 1.0)
        before += pause
    assert pauses.next(5.0) >= 2.5


def test_pauses_begin_anew_after_a_success() -> None:
    """What is broken for the first time in a while is tried again at once."""
    pauses = Backoff()
    for _ in range(20):
        pauses.next(60.0)
    pauses.reset()
    assert pauses.next(60.0) <= 0.2


def test_no_two_clients_pause_alike() -> None:
    """Who waits for one server does not come back at the same moment."""
    assert len({Backoff().next(5.0) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("", 0), ("7", 7), ("86400", 30), ("-5", 0), ("soon", 0), ("²", 0)]
)
def test_retry_after_is_bounded(header: str | None, seconds: float) -> None:
    """A server is left alone for as long as it asks, but not for ever; what cannot be read is nothing."""
    assert read_retry_after(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    """A date says the seconds until then."""
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    assert 8 < read_retry_after(then) <= 10


def test_credentials_that_were_renewed_meanwhile_are_not_loaded() -> None:
    """Who was refused with the old ones takes those that another thread has loaded."""
    loaded = iter(["second", "third"])
    known = Credentials("first", lambda: next(loaded))
    assert [known.renew("first"), known.renew("first"), known.now] == [True, True, "second"]


def test_credentials_refused_anew_are_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a password in vain is not asked again at once, but later."""
    loaded = iter(["second", "third"])
    known = Credentials("first", lambda: next(loaded))
    known.renew("first")
    assert not known.renew("second")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + credentials._RELOAD_INTERVAL_S)
    assert (known.renew("second"), known.now) == (True, "third")


def test_credentials_that_cannot_be_loaded_stay() -> None:
    """Where the kubeconfig cannot be read just now, that is waited out with the old ones."""

    def load() -> str:
        raise ClusterError("kubeconfig", "read it", "half of it is written", 0)

    known = Credentials("first", load)
    with pytest.raises(TransientError, match="half of it is written"):
        known.renew("first")
    assert known.now == "first"
