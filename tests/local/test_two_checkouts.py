"""Two checkouts, as on two machines, share one Prefect server, each under its own name."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from tests.processes.prefect_servers import prefect_server, use_prefect_server
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT

COPIED_NAMES = ("flows", "tasks", "torchyard", "profiles", "programs", "scripts", "prefect.yaml", "prefect.toml")
# prefect.yaml has a form for each profile; these few are sufficient, and deployed three times as fast.
KEPT_DEPLOYMENTS = ("digits-local", "any-profile", "lost", "crashed")


class Checkout(NamedTuple):
    """A folder with a copy of the project's code, its own runs folder, and the name of its installation (`pool`)."""

    path: Path
    pool: str
    server: dict[str, str]

    @property
    def runs(self) -> Path:
        return self.path.parent / f"{self.path.name}-runs"

    def yard(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run scripts/yard.py as `make up`, `make train` or `make down` does in this checkout."""
        overrides = {"TORCHYARD_RUNS": str(self.runs), "TORCHYARD_POOL": self.pool, "PYTHONPATH": str(self.path)}
        command = [sys.executable, str(self.path / "scripts" / "yard.py"), *args]
        environment = os.environ | self.server | overrides
        return subprocess.run(
            command, env=environment, cwd=self.path, capture_output=True, text=True, check=False, timeout=240
        )

    def has_worker(self) -> bool:
        """Whether the process that keeps this checkout's worker running is alive."""
        command_line = f"{self.path}/scripts/yard.py\0tend".encode()
        return any(command_line in _read_command_line(pid) for pid in os.listdir("/proc") if pid.isdigit())


def _read_command_line(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[list[Checkout]]:
    """Two checkouts: one with the default name, and one with the name `team-b`."""
    base = tmp_path_factory.mktemp("checkouts")
    checkouts = [Checkout(base / name, pool, server) for name, pool in (("ada", "torchyard"), ("ben", "team-b"))]
    for checkout in checkouts:
        _copy_code(checkout.path)
    yield checkouts
    for checkout in checkouts:
        checkout.yard("down")


def _copy_code(path: Path) -> None:
    path.mkdir()
    for name in COPIED_NAMES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, path / name)
    text = (path / "prefect.yaml").read_text()
    header, *entries = re.split(r"(?m)^(?=  - )", text[text.index("deployments:") :])
    kept_entries = [
        entry for entry in entries if any(re.search(rf"\bname: {name}\n", entry) for name in KEPT_DEPLOYMENTS)
    ]
    (path / "prefect.yaml").write_text(text[: text.index("deployments:")] + header + "".join(kept_entries))


@pytest.fixture
def prefect_client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with use_prefect_server(server), get_client(sync_client=True) as client:
        yield client


def test_each_checkout_runs_its_own_runs(checkouts: list[Checkout], prefect_client: SyncPrefectClient) -> None:
    """Each checkout's worker takes that checkout's run, with its code; `make down` in one does not affect the other."""
    ada, ben = checkouts
    with ThreadPoolExecutor() as executor:
        processes = list(executor.map(lambda checkout: checkout.yard("train", "digits-local"), checkouts))
    outputs = "\n".join(process.stdout + process.stderr for process in processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    runs = {
        str(run.work_pool_name): run for run in prefect_client.read_flow_runs() if _read_deployment(prefect_client, run)
    }
    assert {pool: _read_deployment(prefect_client, run) for pool, run in runs.items()} == {
        "torchyard": "digits-local",
        "team-b": "digits-local@team-b",
    }
    for checkout in checkouts:
        (folder,) = checkout.runs.glob("digits-local-*")
        assert folder.name.endswith(runs[checkout.pool].id.hex[-8:])
        assert f"{checkout.path}/programs/digits.py" in (folder / "attempt-1" / "plan.json").read_text()
    _check_automations(prefect_client)
    ada.yard("down")
    assert (ada.has_worker(), ben.has_worker()) == (False, True)
    assert _finish_run(prefect_client, "train/digits-local@team-b").is_completed()


def _read_deployment(prefect_client: SyncPrefectClient, run: FlowRun) -> str:
    name = prefect_client.read_deployment(run.deployment_id).name if run.deployment_id else ""
    return name if name.startswith("digits") else ""


def _check_automations(prefect_client: SyncPrefectClient) -> None:
    """Check that each installation has three automations, which watch only its work pool."""
    pools = []
    for automation in prefect_client.read_automations():
        trigger: Any = automation.trigger
        installation, _ = automation.name.split(": ")
        (watched_pool,) = trigger.match_related[1]["prefect.resource.name"]
        pools.append((installation, watched_pool))
    assert sorted(pools) == [("team-b", "team-b")] * 3 + [("torchyard", "torchyard")] * 3


def _finish_run(prefect_client: SyncPrefectClient, deployment: str) -> Any:
    """Create a dry run of a deployment, and return its final state."""
    entry = prefect_client.read_deployment_by_name(deployment)
    run = prefect_client.create_flow_run_from_deployment(entry.id, parameters=entry.parameters | {"dry_run": True})

    def read_final_state() -> Any:
        state = prefect_client.read_flow_run(run.id).state
        return state if state and state.is_final() else None

    return wait_until(read_final_state)


def test_checkout_with_a_used_name_is_refused(checkouts: list[Checkout], prefect_client: SyncPrefectClient) -> None:
    """A third checkout with a name in use starts nothing, and the error contains the option for another name."""
    third_checkout = Checkout(checkouts[0].path.parent / "eve", "team-b", checkouts[0].server)
    shutil.copytree(checkouts[1].path, third_checkout.path, ignore=shutil.ignore_patterns(".prefect"))
    completed = third_checkout.yard("up")
    assert completed.returncode == 1
    assert f"belong to {checkouts[1].path}" in completed.stderr
    assert "make up POOL=" in completed.stderr
    assert not third_checkout.has_worker()


def test_name_of_a_running_worker_cannot_be_changed(
    checkouts: list[Checkout], prefect_client: SyncPrefectClient
) -> None:
    """`make up` with another name than that of the running worker is refused before anything is deployed."""
    completed = checkouts[1]._replace(pool="team-c").yard("up")
    assert (completed.returncode, "serves the work pool team-b, not team-c: add POOL=team-b" in completed.stderr) == (
        1,
        True,
    )
    assert not [work_pool.name for work_pool in prefect_client.read_work_pools() if work_pool.name == "team-c"]
