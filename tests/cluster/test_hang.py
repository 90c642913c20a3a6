"""A rank that hangs in a pod, on two real nodes: detected from the pods' logs, and the job restarted."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.complete_runs import run_to_completion
from tests.cluster.test_real import small_overrides
from tests.processes.hanging_program import NAME, PROGRAM, check_hang

__all__ = ["small_overrides"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


@pytest.mark.timeout(300)  # two attempts, each of which imports torch in pods
@pytest.mark.parametrize("profile", ["yolov5-volcano", "yolov5-pytorchjob"])
def test_hanging_rank_in_a_pod_is_reported_and_the_job_restarted(
    small_overrides: dict[str, Any], tmp_path: Path, profile: str
) -> None:
    """The image does not contain the black box; the rank and its line are reported, and the next attempt succeeds."""
    program = tmp_path / f"{NAME}.py"
    program.write_text(PROGRAM)
    container_path = f"/opt/hanging/{NAME}.py"
    program_overrides = {
        "program": container_path,
        "files": {container_path: str(program)},
        "args": [],
        "metrics": "none",
    }
    restart = {"on_hang": "restart", "attempts": 2, "deadlines.grace": "5s"}
    report = run_to_completion(profile, small_overrides | program_overrides | restart)
    assert len(report.attempts) == 2
    check_hang(report.attempts[0])
