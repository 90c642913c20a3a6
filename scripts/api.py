"""Prefect's API, as far as `make train` needs it."""

import os
from typing import Any

import httpx


class YardError(Exception):
    """Something outside of the run went wrong; a sentence for a person."""


def healthy(api: str) -> bool:
    """Whether a Prefect server answers there."""
    try:
        return httpx.get(f"{api}/health", timeout=3, trust_env=False).json() is True
    except (httpx.HTTPError, ValueError):
        return False


def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    api = os.environ["PREFECT_API_URL"]
    answer = httpx.request(method, f"{api}{path}", json=body, timeout=30, trust_env=False)
    if answer.is_server_error:  # a busy SQLite, a server that starts: worth asking again
        answer.raise_for_status()
    if answer.is_error:
        raise YardError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    return answer.json()


def set_state(run_id: str, kind: str) -> None:
    """Ask for a state; the server may refuse."""
    call("POST", f"/flow_runs/{run_id}/set_state", {"state": {"type": kind}, "force": False})
