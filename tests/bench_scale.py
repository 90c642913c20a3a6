"""How torchyard's own work grows: a thousand pods, gigabytes of logs, half a million rows. It needs no cluster.

`python tests/bench_scale.py [MB]`. Reading a log is compared with a bare pass that counts the lines of the same file.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torchyard.common.project_root import ROOT
from torchyard.diagnosis.no_progress import ClusterContext, explain_no_progress
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.metrics.registry import READERS
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Observation, Outcome, Run, State, Status
from torchyard.steps.collect import collect

PODS, WARNINGS, TICKS = 1000, 1000, 5
MB, BLOCK, LOG_MB, ROWS = 1e6, 1 << 20, 200, 500_000
EXPLAIN_MS, STATUS_MS, COLLECT_RATE, READER_RATE, MEMORY_MIB = 50, 20, 100, 30, 64
NCCL_RATE = 100  # MB/s: 1 GB in 10 s
PROFILES = {"volcano": "Job", "pytorchjob": "PyTorchJob", "jobset": "JobSet", "appwrapper": "AppWrapper"}
PROFILE = "about: many pods\nlauncher: {}\nimage: none:1\nprogram: /none.py\nnodes: {}\nresources: {{gpus: 8}}\n"
RANKED = "INFO api.py:5]   group_rank=0"
STAMP = "2026-11-21T08:00:47.123Z node-0 | "
LOSS = '{{"step": {0}, "steps": 500000, "loss": 0.123456, "images_per_s": 512.25, "lr": 0.001}}'
NCCL = "  134217728     33554432     float     sum      -1   746.2  179.88  356.01      0   744.9  180.18  356.6      0"
NOISE = (
    "[default0]:INFO 2026-11-21 08:00:47,123 trainer.py:118 loading shard 17 of 512 from /data/train/part-00017",
    "[default1]:epoch 3 of 100, step 1200, loss 0.1234, 512 images/s, learning rate 0.001",
    "[default0]:host-12:4242:4301 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "[default0]: 50%|#####     | 1200/2400 [00:12<00:12, 98.12it/s]",
)
LINES: dict[MetricsFormat, str] = {
    "json-lines": "[default0]:" + LOSS,
    "yolov5": "[default0]:   {0}/499999      13.5G    0.1168   0.03311       0.1       191       640: 100%|####| 9/9",
    "mnist": "[default0]:Train Epoch: {0} [640/60000 (1%)]\tloss=2.3100",
    "allreduce-bench": "[default0]:|   {0}KiB |   0.92GBps |   0.48GBps |",
    "nccl-tests": "[default0]:" + NCCL,
}
HEADS: dict[MetricsFormat, tuple[str, ...]] = {
    "nccl-tests": (
        "# all_reduce_perf -b 128M -e 128M -n 1000000",
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong",
    )
}
Observed = tuple[Observation, ClusterContext]


def main(show: Any, size: int = LOG_MB) -> None:
    """A job of many made-up pods, and made-up logs that are each read by a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        pods(show, Path(name))
        logs(show, Path(name), size)


# --- what is seen of many pods


class Case(NamedTuple):
    """The status of all pods, and the reason and message of the warnings about them."""

    pod: dict[str, Any]
    warning: tuple[str, str]


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-11-21T08:00:47Z", **more}


def placed(state: dict[str, Any], phase: str = "Pending") -> dict[str, Any]:
    """The status of a pod on a node whose container is in this state."""
    ready = condition("Ready", "True" if phase == "Running" else "False", reason="ContainersNotReady")
    containers = [{"name": "worker", "restartCount": 0, "state": state, "image": "none:1"}]
    placed = [condition("PodScheduled", "True"), condition("Initialized", "True"), ready]
    return {"phase": phase, "conditions": placed, "containerStatuses": containers}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return placed({"waiting": {"reason": reason, "message": message}})


