"""How long a request is repeated, and the pauses between two tries, also those that a server requests."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.doubles.fake_api import FakeApi
from torchyard.kube import retry
from torchyard.kube.client import Client
from torchyard.kube.retry import Backoff, parse_retry_after
from torchyard.model.errors import ClusterError


def test_pauses_grow_to_a_bound() -> None:
    """A pause is at most one second longer than all pauses before it, and never longer than the limit."""
    backoff = Backoff()
    total_s = 0.0
    for _ in range(100):
        pause_s = backoff.next(5.0)
        assert pause_s <= min(5.0, total_s + 1.0)
        total_s += pause_s
    assert backoff.next(5.0) >= 2.5


def test_pauses_start_again_after_a_success() -> None:
    """The first failure after a success is retried at once."""
    backoff = Backoff()
    for _ in range(20):
        backoff.next(60.0)
    backoff.reset()
    assert backoff.next(60.0) <= 0.2


def test_pauses_of_two_clients_differ() -> None:
    """Clients that wait for one server do not all retry at the same moment."""
    assert len({Backoff().next(5.0) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0), ("", 0), ("7", 7), ("86400", 30), ("-5", 0), ("soon", 0), ("²", 0)]
)
def test_retry_after_is_bounded(header: str | None, seconds: float) -> None:
    """A server's requested pause is kept, within a limit; an unreadable value counts as 0."""
    assert parse_retry_after(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    """A date is read as the seconds until then."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    assert 8 < parse_retry_after(date) <= 10


@pytest.fixture
def short_request_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a request sooner than in production."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 1.0)


@pytest.mark.usefixtures("short_request_timeout")
def test_request_to_an_absent_server_is_given_up(fake_api: FakeApi, fake_server: Client) -> None:
    """After its timeout a request fails with an error that names server and path and that may be retried later."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(ClusterError, match="GET /api/v1/namespaces/default/configmaps") as caught:
        fake_server.list("v1", "ConfigMap")
    assert caught.value.status == 503
    assert len(fake_api.find_requests("GET", "/configmaps")) >= 2
