"""`make bench`: what torchyard costs compared with bare torchrun, measured side by side in one run.

Every figure is a median over pairs, because machines are noisy; a target is a value that the project promises.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench import cluster, hosts, logs, many_runs, pods, queued_runs, run_cost, scale
from tests.bench.figures import show
from tests.support.caller import forget_caller
from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import CommandPlan
from torchyard.model.run import Run
from torchyard.steps.collect import collect
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

PAIRS = 9
PLANNED_PROFILES = (
    "digits-local",
    "mnist-baremetal",
    "yolov5-volcano",
    "mnist-2x4",
    "yolov5-jobset",
    "fms-vela",
    "pi-runai",
)
EMPTY_PROFILE = "about: nothing\nlauncher: baremetal\nprogram: nothing.py\nnodes: 2\n"
FAILING_PROFILE = "about: rank 1 exits with 7\nlauncher: baremetal\nprogram: dies.py\nnodes: 2\n"
FAILING_PROGRAM = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(1); print("dies at", time.time(), flush=True); os._exit(7)
time.sleep(60)
"""


def main() -> None:
    forget_caller()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCHYARD_RUNS"] = str(folder / "runs")
        (folder / "nothing.py").write_text("")
        (folder / "nothing.yaml").write_text(EMPTY_PROFILE)
        (folder / "dies.py").write_text(FAILING_PROGRAM)
        (folder / "dies.yaml").write_text(FAILING_PROFILE)
        measure_pipeline(folder)
        measure_plan()
        measure_plan_ratio()
        measure_prefect_start()
        measure_fail_fast(folder)
    print("many runs on one worker", flush=True)
    queued_runs.main(show)
    scale.main(show)
    print("a job over many hosts", flush=True)
    hosts.main(show)
    print("jobs in a cluster, of fake pods", flush=True)
    cluster.main(show)
    print("one job of many pods, through the whole line", flush=True)
    pods.main(show)
    print("what a run costs, by the number of its pods", flush=True)
    run_cost.main(show)
    print("many runs in one process", flush=True)
    many_runs.main(show)
    print("the logs of many pods", flush=True)
    logs.main(show)


