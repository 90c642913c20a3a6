"""A rank that hangs in a pod, on two real nodes: told from the pods' logs, and trained again."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.carried import completed
from tests.cluster.test_real import small
from tests.hanging import NAME, PROGRAM, check_hang

__all__ = ["small"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


@pytest.mark.parametrize("profile", ["yolov5-volcano", "yolov5-pytorchjob"])
def test_hanging_rank_in_a_pod_is_named_and_trained_again(small: dict[str, Any], tmp_path: Path, profile: str) -> None:
    """The image knows nothing of the black box; the rank and its line are told, and the next attempt succeeds."""
    program = tmp_path / f"{NAME}.py"
    program.write_text(PROGRAM)
    there = f"/opt/hanging/{NAME}.py"
    own = {"program": there, "files": {there: str(program)}, "args": [], "metrics": "none"}
    report = completed(profile, {**small, **own, "on_hang": "restart", "attempts": 2})
    assert len(report.attempts) == 2
    check_hang(report.attempts[0])
