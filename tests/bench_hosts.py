"""One job over hundreds of hosts, through every step: how soon an end is seen, and what the launcher needs.

`python tests/bench_hosts.py [HOSTS [FILES]]`. The hosts are home folders on this machine behind an ssh that starts the
command here; the launcher is a child process that may hold open 4,096 files. This machine does the work of all hosts
too, so the seconds of each step say little about a real job; the launcher's own memory, descriptors and time do.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import CommandPlan
from torchyard.model.run import Outcome, Run
from torchyard.steps.collect import collect
from torchyard.steps.preflight import run_checks
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait

HOSTS, FILES = 300, 4096
SETTLED_S = 20.0  # of watching before a host fails
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
options: {{python: "{python}", keeper_python: "{python}", hosts: [{hosts}]}}
"""
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print("runs", flush=True)
while os.environ["RANK"] != "{last}" or not os.path.exists("{word}"):
    time.sleep(0.05 if os.environ["RANK"] == "{last}" else 3600)
print("RuntimeError: no such planet at", time.time(), flush=True)
os._exit(7)
"""


def main(show: Any, count: int = HOSTS, files: int = FILES) -> None:
    """Measure one run in a child process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay(folder, count)
        command = [sys.executable, __file__, "child", name, str(files)]
        env = {**os.environ, "TORCHYARD_SSH": f"{folder}/ssh", "TORCHYARD_RUNS": f"{folder}/runs"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
        said = json.loads(done.stdout.splitlines()[-1])
    head = f"{count} hosts:"
    for step in ("plan", "preflight", "submit", "stop", "collect", "teardown"):
        show(f"{head} {step}", said[step], None)
    show(f"{head} its end seen, after a host has failed", said["seen"], 1.0)
    show(f"{head} the launcher's share of a processor while it watches", said["cpu"], None, "")
    show(f"{head} memory of the launcher at most", said["rss"], 500, "MB")
    show(f"{head} open files of the launcher at most", said["files"], files, "")
    print(f"  {said['end']}: {said['cause']}: {said['sentence']}; left: {said['left'] or 'nothing'}", flush=True)


def lay(folder: Path, count: int) -> None:
    """Write the fake ssh, and the profile of a job on many hosts."""
    (folder / "ssh").write_text(SSH.format(homes=folder / "homes"))
    (folder / "ssh").chmod(0o755)
    (folder / "fails.py").write_text(PROGRAM.format(last=count - 1, word=folder / "fail"))
    hosts = ", ".join(f"host-{number}" for number in range(count))
    (folder / "many.yaml").write_text(PROFILE.format(count=count, python=sys.executable, hosts=hosts))


# --- the child


def child(folder: Path, files: int) -> None:
    """Run the steps one after the other, without Prefect."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    said: dict[str, Any] = {}
    costs = Costs()
    profile = load_profile(str(folder / "many.yaml"))
    run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(folder / "runs/x"))
    plan = timed(said, "plan", lambda: registry.load_launcher("baremetal").plan(profile, run))
    assert isinstance(plan, CommandPlan)
    try:
        timed(said, "preflight", lambda: run_checks(plan))
        handle = timed(said, "submit", lambda: submit(plan, profile.deadlines))
        outcome = watched(said, plan, partial(wait, handle), folder / "fail")
        collected = timed(said, "collect", lambda: collect(plan, outcome, "none"))
        assert collected.failure
        said |= {"cause": collected.failure.cause, "sentence": collected.failure.sentence}
        said["end"] = outcome.status.reason
    finally:
        said["left"] = timed(said, "teardown", lambda: teardown(plan))
    said |= {"rss": costs.rss(), "files": costs.files}
    print(json.dumps(said))


def watched(said: dict[str, Any], plan: CommandPlan, work: Callable[[], Outcome], word: Path) -> Outcome:
    """Wait for the job; one host fails once all of them run and have been watched for a while."""
    seen = Seen()
    logging.getLogger().addHandler(seen)

    def fail() -> None:
        while not all(Path(log).exists() and Path(log).stat().st_size for log in plan.nodes.values()):
            time.sleep(0.5)
        before = time.process_time()
        time.sleep(SETTLED_S)
        said["cpu"] = (time.process_time() - before) / SETTLED_S
        word.touch()

    threading.Thread(target=fail, daemon=True).start()
    outcome = work()
    said["stop"] = time.time() - seen.at
    at = Path(list(plan.nodes.values())[-1]).read_text().partition("no such planet at ")[2]
    said["seen"] = seen.at - float(at.split()[0])
    return outcome


class Seen(logging.Handler):
    """Records when the launcher logs that it stops the job."""

    at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if "stopping what still runs" in record.getMessage():
            self.at = record.created


class Costs(threading.Thread):
    """Polls for the largest number of open files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.files = 0
        self.start()

    def run(self) -> None:
        while True:
            self.files = max(self.files, len(os.listdir("/proc/self/fd")))
            time.sleep(0.05)

    def rss(self) -> float:
        """Peak resident memory in MB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(said: dict[str, Any], name: str, work: Callable[[], T]) -> T:
    began = time.perf_counter()
    try:
        return work()
    finally:
        said[name] = time.perf_counter() - began
        print(name, round(said[name], 2), file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        from tests.bench import show as shown

        main(shown, *map(int, sys.argv[1:]))
