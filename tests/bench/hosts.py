"""One job over hundreds of hosts, through every step: the delay until its end is detected, and the launcher's costs.

`python -m tests.bench.hosts [HOSTS [FILES]]`. The hosts are home folders on this machine behind an ssh that starts the
command here; the launcher is a child process that may hold open 4,096 files. This machine does the work of all hosts
too, so the seconds of each step do not predict a real job's; the launcher's own memory, descriptors and time do.
"""

import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import CommandPlan
from torchyard.model.run import Outcome, Run
from torchyard.steps.collect import collect
from torchyard.steps.preflight import run_checks
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

HOSTS = 300
FILES = 4096
SETTLED_S = 20.0  # of waiting before a host fails
T = TypeVar("T")
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
export HOME="{homes}/$1"; mkdir -p "$HOME"; cd; exec sh -c "$2"
"""
PROFILE = """\
about: a job over many hosts, of which one fails
launcher: baremetal
program: fails.py
nodes: {count}
agent: none
rendezvous: env
deadlines: {{grace: 2s}}
options: {{python: "{python}", supervisor_python: "{python}", hosts: [{hosts}]}}
"""
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("runs", flush=True)
while os.environ["RANK"] != "{last}" or not os.path.exists("{fail_path}"):
    time.sleep(0.05 if os.environ["RANK"] == "{last}" else 3600)
print("RuntimeError: no such planet at", time.time(), flush=True)
os._exit(7)
"""


def main(show: Any, count: int = HOSTS, files: int = FILES) -> None:
    """Measure one run in a child process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, count)
        command = [sys.executable, __file__, "child", name, str(files)]
        env = os.environ | {"TORCHYARD_SSH": f"{folder}/ssh", "TORCHYARD_RUNS": f"{folder}/runs"}
        completed = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        figures = json.loads(completed.stdout.splitlines()[-1])
    title = f"{count} hosts:"
    for step in ("plan", "preflight", "submit", "stop", "collect", "teardown"):
        show(f"{title} {step}", figures[step], None)
    show(f"{title} its end detected, after a host has failed", figures["seen"], 1.0)
    show(f"{title} the launcher's share of a processor while it watches", figures["cpu"], None, "")
    show(f"{title} memory of the launcher at most", figures["rss"], 500, "MB")
    show(f"{title} open files of the launcher at most", figures["files"], files, "")
    print(
        f"  {figures['end']}: {figures['cause']}: {figures['sentence']}; left: {figures['left'] or 'nothing'}",
        flush=True,
    )


def write_inputs(folder: Path, count: int) -> None:
    """Write the fake ssh, and the profile of a job on many hosts."""
    (folder / "ssh").write_text(SSH.format(homes=folder / "homes"))
    (folder / "ssh").chmod(0o755)
    (folder / "fails.py").write_text(PROGRAM.format(last=count - 1, fail_path=folder / "fail"))
    hosts = ", ".join(f"host-{number}" for number in range(count))
    (folder / "many.yaml").write_text(PROFILE.format(count=count, python=sys.executable, hosts=hosts))


# --- the child


def run_child(folder: Path, files: int) -> None:
    """Run the steps one after the other, without Prefect."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    figures: dict[str, Any] = {}
    costs = FileCounter()
    profile = load_profile(str(folder / "many.yaml"))
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / "runs/x"))
    plan = measure_step(figures, "plan", lambda: registry.make_plan(profile, run))
    assert isinstance(plan, CommandPlan)
    try:
        measure_step(figures, "preflight", lambda: run_checks(plan))
        handle = measure_step(figures, "submit", lambda: submit(plan, profile.deadlines))
        outcome = wait_and_fail(figures, plan, partial(wait, handle), folder / "fail")
        collected = measure_step(figures, "collect", lambda: collect(plan, outcome))
        assert collected.failure
        figures |= {"cause": collected.failure.cause, "sentence": collected.failure.sentence}
        figures["end"] = outcome.status.reason
    finally:
        figures["left"] = measure_step(figures, "teardown", lambda: teardown(plan))
    figures |= {"rss": costs.measure_peak_mb(), "files": costs.max_open_files}
    print(json.dumps(figures))


def wait_and_fail(
    figures: dict[str, Any], plan: CommandPlan, wait_for_job: Callable[[], Outcome], fail_path: Path
) -> Outcome:
    """Wait for the job; one host fails `SETTLED_S` after all of them have printed a line."""
    stop_recorder = StopRecorder()
    logging.getLogger().addHandler(stop_recorder)

    def fail() -> None:
        while not all(Path(log).exists() and Path(log).stat().st_size for log in plan.nodes.values()):
            time.sleep(0.5)
        cpu_before = time.process_time()
        time.sleep(SETTLED_S)
        figures["cpu"] = (time.process_time() - cpu_before) / SETTLED_S
        fail_path.touch()

    threading.Thread(target=fail, daemon=True).start()
    outcome = wait_for_job()
    figures["stop"] = time.time() - stop_recorder.stopped_at
    failure_text = Path(list(plan.nodes.values())[-1]).read_text().partition("no such planet at ")[2]
    figures["seen"] = stop_recorder.stopped_at - float(failure_text.split()[0])
    return outcome


class StopRecorder(logging.Handler):
    """Records when the launcher logs that it stops the job."""

    stopped_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if "stopping what still runs" in record.getMessage():
            self.stopped_at = record.created


class FileCounter(threading.Thread):
    """Poll this process's open files, and keep the largest number, until the process exits (daemon thread)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.max_open_files = 0
        self.start()

    def run(self) -> None:
        while True:
            self.max_open_files = max(self.max_open_files, len(os.listdir("/proc/self/fd")))
            time.sleep(0.05)

    def measure_peak_mb(self) -> float:
        """Peak resident memory in MB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_step(figures: dict[str, Any], name: str, operation: Callable[[], T]) -> T:
    """Run the operation, and add its seconds to `figures` even if it raises."""
    started_at = time.perf_counter()
    try:
        return operation()
    finally:
        figures[name] = time.perf_counter() - started_at
        print(name, round(figures[name], 2), file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        from tests.bench.figures import show

        main(show, *map(int, sys.argv[1:]))
