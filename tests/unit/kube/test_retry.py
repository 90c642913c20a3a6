"""For how long a request is repeated, and how long the pauses are: between two tries, and where the server asks."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.fake_api import FakeApi
from torchyard.kube import retry
from torchyard.kube.client import Client
from torchyard.kube.retry import Backoff, read_retry_after
from torchyard.model.errors import ClusterError


def test_pauses_grow_to_a_bound() -> None:
    """A pause is at most one second longer than all pauses before it, and never longer than the limit."""
    pauses, before = Backoff(), 0.0
    for _ in range(100):
        pause = pauses.next(5.0)
        assert pause <= min(5.0, before + 1.0)
        before += pause
    assert pauses.next(5.0) >= 2.5


def test_pauses_begin_anew_after_a_success() -> None:
    """The first failure after a success is retried at once."""
    pauses = Backoff()
    for _ in range(20):
        pauses.next(60.0)
    pauses.reset()
    assert pauses.next(60.0) <= 0.2


def test_no_two_clients_pause_alike() -> None:
    """Clients that wait for one server do not all retry at the same moment."""
    assert len({Backoff().next(5.0) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("", 0), ("7", 7), ("86400", 30), ("-5", 0), ("soon", 0), ("²", 0)]
)
def test_retry_after_is_bounded(header: str | None, seconds: float) -> None:
    """A server is left alone for as long as it asks, within a limit; an unreadable value counts as 0."""
    assert read_retry_after(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    """A date is read as the seconds until then."""
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    assert 8 < read_retry_after(then) <= 10


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is given up sooner than in production."""
    monkeypatch.setattr(retry, "_REQUEST_TIMEOUT_S", 1.0)


@pytest.mark.usefixtures("hurried")
def test_server_that_stays_away_is_given_up(fake_api: FakeApi, fake_server: Client) -> None:
    """After its timeout a request fails with an error that names server and path and that may be retried later."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(ClusterError, match="GET /api/v1/namespaces/default/configmaps") as caught:
        fake_server.list("v1", "ConfigMap")
    assert caught.value.status == 503
    assert len(fake_api.requests("GET", "/configmaps")) >= 2
