"""A run watched from a terminal: its log lines, its states, and its end."""

import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from scripts import watch
from scripts.api import open_prefect_client
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect


def build_log(message: str, second: int) -> dict[str, Any]:
    timestamp = f"2026-01-01T00:00:{second:02}Z"
    return {"id": str(uuid4()), "name": "torchyard", "level": 20, "message": message, "timestamp": timestamp}


def test_each_line_is_printed_once_and_in_order(fake_prefect: FakePrefect, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that arrive late are printed, each line once, and the lines that Prefect logs for every run are not."""
    first = build_log("epoch 1", 1)
    second = build_log("epoch 2", 2)
    noise = build_log("Finished in state Completed()", 3)
    with open_prefect_client() as client:
        follower = watch.RunFollower(client, FlowRun.model_validate(fake_prefect.flow_run))
        for lines in ([noise, second], [noise, second, first], [noise, second, first]):
            fake_prefect.responses["/logs/filter"] = lines
            follower.print_new_logs()
    assert capsys.readouterr().out.splitlines() == ["  00:00:02 epoch 2", "  00:00:01 epoch 1"]


def test_lost_run_that_is_resumed_is_followed_to_its_end(
    fake_prefect: FakePrefect, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state named Crashed is not the end for half a minute: the run's watchdog resumes it."""
    polls = count(1)

    def resume_run(_: float) -> None:
        if next(polls) == 3:
            fake_prefect.state = "COMPLETED"

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=resume_run, monotonic=time.monotonic))
    fake_prefect.state = "CRASHED"
    with open_prefect_client() as client:
        state = watch.RunFollower(client, FlowRun.model_validate(fake_prefect.flow_run)).follow()
    assert state.is_completed()
    assert capsys.readouterr().out.splitlines() == ["  [Crashed]", "  [Completed]"]


def test_profile_without_a_deployment_is_run_by_one_that_takes_any(
    fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not in prefect.yaml is a run of train/any-profile, which is given the file's whole path."""
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    deployment = fake_prefect.flow_run | {"name": "any-profile", "updated": "2026-01-01T00:00:00Z"}
    fake_prefect.responses["/deployments/name/train/any-profile"] = deployment
    fake_prefect.responses[f"/deployments/{RUN_ID}/create_flow_run"] = fake_prefect.flow_run
    fake_prefect.state = "COMPLETED"
    for name in ("mine.yaml", "/any/mine.yaml"):
        assert watch.run_and_follow(fake_prefect.url, name) == 0
    created = [body["parameters"] for path, body in fake_prefect.posted if path.endswith("/create_flow_run")]
    assert created == [{"profile": str(Path("mine.yaml").absolute())}, {"profile": "/any/mine.yaml"}]


def test_exit_code_is_the_runs_end(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make train` exits with 1 for a run that has failed, and with 0 for one that is Completed."""
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    deployment = fake_prefect.flow_run | {"name": "digits-local", "updated": "2026-01-01T00:00:00Z"}
    fake_prefect.responses["/deployments/name/train/digits-local"] = deployment
    fake_prefect.responses[f"/deployments/{RUN_ID}/create_flow_run"] = fake_prefect.flow_run
    codes = []
    for state in ("FAILED", "COMPLETED"):
        fake_prefect.state = state
        codes.append(watch.run_and_follow(fake_prefect.url, "digits-local"))
    assert codes == [1, 0]
