"""The cells of runs in the cluster: real controllers, fake pods, and a proxy to the API server that injects faults."""

import time
from pathlib import Path
from typing import Any, cast, get_args

from tests.chaos.cells import Cell
from tests.chaos.program import HELD, Program
from tests.chaos.space import ATTEMPT, JOBS, Object, Space, labels
from tests.chaos.trial import DEADLINES, Trial
from tests.chaos.world import World
from tests.cluster.gate import Fault, Gate
from tests.cluster.jobs import as_user
from torchyard.model.plan import ManifestPlan

BURST = 6.0  # seconds that requests fail
LOG_RATE = 100_000.0  # bytes per second of each pod's slow log
LAST_WORDS = 300  # lines of 10 kB: half a minute at that rate
OLD_S = 25.0  # how long an old run runs before its fault: longer than the deadlines in BRIEF
BRIEF = {"start": "15s", "silence": "15s"}
HOLE = 20.0  # seconds that new connections stall; connections open before stay dead
FINAL = ("cancel", "flow TERM", "job deleted")  # faults that end a run for good
ENDING = ("pod evicted", "node lost")  # faults that end an attempt: its other pods need not start
ENOUGH = 5  # lines of each pod on disk that show that the job runs


class Job(Trial):
    """Two fake pods that print lines until they succeed, behind their own gate."""

    def __init__(self, world: World, cell: Cell, space: Space) -> None:
        super().__init__(world, cell)
        self.space = space
        self.gate = Gate(self.truth, as_user().get("cluster.context"))
        self.context = f"gate-{self.gate.address.rpartition(':')[2]}"
        world.open_gate(self.context, self.gate.address)
        self.program: Program | None = None

    def document(self) -> dict[str, Any]:
        late = {HELD: "ContainerCreating"} if self.cell.step == "pending" else {}
        annotations = {"torchyard.test/log": str(self.truth / "{pod}"), **late}
        return {
            "about": str(self.cell),
            "launcher": self.cell.column,
            "image": "train:v1",
            "program": "/train.py",
            "nodes": 2,
            "rendezvous": "etcd-v2" if self.cell.store else "c10d",
            "pod": {"node_selector": {"type": "kwok"}, "annotations": annotations},
            "cluster": {"context": self.context, "namespace": self.space.name},
            "deadlines": {**DEADLINES, **(BRIEF if self.old else {})},
            "attempts": 2,
        }

    @property
    def old(self) -> bool:
        """Whether the run is resumed when it is older than its deadlines of start and silence."""
        return self.cell.fault.endswith("old run")

    # --- reaching the step

    def reach(self) -> None:
        if self.cell.step not in ("pending", "running", "collect"):
            self.gate.hold(self.wanted, answered=self.cell.step != "preflight")
        super().reach()

    def wanted(self, request: str) -> bool:
        """Whether a request is the central one of its step, after which the client does not know what has happened."""
        jobs, dry = JOBS[self.column][1], "dryRun" in request
        match self.cell.step:
            case "preflight":
                return self.at("preflight")
            case "etcd":
                return request.startswith("POST ") and "/pods" in request and not dry and self.at("rendezvous")
            case "submit":
                return request.startswith("POST ") and f"/{jobs}?" in request and not dry and self.at("submit")
            case _:
                return request.startswith("DELETE ") and f"/{jobs}/" in request and self.at("teardown")

    @property
    def column(self) -> Any:
        return self.cell.column

    def may_end(self, pod: Object) -> bool:
        """Whether a pod may start or end: not before a fault that must hit it, nor after one that ends its attempt."""
        if self.cell.step in ("collect", "teardown"):
            return True
        given_up = self.cell.fault in FINAL or (self.cell.step == "pending" and self.cell.fault in ENDING)
        return self.struck.is_set() and (not given_up or labels(pod).get(ATTEMPT) != "1")

    def arrive(self) -> None:
        self.program = Program(self.space, self.truth, self.name, self.may_end)
        self.program.start()
        match self.cell.step:
            case "collect":
                self.plug()
            case "pending":
                self.come("pods that wait", lambda: self.at("wait") and len(self.placed()) == 2)
            case "running":
                self.come("pods that speak", lambda: self.at("wait") and self.heard() >= ENOUGH)
            case _:
                self.come("the request", self.gate.held.is_set)
        if self.old:
            old = time.monotonic() + OLD_S
            self.come("age", lambda: time.monotonic() > old)
            self.gate.delay = 1.0  # its logs take longer than a check of its deadlines
        if self.cell.fault in ENDING:
            self.come("pods", lambda: len(self.placed()) == 2)
        if self.cell.fault == "etcd KILL" and self.cell.step == "etcd":
            self.come("a store", lambda: self.space.stores(self.name))

    def placed(self) -> list[Object]:
        """The pods that have a node."""
        return [pod for pod in self.space.workers(self.name) if pod["spec"].get("nodeName")]

    def heard(self) -> int:
        """How many lines are on disk of the pod that has fewest."""
        paths = list(self.folder.path.glob("attempt-1/worker-*/log"))
        return min(len(path.read_text().splitlines()) for path in paths) if len(paths) == 2 else 0

    # --- injecting the fault

    def hit(self) -> None:
        kind, burst = self.cell.fault.removesuffix(" burst"), self.cell.fault.endswith(" burst")
        if kind in get_args(Fault):
            self.gate.fail(cast(Fault, kind), BURST if burst else HOLE if kind == "black hole" else BURST / 2)
        elif self.cell.fault == "slow log" and self.program:
            self.gate.slow("/log?", LOG_RATE)
            self.program.pour(LAST_WORDS)
        elif self.cell.fault == "foreign sweep":
            self.space.sweep(self.truth)
        elif self.cell.fault == "job deleted":
            self.come("the job", lambda: self.space.jobs[self.column].of(self.name))  # our watch may be late
            self.silence(self.space.workers(self.name))
            self.space.delete_job(self.column, self.name)
        elif self.cell.fault == "etcd KILL":
            for pod in self.space.stores(self.name):
                self.space.annotate(pod, "torchyard.test/end-now", "137")
        else:
            pod = max(self.placed(), key=lambda each: str(each["metadata"]["name"]))
            self.silence([pod])
            (self.space.evict if self.cell.fault == "pod evicted" else self.space.lose)(pod)

    def part(self, cut: bool) -> None:
        """React to a fault of the cluster: a held answer is lost with its API server (`cut`), or is delivered now."""
        self.struck.set()
        if cut:
            self.gate.cut()
        self.gate.release()

    def silence(self, pods: list[Object]) -> None:
        for pod in pods:
            if self.program:
                self.program.silence(pod)

    def let_go(self) -> None:
        super().let_go()
        self.gate.release()

    # --- judging the end

    def doubles(self) -> int:
        return self.space.doubles(self.column, self.name)

    def left(self) -> list[str]:
        return self.space.left(self.name)

    def lost(self) -> int:
        """How many lines of pods are missing or duplicated in the logs of the last machine, without being reported."""
        printed = self.program.printed if self.program else {}
        return 0 if self.elsewhere() else sum(self.missing(pod, lines) for pod, lines in printed.items())

    def elsewhere(self) -> bool:
        """Whether the report says that the logs are on the lost machine, because their pods were gone by then."""
        report = self.folder.report()
        logs = report.collected.logs if report and report.collected else ()
        told = bool(logs) and all("what there is of it" in log.lost for log in logs)
        return told and self.cell.fault == "machine lost"

    def missing(self, pod: str, lines: list[str]) -> int:
        path = next((path for path in self.logs() if pod.startswith(path[0])), None)
        kept = [line.partition(" | ")[2] for line in path[1].read_text().splitlines()] if path else []
        return sum(kept.count(line) != 1 for line in lines)

    def logs(self) -> list[tuple[str, Path]]:
        """The beginning of each pod's name, and the path of its log."""
        plans = [plan for plan in self.folder.plans() if isinstance(plan, ManifestPlan)]
        found = [(f"{plan.job}-{node}", Path(path)) for plan in plans for node, path in plan.nodes.items()]
        return [each for each in found if each[1].exists()]

    def close(self) -> None:
        self.gate.close()
        if self.program:
            self.program.stop()
        self.space.clear(self.column, self.name)
