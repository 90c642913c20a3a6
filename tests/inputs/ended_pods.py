"""Pods that have ended."""

from typing import Any


def build_ended_pod(phase: str, exit_code: int, second: int, **metadata: Any) -> dict[str, Any]:
    """A pod whose container terminated with an exit code, `second` seconds after 22:13:00."""
    terminated = {"exitCode": exit_code, "finishedAt": f"2023-11-14T22:13:{second}Z", "reason": "Error"}
    status = {"phase": phase, "containerStatuses": [{"name": "worker", "state": {"terminated": terminated}}]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "worker"}]}, "status": status}