NO_NODE = "0/1000 nodes are available: 1000 Insufficient nvidia.com/gpu. preemption: not eligible"
RUNS = placed({"running": {"startedAt": "2026-11-21T08:00:47Z"}}, "Running")
CASES = {
    "no node for any": Case(
        {
            "phase": "Pending",
            "conditions": [condition("PodScheduled", "False", reason="Unschedulable", message=NO_NODE)],
        },
        ("FailedScheduling", NO_NODE),
    ),
    "a volume is missing": Case(
        waiting("ContainerCreating"), ("FailedMount", 'MountVolume.SetUp failed: secret "a" not found')
    ),
    "no image": Case(waiting("ImagePullBackOff", "Back-off pulling image"), ("Failed", "Error: ImagePullBackOff")),
    "all run": Case(RUNS, ("BackOff", "Back-off restarting failed container")),
}


def pods(show: Any, folder: Path) -> None:
    """The time of one tick of `wait`, in the worst case of each launcher."""
    print(f"{PODS} pods and {WARNINGS} warnings, the worst of {', '.join(CASES)}", flush=True)
    for launcher, kind in PROFILES.items():
        path = folder / f"{launcher}.yaml"
        path.write_text(PROFILE.format(launcher, PODS))
        module, run = registry.load_launcher(launcher), Run(id="0" * 32, attempt=1, folder=str(folder))
        plan = module.plan(load_profile(str(path)), run)
        assert isinstance(plan, ManifestPlan)
        cases = [observed(plan, kind, case) for case in CASES.values()]
        explained = [median(partial(explain_no_progress, plan, *each)) for each in cases]
        told = [median(partial(module.read_status, each[0])) for each in cases]
        show(f"{launcher}: explain", 1000 * max(explained), EXPLAIN_MS, "ms")
        show(f"{launcher}: read_status", 1000 * max(told), STATUS_MS, "ms")


def observed(plan: ManifestPlan, kind: str, case: Case) -> Observed:
    """All pods alike except one that runs, so that the job goes on, and warnings about them."""
    names = [f"{plan.job}-{node}{'-x2x4z' if plan.has_random_suffix else ''}" for node in plan.nodes]
    seen: dict[str, Any] = {f"{kind}/{plan.job}": {**plan.main, "status": {"state": {"phase": "Pending"}}}}
    for name in names:
        meta = {"name": name, "uid": name, "labels": plan.labels, "annotations": {"a": "b"}}
        spec = {"nodeName": "node-1", "restartPolicy": "Never", "containers": [{"name": "worker"}]}
        status = RUNS if name == names[0] else case.pod
        seen[f"Pod/{plan.node(name)}"] = json.loads(json.dumps({"metadata": meta, "spec": spec, "status": status}))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    events = [
        {
            "involvedObject": {"kind": "Pod", "name": names[each % len(names)], "uid": names[each % len(names)]},
            "reason": case.warning[0],
            "message": case.warning[1],
            "firstTimestamp": now,
            "lastTimestamp": now,
        }
        for each in range(WARNINGS)
    ]
    return Observation(seen, frozenset(plan.nodes), time.time()), ClusterContext(events)


def median(work: Callable[[], object]) -> float:
    """The median CPU seconds of the work."""
    return statistics.median(seconds(work) for _ in range(TICKS))


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# --- logs


