"""A power cut kills server, worker, flow, watchdog, supervisors and agents; then server and worker are restarted."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.world import World, find_processes, kill_all, wait_until
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder

TICK = ROOT / "tests" / "programs" / "tick.py"
TIMEOUT_S = 240.0  # on a busy machine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "world")
    with world:
        yield world
    kill_all(f"TORCHYARD_RUNS={world.runs_folders['worker']}")


def cut_power(world: World) -> None:
    """Disable all restarts, and kill every process of the world until none remains."""
    world.closing.set()
    environ_prefixes = (f"PREFECT_HOME={world.folder}/", f"TORCHYARD_RUNS={world.runs_folders['worker']}")
    while find_processes(*environ_prefixes):
        kill_all(*environ_prefixes)


def start_again(world: World) -> str:
    """Start server and worker again as `make up` does; return the message about lost runs."""
    world.start("server")
    wait_until("server", world.is_healthy, TIMEOUT_S)
    environment = world.env | {"TORCHYARD_RUNS": str(world.runs_folders["worker"])}
    command = [sys.executable, "-m", "torchyard.tasks.recovery", "back"]
    output = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    world.start("worker")
    return output


def read_printed_lines(truth: Path, attempt: int) -> list[str]:
    return list(itertools.chain(*(path.read_text().splitlines() for path in truth.glob(f"{attempt}-*"))))


def test_run_continues_after_a_power_cut(world: World, tmp_path: Path) -> None:
    """The run is resumed by itself, continues from its checkpoint in a second attempt, and ends Completed."""
    truth = tmp_path / "truth"
    truth.mkdir()
    profile = tmp_path / "tick.yaml"
    document: dict[str, Any] = {"about": "ticks", "launcher": "baremetal", "program": str(TICK), "nodes": 2}
    document |= {"args": [f"--truth={truth}", "--ticks=150"], "attempts": 2, "metrics": "json-lines"}
    profile.write_text(yaml.safe_dump(document))
    run_id = world.create_run(profile)
    wait_until("training", lambda: len(read_printed_lines(truth, 1)) > 40, TIMEOUT_S)
    cut_power(world)
    restarted_at = time.monotonic()
    assert start_again(world).startswith("resumed 1")
    wait_until("training again", lambda: read_printed_lines(truth, 2), TIMEOUT_S)
    print(f"\ntraining again {time.monotonic() - restarted_at:.0f} s after the start of the server")

    def read_completed_state() -> dict[str, Any] | None:
        state: dict[str, Any] = world.get(f"/flow_runs/{run_id}")["state"]
        return state if state["name"] == "Completed" else None

    state = wait_until("the end", read_completed_state, TIMEOUT_S)
    (folder,) = [RunFolder(path.parent) for path in world.runs_folders["worker"].glob("*/journal")]
    report = folder.report()
    assert report
    assert (state["type"], [attempt.number for attempt in report.attempts], report.leftovers) == (
        "COMPLETED",
        [1, 2],
        (),
    )
    failure = report.attempts[0].collected.failure
    assert failure
    assert (failure.cause, failure.retry) == ("supervisor-killed", True)
    assert '"step": 1,' not in "".join(read_printed_lines(truth, 2))  # it continued from its checkpoint