def measure_seconds(operation: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    operation()
    return time.perf_counter() - started_at


def measure_pipeline(folder: Path) -> None:
    """Time the steps of a run, `torchyard run`, and two bare agents, in turn.

    The bare agents get the same command, without torchrun's options for copies of its output.
    """
    print(f"a job of two agents that do nothing, {PAIRS} times in turn", flush=True)
    bare_times = []
    step_times = []
    cli_times = []
    end_delays = []
    command = [str(Path(sys.executable).parent / "torchyard"), "run", str(folder / "nothing.yaml")]
    for number in range(PAIRS):
        bare_times.append(measure_seconds(partial(run_bare_agents, folder, f"bare-{number}")))
        duration_s, end_delay_s = run_steps(folder, f"{number:012x}")
        step_times.append(duration_s)
        end_delays.append(end_delay_s)
        cli_times.append(measure_seconds(partial(run_command, command)))
    differences = [step_time - bare_time for step_time, bare_time in zip(step_times, bare_times, strict=True)]
    added = [cli_time - bare_time for cli_time, bare_time in zip(cli_times, bare_times, strict=True)]
    show("two bare torchrun agents, median", statistics.median(bare_times), None)
    show("submit, wait, collect, teardown, median", statistics.median(step_times), None)
    show("difference, median of the pairs", statistics.median(differences), 0.5)
    show("`torchyard run` as a whole process, median", statistics.median(cli_times), None)
    show("its difference from the bare agents, median of the pairs", statistics.median(added), 0.6)
    show("end seen after the last agent's exit, median", statistics.median(end_delays), 0.2)
    show("end seen after the last agent's exit, worst", max(end_delays), None)


def run_bare_agents(folder: Path, name: str) -> None:
    """Run two torchrun agents alone, until both have ended."""
    plan = registry.make_plan(load_profile(str(folder / "nothing.yaml")), Run(id=name, attempt=1, folder=name))
    assert isinstance(plan, CommandPlan)
    agents = []
    for process in plan.processes:
        assert process.spec
        argv = [arg for arg in process.spec["argv"] if not arg.startswith(("--tee", "--log_dir"))]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        agents.append(subprocess.Popen(argv, env=os.environ | process.spec["env"], **streams))  # type: ignore[call-overload]
    for agent in agents:
        assert agent.wait() == 0


def run_steps(folder: Path, name: str) -> tuple[float, float]:
    """Run the steps alone, without Prefect; return their seconds, and those until the end was detected."""
    profile = load_profile(str(folder / "nothing.yaml"))
    started_at = time.perf_counter()
    plan = registry.make_plan(profile, Run(id=name, attempt=1, folder=str(folder / name)))
    outcome = wait(submit(plan, profile.deadlines))
    end_delay_s = time.time() - (outcome.ended_at or 0)
    collect(plan, outcome)
    assert teardown(plan) == ()
    assert outcome.status.state == "succeeded"
    return time.perf_counter() - started_at, end_delay_s


def measure_plan() -> None:
    """`torchyard plan`, as a process and as a call, for small and large jobs."""
    for name in PLANNED_PROFILES:
        print(f"torchyard plan {name}", flush=True)
        command = [str(Path(sys.executable).parent / "torchyard"), "plan", name]
        show(
            "as a process, median of 15",
            statistics.median(measure_seconds(partial(run_command, command)) for _ in range(15)),
            0.2,
        )
        for nodes in (2, 64, 256) if name.startswith("yolov5") else (2,):
            durations_s = [measure_seconds(partial(plan_once, name, nodes)) for _ in range(200)]
            show(
                f"in process, profile read and planned, {nodes} nodes", 1000 * statistics.median(durations_s), 1.5, "ms"
            )


def measure_plan_ratio() -> None:
    """The CPU time of `torchyard plan`, in units of an interpreter that imports yaml and builds one pydantic model."""
    imports = [sys.executable, "-c", "import yaml, pydantic; pydantic.create_model('Model', number=(int, 0))()"]
    command = [str(Path(sys.executable).parent / "torchyard"), "plan", PLANNED_PROFILES[0]]
    ratios = [measure_cpu_s(command) / measure_cpu_s(imports) for _ in range(15)]
    show("CPU of `plan` / CPU of yaml and one pydantic model, median of 15", statistics.median(ratios), 1.6, "")


def measure_cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_command(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plan_once(name: str, nodes: int) -> None:
    profile = load_profile(name, {"nodes": nodes})
    registry.make_plan(profile, Run(id="x", attempt=1, folder="/x"))


def run_command(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)


def measure_prefect_start() -> None:
    print("the start of Prefect itself", flush=True)
    show(
        "python -c 'pass', median of 5",
        statistics.median(measure_seconds(lambda: run_command([sys.executable, "-c", ""])) for _ in range(5)),
        None,
    )
    load = [sys.executable, "-c", "import flows.train"]
    show(
        "import of the flow, most of it Prefect, median of 5",
        statistics.median(measure_seconds(lambda: run_command(load)) for _ in range(5)),
        None,
    )


def measure_fail_fast(folder: Path) -> None:
    """Time from the exit of rank 1 to the state Failed on a Prefect API, while rank 0 sleeps for a minute."""
    from prefect.testing.utilities import prefect_test_harness

    from flows.train import train
    from torchyard.run.folder import list_run_folders

    with prefect_test_harness():
        delays_s = []
        for _ in range(3):
            state = train(str(folder / "dies.yaml"), return_state=True)
            last_run = max(list_run_folders(), key=lambda run_folder: (run_folder.path / "lease").stat().st_mtime)
            logs = "".join(log.read_text() for log in last_run.path.glob("*/node-*/log"))
            died_at = float(logs.partition("dies at ")[2].split()[0])
            assert state.is_failed()
            assert "Rank 1" in str(state.message)
            assert "7" in str(state.message)
            delays_s.append(state.timestamp.timestamp() - died_at)
    print("rank 1 exits with 7 while rank 0 sleeps", flush=True)
    show("from its death to the flow run's Failed, worst of 3", max(delays_s), 2.0)


if __name__ == "__main__":
    main()
