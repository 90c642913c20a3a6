"""When an API server that does not answer, or refuses to show the job, is reported."""

import time

import pytest

from torchyard.cluster.outage import OutageReporter
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

AWAY = TransientError("connection refused")
REFUSED = ClusterError("https://x", "list Pod", "pods is forbidden", 403)
GONE = "the API server does not answer (connection refused); the job goes on, and so does the wait"
HIDDEN = "the API server refuses to show the job (pods is forbidden); the job goes on, and so does the wait"


@pytest.mark.parametrize(
    ("troubles", "said"),
    [
        ({0: AWAY, 9: AWAY, 9.5: None, 18: AWAY}, []),
        ({0: AWAY, 11: AWAY, 50: AWAY}, [GONE]),
        (
            {0: AWAY, 11: AWAY, 50: None, 51: None},
            [GONE, "the API server answers again after 50 s, and the job is seen"],
        ),
        ({0: REFUSED, 100: REFUSED}, [HIDDEN]),
        ({0: AWAY, 11: AWAY, 30: None, 40: AWAY, 51: AWAY}, [GONE, "answers again after 30 s", GONE]),
    ],
    ids=["short", "long", "over", "refused", "twice"],
)
def test_outage_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    troubles: dict[float, TransientError | ClusterError | None],
    said: list[str],
) -> None:
    """An outage of more than ten seconds is logged once, and its end too; a refusal is logged at once."""
    caplog.set_level("INFO")
    reporter = OutageReporter()
    for at, trouble in troubles.items():
        monkeypatch.setattr(time, "monotonic", lambda at=at: 1000.0 + at)
        reporter.report(trouble)
    found = [each.getMessage() for each in caplog.records]
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))
