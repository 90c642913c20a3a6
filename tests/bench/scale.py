"""How torchyard's own costs grow: a thousand pods, gigabytes of logs, half a million rows. No cluster is needed.

`python -m tests.bench.scale [MB]`. Reading a log is compared with a bare pass that counts the lines of the same file.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.memory import read_memory_mib
from torchyard.common.project_root import ROOT
from torchyard.diagnosis.no_progress import ClusterContext, explain_no_progress
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.metrics.registry import READERS
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Observation, Outcome, Run, State, Status
from torchyard.steps.collect import collect

PODS = 1000
WARNINGS = 1000
TICKS = 5
MB = 1e6
BLOCK = 1 << 20
LOG_MB = 200
ROWS = 500_000
EXPLAIN_MS = 50
STATUS_MS = 20
COLLECT_RATE = 100  # MB/s
READER_RATE = 30  # MB/s
MEMORY_MIB = 64
NCCL_RATE = 100  # MB/s: 1 GB in 10 s
PROFILES = {"volcano": "Job", "pytorchjob": "PyTorchJob", "jobset": "JobSet", "appwrapper": "AppWrapper"}
PROFILE = "about: many pods\nlauncher: {}\nimage: none:1\nprogram: /none.py\nnodes: {}\nresources: {{gpus: 8}}\n"
RANK_LINE = "INFO api.py:5]   group_rank=0"
PREFIX = "2026-11-21T08:00:47.123Z node-0 | "
LOSS_ROW = '{{"step": {0}, "steps": 500000, "loss": 0.123456, "images_per_s": 512.25, "lr": 0.001}}'
NCCL_TESTS_ROW = (
    "  134217728     33554432     float     sum      -1   746.2  179.88  356.01      0   744.9  180.18  356.6      0"
)
NOISE = (
    "[default0]:INFO 2026-11-21 08:00:47,123 trainer.py:118 loading shard 17 of 512 from /data/train/part-00017",
    "[default1]:epoch 3 of 100, step 1200, loss 0.1234, 512 images/s, learning rate 0.001",
    "[default0]:host-12:4242:4301 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "[default0]: 50%|#####     | 1200/2400 [00:12<00:12, 98.12it/s]",
)
LINES: dict[MetricsFormat, str] = {
    "json-lines": "[default0]:" + LOSS_ROW,
    "yolov5": "[default0]:   {0}/499999      13.5G    0.1168   0.03311       0.1       191       640: 100%|####| 9/9",
    "mnist": "[default0]:Train Epoch: {0} [640/60000 (1%)]\tloss=2.3100",
    "allreduce-bench": "[default0]:|   {0}KiB |   0.92GBps |   0.48GBps |",
    "nccl-tests": "[default0]:" + NCCL_TESTS_ROW,
}
HEADERS: dict[MetricsFormat, tuple[str, ...]] = {
    "nccl-tests": (
        "# all_reduce_perf -b 128M -e 128M -n 1000000",
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
    )
}
ObservedJob = tuple[Observation, ClusterContext]


def main(show: Any, size: int = LOG_MB) -> None:
    """Measure a job of many generated pods, and generated logs, each read by a separate process."""
    with tempfile.TemporaryDirectory() as name:
        measure_pods(show, Path(name))
        measure_logs(show, Path(name), size)


# --- the states of many pods


class Case(NamedTuple):
    """The status of all pods, and the reason and message of the warnings about them."""

    pod: dict[str, Any]
    warning: tuple[str, str]


def build_condition(kind: str, status: str, **fields: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-11-21T08:00:47Z"} | fields


def build_status(state: dict[str, Any], phase: str = "Pending") -> dict[str, Any]:
    """The status of a pod on a node whose container is in this state."""
    ready = build_condition("Ready", "True" if phase == "Running" else "False", reason="ContainersNotReady")
    containers = [{"name": "worker", "restartCount": 0, "state": state, "image": "none:1"}]
    conditions = [build_condition("PodScheduled", "True"), build_condition("Initialized", "True"), ready]
    return {"phase": phase, "conditions": conditions, "containerStatuses": containers}


def build_waiting_status(reason: str, message: str = "") -> dict[str, Any]:
    return build_status({"waiting": {"reason": reason, "message": message}})


NO_NODE = "0/1000 nodes are available: 1000 Insufficient nvidia.com/gpu. preemption: not eligible"
RUNNING = build_status({"running": {"startedAt": "2026-11-21T08:00:47Z"}}, "Running")
CASES = {
    "no node for any": Case(
        {
            "phase": "Pending",
            "conditions": [build_condition("PodScheduled", "False", reason="Unschedulable", message=NO_NODE)],
        },
        ("FailedScheduling", NO_NODE),
    ),
    "a volume is missing": Case(
        build_waiting_status("ContainerCreating"), ("FailedMount", 'MountVolume.SetUp failed: secret "a" not found')
    ),
    "no image": Case(
        build_waiting_status("ImagePullBackOff", "Back-off pulling image"), ("Failed", "Error: ImagePullBackOff")
    ),
    "all run": Case(RUNNING, ("BackOff", "Back-off restarting failed container")),
}


def measure_pods(show: Any, folder: Path) -> None:
    """The time of one tick of `wait`, in the worst case of each launcher."""
    print(f"{PODS} pods and {WARNINGS} warnings, the worst of {', '.join(CASES)}", flush=True)
    for launcher, kind in PROFILES.items():
        path = folder / f"{launcher}.yaml"
        path.write_text(PROFILE.format(launcher, PODS))
        module = registry.load_launcher(launcher)
        run = Run(id="0" * 32, attempt=1, folder=str(folder))
        plan = registry.make_plan(load_profile(str(path)), run)
        assert isinstance(plan, ManifestPlan)
        cases = [build_observation(plan, kind, case) for case in CASES.values()]
        explain_times = [measure_median_s(partial(explain_no_progress, plan, *case)) for case in cases]
        status_times = [measure_median_s(partial(module.read_status, case[0])) for case in cases]
        show(f"{launcher}: explain", 1000 * max(explain_times), EXPLAIN_MS, "ms")
        show(f"{launcher}: read_status", 1000 * max(status_times), STATUS_MS, "ms")


def build_observation(plan: ManifestPlan, kind: str, case: Case) -> ObservedJob:
    """All pods in one state except one that runs, so that the job has not ended, and warnings about them."""
    suffix = "-x2x4z" if plan.has_random_suffix else ""
    names = [f"{plan.job}-{node}{suffix}" for node in plan.nodes]
    objects: dict[str, Any] = {f"{kind}/{plan.job}": plan.main | {"status": {"state": {"phase": "Pending"}}}}
    for name in names:
        meta = {"name": name, "uid": name, "labels": plan.labels, "annotations": {"a": "b"}}
        spec = {"nodeName": "node-1", "restartPolicy": "Never", "containers": [{"name": "worker"}]}
        status = RUNNING if name == names[0] else case.pod
        objects[f"Pod/{plan.node(name)}"] = json.loads(json.dumps({"metadata": meta, "spec": spec, "status": status}))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    events = [
        {
            "involvedObject": {"kind": "Pod", "name": names[index % len(names)], "uid": names[index % len(names)]},
            "reason": case.warning[0],
            "message": case.warning[1],
            "firstTimestamp": now,
            "lastTimestamp": now,
        }
        for index in range(WARNINGS)
    ]
    return Observation(objects, frozenset(plan.nodes), time.time()), ClusterContext(events)


def measure_median_s(operation: Callable[[], object]) -> float:
    """The median CPU seconds of the work."""
    return statistics.median(measure_cpu_s(operation) for _ in range(TICKS))


def measure_cpu_s(operation: Callable[[], object]) -> float:
    started_at = time.process_time()
    operation()
    return time.process_time() - started_at


# --- logs


def measure_logs(show: Any, folder: Path, size: int) -> None:
    """`collect` of a failed job with a noisy log, and each format in a log where one line in five is a row of it."""
    log = folder / "pod.log"
    fill_file(log, size, repeat_lines(PREFIX + noise for noise in NOISE))
    print(f"logs of {size} MB, compared with a bare count of their lines", flush=True)
    for format in ("none", "json-lines"):
        report(show, f"collect of a failed job, metrics {format}", log, ReadTask(COLLECT_RATE, "failed", format))
    fill_file(log, size, nccl_lines())
    report(show, "collect, every line of NCCL", log, ReadTask(NCCL_RATE, "collect", "none"))
    for reader, line in LINES.items():
        headers = HEADERS.get(reader, ())
        fill_file(
            log,
            size // 4,
            itertools.chain((f"{PREFIX}[default0]:{header}" for header in headers), mix_with_noise(line)),
        )
        report(show, f"collect, {reader}, a row in five lines", log, ReadTask(None, "collect", reader))
        row_format = line.partition("]:")[2]
        fill_file(
            log,
            size // 4,
            itertools.chain(headers, (row_line.removeprefix(PREFIX) for row_line in mix_with_noise(row_format))),
        )
        report(show, f"the reader of {reader}, a row in five lines", log, ReadTask(READER_RATE, "read", reader))
        fill_file(log, size // 4, itertools.chain(headers, (row_format.format(number) for number in range(1 << 40))))
        report(show, f"the reader of {reader}, every line a row", log, ReadTask(None, "read", reader))
    fill_file(log, 1 << 30, (PREFIX + LINES["json-lines"].format(number) for number in range(ROWS)))
    figures = run_in_child("collect", str(log), "json-lines")
    show(f"{ROWS:,} rows: memory in addition to that of the start", figures["mib"], MEMORY_MIB, "MiB")
    show(f"{ROWS:,} rows: their size in report.json", figures["report_bytes"] / 1000, 500, "kB")


class ReadTask(NamedTuple):
    """What to do with a log ("collect", "failed" or "read"), and the MB/s that it must reach, if there is a target."""

    minimum: float | None
    action: str
    format: MetricsFormat


def report(show: Any, label: str, log: Path, task: ReadTask) -> None:
    """Run a task in a child process, and show its rate and memory."""
    from tests.bench.figures import show_rate

    size = log.stat().st_size / MB
    bare_s = measure_median_s(partial(count_lines, log))
    figures = run_in_child(task.action, str(log), task.format)
    show_rate(label, size / figures["s"], task.minimum, f"  ({figures['s'] / bare_s:.0f} x the bare count)")
    show("    memory in addition to that of the start", figures["mib"], MEMORY_MIB, "MiB")


def repeat_lines(lines: Iterable[str]) -> Iterator[str]:
    yield from itertools.cycle(lines)


def nccl_lines() -> Iterator[str]:
    """Channels of a node with many communicators: most lines repeat what an earlier line reports."""
    for number in range(1 << 40):
        rank = number % 128
        peer = (number + 8) % 128
        hca = number * 7 % 8
        transport = (f"NET/IB/{hca}/GDRDMA", f"NET/IB/{hca}({rank})/GDRDMA", "P2P/CUMEM/read", "SHM/direct/direct")[
            number % 4
        ]
        message = f"Channel {number % 32:02d}/0 : {rank}[{rank % 8}] -> {peer}[{peer % 8}] [send] via {transport}"
        yield f"{PREFIX}[default{rank % 8}]:gpu-0:{4000 + rank}:{4100 + rank} [{rank % 8}] NCCL INFO {message}"


def mix_with_noise(line: str) -> Iterator[str]:
    """Yield a row of the format, then the four noise lines, repeatedly."""
    for number in range(1 << 40):
        yield PREFIX + line.format(number)
        yield from (PREFIX + noise for noise in NOISE)


def fill_file(path: Path, size: float, lines: Iterable[str]) -> None:
    """Write lines to a file until `size` MB or their end; its node has group rank 0."""
    with path.open("wb") as file:
        file.write((PREFIX + RANK_LINE + "\n").encode())
        for line in lines:
            if file.tell() > size * MB:
                break
            file.write(line.encode() + b"\n")


def count_lines(path: Path) -> int:
    """The number of lines in a file, as `wc -l` counts them."""
    with path.open("rb", buffering=0) as file:
        return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, BLOCK), b""))


def run_in_child(*argv: str) -> dict[str, float]:
    command = [sys.executable, __file__, "child", *argv]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=os.environ.get("BENCH_ROOT", ROOT))
    figures: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def run_child(action: str, path: str, format: MetricsFormat) -> None:
    """Read one log; print the seconds, the memory in addition to that of the start, and the rows, as JSON."""
    profile = Path(path).with_suffix(".yaml")
    profile.write_text(PROFILE.format("volcano", 1))
    plan = registry.make_plan(load_profile(str(profile)), Run(id="0" * 32, attempt=1, folder=path + ".d"))
    (log,) = plan.nodes.values()
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    Path(log).unlink(missing_ok=True)
    Path(log).symlink_to(path)
    state: State = "failed" if action == "failed" else "succeeded"
    outcome = Outcome(status=Status(state=state, reason=""), exit_codes={"worker-0": 1})
    rss_before = read_memory_mib("VmRSS")
    started_at = time.process_time()
    if action == "read":
        with open(path) as file:
            metrics = READERS[format](line.rstrip("\n") for line in file)
    else:
        metrics = collect(plan.model_copy(update={"metrics": format}), outcome).metrics
    duration_s = time.process_time() - started_at
    report_bytes = len(metrics.model_dump_json())
    print(
        json.dumps(
            {
                "s": duration_s,
                "mib": read_memory_mib("VmHWM") - rss_before,
                "rows": len(metrics.rows),
                "report_bytes": report_bytes,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child(sys.argv[2], sys.argv[3], sys.argv[4])  # type: ignore[arg-type]
    else:
        from tests.bench.figures import show

        main(show, *map(int, sys.argv[1:]))
