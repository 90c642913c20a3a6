"""prefect.yaml and the automations, on a real Prefect server."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from scripts import yard
from scripts.api import healthy
from tasks.profile import ROOT

BIN = Path(sys.executable).parent
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with an empty database of its own: the environment that reaches it."""
    port = str(yard.free_port())
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect"))}
    command = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", port]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    yard.until("the server answers", lambda: healthy(environment["PREFECT_API_URL"]), 90)
    yield environment
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def deployed(server: dict[str, str]) -> dict[str, str]:
    """The same, with everything of prefect.yaml deployed as `make up` does it."""
    for words in (["work-pool", "create", "torchyard", "--type", "process"], ["--no-prompt", "deploy", "--all"]):
        subprocess.run([BIN / "prefect", *words], env=server, cwd=ROOT, check=True, capture_output=True)
    return server


def asked(environment: dict[str, str], path: str, body: dict[str, Any]) -> Any:
    return httpx.post(f"{environment['PREFECT_API_URL']}{path}", json=body, timeout=30).raise_for_status().json()


@pytest.mark.parametrize("entrypoint", sorted({each["entrypoint"] for each in DEPLOYMENTS}))
def test_entrypoints_import(entrypoint: str) -> None:
    """Prefect deploys a flow that cannot be imported without a word, so we import each."""
    path, _, name = entrypoint.partition(":")
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == name


@pytest.mark.slow
def test_all_deployments_are_registered(deployed: dict[str, str]) -> None:
    """`prefect deploy --all` registers what prefect.yaml names."""
    found = asked(deployed, "/deployments/filter", {})
    assert sorted(each["name"] for each in found) == sorted(each["name"] for each in DEPLOYMENTS)


@pytest.mark.slow
def test_schedules_fire(deployed: dict[str, str]) -> None:
    """The sweep's cron gets scheduled runs: with a newer SQLAlchemy everything else looks well and none is made."""
    deadline = time.monotonic() + 60
    runs: list[Any] = []
    while not runs and time.monotonic() < deadline:
        time.sleep(0.5)
        runs = asked(deployed, "/flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}})
    assert runs


@pytest.mark.slow
def test_automations_are_made_once(server: dict[str, str]) -> None:
    """Making the automations again leaves the first ones: new ones would not know the runs that are lost by now."""
    seen = []
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "scripts.automations"], env=server, cwd=ROOT, check=True)
        seen.append({each["name"]: each["id"] for each in asked(server, "/automations/filter", {})})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3


def test_used_process_id_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living process that began at another time than the one written down is not ours to stop."""
    monkeypatch.setattr(yard, "STARTED", tmp_path / "started.json")
    born = yard.born(os.getpid())
    (tmp_path / "started.json").write_text(
        f'{{"worker": {{"pid": {os.getpid()}, "born": "1"}}, "server": {{"pid": {os.getpid()}, "born": "{born}"}}}}'
    )
    assert list(yard.started()) == ["server"]


def test_server_that_does_not_answer_is_one_sentence() -> None:
    """A PREFECT_API_URL with nobody behind it is told, and nothing is started."""
    command = [sys.executable, str(ROOT / "scripts" / "yard.py"), "train", "digits-local"]
    environment = {**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{yard.free_port()}/api"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("no Prefect API answers at http://127.0.0.1:")
    assert "Traceback" not in done.stderr


def test_unknown_profile_is_told_before_anything_starts() -> None:
    """`make train PROFILE=digits-locl` names the nearest profile and starts no server."""
    command = [sys.executable, str(ROOT / "scripts" / "yard.py"), "train", "digits-locl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean digits-local?" in done.stderr