def logs(show: Any, folder: Path, size: int) -> None:
    """`collect` of a failed job with a noisy log, and each format in a log where one line in five is a row of it."""
    log = folder / "said.log"
    fill(log, size, cycled(STAMP + each for each in NOISE))
    print(f"logs of {size} MB, beside a bare count of their lines", flush=True)
    for format in ("none", "json-lines"):
        report(show, f"collect of a failed job, metrics {format}", log, (COLLECT_RATE, "failed", format))
    fill(log, size, nccl_lines())
    report(show, "collect, every line of NCCL", log, (NCCL_RATE, "collect", "none"))
    for reader, line in LINES.items():
        heads = HEADS.get(reader, ())
        fill(log, size // 4, itertools.chain((f"{STAMP}[default0]:{head}" for head in heads), between(line)))
        report(show, f"collect, {reader}, a row in five lines", log, (None, "collect", reader))
        said = line.partition("]:")[2]
        fill(log, size // 4, itertools.chain(heads, (each.removeprefix(STAMP) for each in between(said))))
        report(show, f"the reader of {reader}, a row in five lines", log, (READER_RATE, "read", reader))
        fill(log, size // 4, itertools.chain(heads, (said.format(each) for each in range(1 << 40))))
        report(show, f"the reader of {reader}, every line a row", log, (None, "read", reader))
    fill(log, 1 << 30, (STAMP + LINES["json-lines"].format(each) for each in range(ROWS)))
    told = child("collect", str(log), "json-lines")
    show(f"{ROWS:,} rows: memory over the start", told["mib"], MEMORY_MIB, "MiB")
    show(f"{ROWS:,} rows: what report.json holds of them", told["kept"] / 1000, 500, "kB")


def report(show: Any, what: str, log: Path, how: tuple[float | None, str, MetricsFormat]) -> None:
    from tests.bench import show_rate

    least, verb, format = how
    size, floor, told = log.stat().st_size / MB, median(partial(counted, log)), child(verb, str(log), format)
    show_rate(what, size / told["s"], least, f"  ({told['s'] / floor:.0f} x the bare count)")
    show("    memory over the start", told["mib"], MEMORY_MIB, "MiB")


def cycled(lines: Iterable[str]) -> Iterator[str]:
    yield from itertools.cycle(lines)


def nccl_lines() -> Iterator[str]:
    """Channels of a node with many communicators: most lines say what another has said."""
    for each in range(1 << 40):
        rank, peer, hca = each % 128, (each + 8) % 128, each * 7 % 8
        net = (f"NET/IB/{hca}/GDRDMA", f"NET/IB/{hca}({rank})/GDRDMA", "P2P/CUMEM/read", "SHM/direct/direct")[each % 4]
        said = f"Channel {each % 32:02d}/0 : {rank}[{rank % 8}] -> {peer}[{peer % 8}] [send] via {net}"
        yield f"{STAMP}[default{rank % 8}]:gpu-0:{4000 + rank}:{4100 + rank} [{rank % 8}] NCCL INFO {said}"


def between(line: str) -> Iterator[str]:
    """Yield a row of the format, then four other lines, again and again."""
    for each in range(1 << 40):
        yield STAMP + line.format(each)
        yield from (STAMP + noise for noise in NOISE)


def fill(path: Path, size: float, lines: Iterable[str]) -> None:
    """Fill a file with all lines, or up to this many MB; its node has group rank 0."""
    with path.open("wb") as file:
        file.write((STAMP + RANKED + "\n").encode())
        for line in lines:
            if file.tell() > size * MB:
                break
            file.write(line.encode() + b"\n")


def counted(path: Path) -> int:
    """The number of lines in a file, as `wc -l` counts them."""
    with path.open("rb", buffering=0) as file:
        return sum(block.count(b"\n") for block in iter(partial(file.read, BLOCK), b""))


def child(*words: str) -> dict[str, float]:
    command = [sys.executable, __file__, "child", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=os.environ.get("BENCH_ROOT", ROOT))
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_child(how: str, path: str, format: MetricsFormat) -> None:
    """Read one log; print how long that took, and how much memory it needed beyond that of the start."""
    profile = Path(path).with_suffix(".yaml")
    profile.write_text(PROFILE.format("volcano", 1))
    plan = registry.load_launcher("volcano").plan(
        load_profile(str(profile)), Run(id="0" * 32, attempt=1, folder=path + ".d")
    )
    (log,) = plan.nodes.values()
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    Path(log).unlink(missing_ok=True)
    Path(log).symlink_to(path)
    state: State = "failed" if how == "failed" else "succeeded"
    outcome = Outcome(status=Status(state=state, reason=""), exit_codes={"worker-0": 1})
    before, began = memory("VmRSS"), time.process_time()
    if how == "read":
        with open(path) as file:
            metrics = READERS[format](line.rstrip("\n") for line in file)
    else:
        metrics = collect(plan, outcome, format).metrics
    took = time.process_time() - began
    kept = len(metrics.model_dump_json())
    print(json.dumps({"s": took, "mib": memory("VmHWM") - before, "rows": len(metrics.rows), "kept": kept}))


def memory(which: str) -> float:
    """MiB of memory now (VmRSS), or the peak so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child(sys.argv[2], sys.argv[3], sys.argv[4])  # type: ignore[arg-type]
    else:
        from tests.bench import show as shown

        main(shown, *map(int, sys.argv[1:]))
