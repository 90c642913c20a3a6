"""The cost of attaching to a job that already has a large log: memory, and how long `wait` is blocked.

`python -m tests.bench.attach [MIB]`. The wait is a child process; its job has one node on this machine.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.memory import read_memory_mib
from tests.doubles.job_events import take_rows
from tests.doubles.scripted_hosts import build_host_script
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import load_profile
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines, MetricsPattern
from torchyard.model.run import Handle, Row, Run

MIB = 200
LINE = "%s node-0 | [default0]:epoch 3 of 100, loss 0.1234, 512 images/s: step %d\n"
JOINED_LINE = "%s node-0 | I Rendezvous complete for workers. group_rank=0\n"
CODE = """
state(started=1)
while not os.path.exists("over"):
    time.sleep(0.1)
state("exited", exit=0, ended=1)
"""


def main(show: Any, mib: int = MIB) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "bench.py").write_text("")
        (Path(name) / "bench.yaml").write_text("about: a bench\nlauncher: baremetal\nprogram: bench.py\n")
        costs = measure_attach(Path(name), mib)
    show(f"attach to {mib} MiB of log: additional memory", costs["mib"], 40, "MiB")
    show("the longest pause of `wait`", costs["slowest"], 1.0, "s")
    show("seconds until the whole log was read", costs["seconds"], None, "s")


def measure_attach(folder: Path, mib: int) -> dict[str, Any]:
    """Measure in a child process; return its memory in MiB, its longest pause and its duration in seconds."""
    command = [sys.executable, __file__, "child", str(folder), str(mib)]
    costs: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    return costs


def run_child(folder: Path, mib: int) -> None:
    """Wait for a job that already has a log, until the last line has arrived."""
    from torchyard.launchers import registry
    from torchyard.steps.wait import wait

    profile = load_profile(str(folder / "bench.yaml"))
    plan = registry.make_plan(profile, Run(id="0" * 32, attempt=1, folder=str(folder / "run")))
    assert isinstance(plan, CommandPlan)
    exit_path = folder / "over"
    (process,) = plan.processes
    process = process.model_copy(update={"script": build_host_script(folder, process.name, CODE)})
    metrics = MetricsPattern(pattern="step (?P<step>[0-9]+)$")
    plan = plan.model_copy(update={"processes": (process,), "metrics": metrics})
    last_step = write_log(Path(plan.processes[0].log), mib << 20)
    rss_before = read_memory_mib("VmHWM")
    started_at = time.monotonic()
    poll_times = [time.monotonic()]

    def on_poll(rows: tuple[Row, ...]) -> None:
        poll_times.append(time.monotonic())
        if rows and rows[-1]["step"] == last_step:
            exit_path.touch()

    handle = Handle(plan=plan, deadlines=Deadlines(), created=False, submitted_at=time.time() - 4000, age_s=4000)
    outcome = wait(handle, take_rows(on_poll))
    assert outcome.status.state == "succeeded", outcome
    slowest = max(later - earlier for earlier, later in itertools.pairwise(poll_times))
    costs = {"mib": read_memory_mib("VmHWM") - rss_before, "slowest": slowest, "seconds": time.monotonic() - started_at}
    print(json.dumps(costs))


def write_log(path: Path, size: int) -> int:
    """Write a log of `size` bytes or a little more; return the number of its last line."""
    path.parent.mkdir(parents=True)
    next_step = 0
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    with path.open("w") as file:
        file.write(JOINED_LINE % now)
        while file.tell() < size:
            file.write("".join(LINE % (now, step) for step in range(next_step, next_step + 10_000)))
            next_step += 10_000
    return next_step - 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        from tests.bench.figures import show

        main(show, *map(int, sys.argv[1:]))
