"""When an API server is reported that does not respond, or that refuses to show the job."""

import time

import pytest

from torchyard.cluster.outage import OutageReporter
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

AWAY = TransientError("connection refused")
REFUSED = ClusterError("https://x", "list Pod", "pods is forbidden", 403)
UNREACHED = ClusterError("https://x", "GET /api/v1/pods", "connection refused", 0)
UNAUTHORIZED = ClusterError("https://x", "list Pod", "pods is forbidden", 401)
STILL_WAITING = "The job keeps running; still waiting for the API server"
GONE = f"the API server does not respond: connection refused. {STILL_WAITING}"
HIDDEN = f"the API server refuses to show the job: pods is forbidden. {STILL_WAITING}"


@pytest.mark.parametrize(
    ("errors", "messages"),
    [
        ({0: AWAY, 9: AWAY, 9.5: None, 18: AWAY}, []),
        ({0: AWAY, 11: AWAY, 50: AWAY}, [GONE]),
        (
            {0: AWAY, 11: AWAY, 50: None, 51: None},
            [GONE, "the API server responds again after 50 s; the job is observed again"],
        ),
        ({0: REFUSED, 100: REFUSED}, [HIDDEN]),
        ({0: UNAUTHORIZED}, [HIDDEN]),
        ({0: UNREACHED, 9: UNREACHED}, []),
        ({0: UNREACHED, 11: UNREACHED}, [GONE]),
        ({0: AWAY, 11: AWAY, 30: None, 40: AWAY, 51: AWAY}, [GONE, "responds again after 30 s", GONE]),
    ],
    ids=["short", "long", "ended", "refused", "unauthorized", "short after retries", "long after retries", "twice"],
)
def test_outage_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    errors: dict[float, TransientError | ClusterError | None],
    messages: list[str],
) -> None:
    """An outage of more than ten seconds is logged once, and its end once; a refusal is logged immediately."""
    caplog.set_level("INFO")
    reporter = OutageReporter()
    for elapsed_s, error in errors.items():
        monkeypatch.setattr(time, "monotonic", lambda elapsed_s=elapsed_s: 1000.0 + elapsed_s)
        reporter.report(error)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(messages)
    assert all(expected in message for expected, message in zip(messages, logged, strict=True))
