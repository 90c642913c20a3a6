"""A run of a deployment, watched to the end that stays."""

import time
from typing import Any
from uuid import UUID

import httpx

from scripts.api import call, set_state

# How long a run may stay Crashed before nobody brings it back any more.
PATIENCE = 30.0
# What Prefect says of every run, whatever it does.
NOISE = ("Deployment step", "All deployment steps", "Executing deployment", "Running 1 deployment", "Finished in state")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


def follow(api: str, profile: str) -> int:
    """Run train/PROFILE and watch it: 0 where it succeeded, else 1. Ctrl-C cancels it."""
    run = create(profile)
    page = f"{api.removesuffix('/api')}/runs/flow-run/{run['id']}"
    print(f"train/{profile}: {page}", flush=True)
    shown: set[str] = set()
    try:
        state = watch(run["id"], shown)
    except KeyboardInterrupt:
        print("cancelling the run; Ctrl-C again leaves it to the server", flush=True)
        set_state(run["id"], "CANCELLING")
        state = watch(run["id"], shown)
    print(f"{state['name']}: {state['message'] or ''}\nin the UI: {page}\nto stop the server and the worker: make down")
    return 0 if state["type"] == "COMPLETED" else 1


def create(profile: str) -> Any:
    deployment = call("GET", f"/deployments/name/train/{profile}")
    return call("POST", f"/deployments/{deployment['id']}/create_flow_run", {})


def watch(run_id: str, shown: set[str]) -> Any:
    """Print the run's log lines until its end. A run that is Crashed by that name may be on its way back."""
    since, told = 0.0, ""
    while True:
        try:
            state = call("GET", f"/flow_runs/{run_id}")["state"]
            print_logs(run_id, shown)
        except httpx.HTTPError:
            time.sleep(1)
            continue
        if state["name"] != told:
            told, since = state["name"], time.monotonic()
            print(f"  [{told}]", flush=True)
        coming_back = told == "Crashed" and time.monotonic() - since < PATIENCE
        if state["type"] in ENDED and not coming_back:
            settle(run_id, shown)
            return state
        time.sleep(0.5)


def settle(run_id: str, shown: set[str]) -> None:
    """Log lines reach the API up to two seconds after they were said."""
    for _ in range(5):
        time.sleep(0.5)
        print_logs(run_id, shown)


def print_logs(run_id: str, shown: set[str]) -> None:
    """Print the lines that were not shown before. They come in late and out of order: offsets would skip some."""
    asked = {"logs": {"flow_run_id": {"any_": [str(UUID(run_id))]}}, "sort": "TIMESTAMP_DESC"}
    for line in reversed(call("POST", "/logs/filter", asked)):
        if line["id"] not in shown and not line["message"].startswith(NOISE):
            print(f"  {line['timestamp'][11:19]} {line['message']}", flush=True)
        shown.add(line["id"])
