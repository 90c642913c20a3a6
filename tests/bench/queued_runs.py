"""Many runs triggered at once on one worker with a limit: their costs, and that none is lost or runs twice.

`python -m tests.bench.queued_runs [RUNS [LIMIT]]`. Each run is a flow process with a program of one line. The exit code
is 1 if a run did not succeed, started more than once, or ran its program more than once.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun

from tests.chaos.world import find_processes, kill_all
from tests.processes.prefect_servers import prefect_server, use_prefect_server
from tests.support.caller import forget_caller
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_run_folders
from torchyard.tasks.recovery import recover_lost_runs

RUNS = 50
LIMIT = 10
END_TIMEOUT_S = 3600.0  # seconds until all runs have ended
POOL = "torchyard"
PROGRAM = """
import os
open(os.environ["TRUTH"] + "/" + os.environ["TORCHYARD_JOB"].replace("/", " "), "a").write("x")
print("done")
"""


def main(show: Any, runs: int = RUNS, limit: int = LIMIT) -> int:
    """Create the runs, wait for their ends, print the figures, and return the number of faults."""
    with tempfile.TemporaryDirectory() as name, prefect_server(Path(name, "prefect")) as server:
        folder = Path(name)
        os.environ["TORCHYARD_RUNS"] = str(folder / "runs")
        (folder / "truth").mkdir()
        with use_prefect_server(server), get_client(sync_client=True) as client, run_worker(folder, server, limit):
            ids = create_runs(client, folder, runs)
            started_at = time.monotonic()
            peak, ended_at, resumed = wait_for_runs(client, ids)
            show(f"{runs} runs at once, {limit} at a time: to the last end", ended_at - started_at, None)
            show(f"{runs} runs at once: a run", (ended_at - started_at) / runs, None)
            show("memory of the worker and its flows, peak", peak["MB"], None, "MB")
            show("memory of a run in progress", peak["MB"] / limit, None, "MB")
            show("runs in progress, peak", peak["live"], None, "")
            show("runs that Prefect's worker lost, and that were resumed", resumed, None, "")
            faults = find_faults(client, folder, ids, over_limit=peak["live"] > limit)
    print("\n".join(faults) or f"no run lost, none started twice: {runs} runs, {runs} programs")
    return len(faults)


@contextlib.contextmanager
def run_worker(folder: Path, server: dict[str, str], limit: int) -> Iterator[None]:
    """A worker that runs at most `limit` flows at a time; they and their programs are killed when the block ends."""
    argv = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", POOL, "--type", "process"]
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    with (folder / "worker.log").open("wb") as log:
        subprocess.Popen(
            [*argv, "--limit", str(limit)],
            env=os.environ | server | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        kill_all(get_process_marker())


def get_process_marker() -> str:
    return f"TORCHYARD_RUNS={os.environ['TORCHYARD_RUNS']}"


def create_runs(client: SyncPrefectClient, folder: Path, runs: int) -> list[UUID]:
    """Create all runs, one request after the other."""
    from flows.train import train

    (folder / "tiny.py").write_text(PROGRAM)
    profile = {"about": "a line", "launcher": "baremetal", "program": "tiny.py", "agent": "none", "rendezvous": "env"}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(profile | {"env": {"TRUTH": str(folder / "truth")}}))
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    deployment_id = client.create_deployment(
        client.create_flow(train),
        name="tiny",
        work_pool_name=POOL,
        entrypoint="flows/train.py:train",
        pull_steps=[step],
    )
    parameters = {"profile": str(folder / "tiny.yaml")}
    return [client.create_flow_run_from_deployment(deployment_id, parameters=parameters).id for _ in range(runs)]


def wait_for_runs(client: SyncPrefectClient, ids: list[UUID]) -> tuple[dict[str, float], float, int]:
    """Wait until all runs have ended; TimeoutError after `END_TIMEOUT_S`.

    Returns the peaks of memory (MB) and of runs in progress, the monotonic time of the last end, and the number of
    runs that were resumed. A busy server on SQLite may refuse a worker that starts a run, which Prefect then marks as
    Crashed; this function then recovers lost runs, as an installation's automation does.
    """
    peak = {"MB": 0.0, "live": 0.0}
    deadline = time.monotonic() + END_TIMEOUT_S
    resumed = 0
    while time.monotonic() < deadline:
        runs = read_runs(client)
        live = sum(run.state_name in ("Pending", "Submitting", "Running") for run in runs)
        peak = {"MB": max(peak["MB"], measure_memory()), "live": max(peak["live"], live)}
        if sum(is_final(run) for run in runs) == len(ids):
            return peak, time.monotonic(), resumed
        if any(run.state_name == "Crashed" for run in runs):
            resumed += len(recover_lost_runs().resumed)
        time.sleep(1)
    raise TimeoutError(f"after {END_TIMEOUT_S:.0f} s: {Counter(run.state_name for run in read_runs(client))}")


def is_final(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final() and run.state_name != "Crashed"


def read_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """All flow runs, a page at a time."""
    runs: list[FlowRun] = []
    while page := client.read_flow_runs(limit=200, offset=len(runs)):
        runs += page
    return runs


def measure_memory() -> float:
    """The memory of the worker, its flows, watchdogs and supervisors in MB; a shared page is counted once."""
    return sum(map(read_share, find_processes(get_process_marker()))) / 1024


def read_share(pid: int) -> int:
    """A process's proportional share of the pages that it uses, in kB; 0 if it has ended."""
    if pid == os.getpid():
        return 0
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def find_faults(client: SyncPrefectClient, folder: Path, ids: list[UUID], *, over_limit: bool) -> list[str]:
    """A sentence for each run that was lost, failed or ran more than once."""
    faults = ["more runs in progress than the worker's limit"] if over_limit else []
    states = {run.id: f"{run.state_name}: {run.state and run.state.message}" for run in read_runs(client)}
    faults += [f"{run}: {states[run]}" for run in ids if not states[run].startswith("Completed")]
    starts: Counter[str] = Counter()
    for run_folder in list_run_folders():
        starts.update(event["run"] for event in run_folder.events() if event["event"] == "start")
    faults += [f"{run} has {starts[str(run)]} starts in its journal" for run in ids if starts[str(run)] != 1]
    programs = [path.read_text() for path in (folder / "truth").iterdir()]
    if programs != ["x"] * len(ids):
        faults.append(f"{len(programs)} programs ran, {sum(len(text) for text in programs)} times, for {len(ids)} runs")
    return faults


if __name__ == "__main__":
    from tests.bench.figures import show

    forget_caller()
    sys.exit(1 if main(show, *map(int, sys.argv[1:])) else 0)
