"""The cells of runs in the cluster: real controllers, fake pods, and a proxy to the API server that injects faults."""

import os
import signal
import time
from pathlib import Path
from typing import Any, cast, get_args

from tests.chaos.cells import Cell, Result, get_expected_end
from tests.chaos.namespace import ATTEMPT_LABEL, JOB_KINDS, ChaosNamespace, Object, get_labels
from tests.chaos.program import WAITING_ANNOTATION, Program
from tests.chaos.trial import DEADLINES, END_TIMEOUT_S, Trial
from tests.chaos.world import World, wait_until
from tests.cluster.gate import Fault, Gate
from tests.cluster.jobs import as_user
from torchyard.model.plan import ManifestPlan

BURST_S = 6.0  # seconds that requests fail
SLOW_LOG_BYTES_PER_S = 100_000.0  # bytes per second of each pod's slow log
FINAL_LINE_COUNT = 300  # lines of 10 kB: half a minute at that rate
OLD_RUN_AGE_S = 25.0  # how long an old run runs before its fault: longer than the deadlines in BRIEF
BRIEF_DEADLINES = {"start": "15s", "silence": "15s"}
BLACK_HOLE_S = 20.0  # seconds that new connections stall; connections open before stay dead
FAULT_DURATIONS_S = {"black hole": BLACK_HOLE_S, "reset": BURST_S / 2}  # of faults that are not bursts
OBSERVED_S = 5.0  # for which the job must go on after the launcher has exited
LEASE_OUTAGE_S = 20.0  # seconds without network, in which another launcher takes the Lease
RUN_ENDING_FAULTS = ("cancel", "flow TERM", "job deleted", "lost Lease")  # faults that end a run permanently
ATTEMPT_ENDING_FAULTS = ("pod evicted", "node lost")  # faults that end an attempt: its other pods need not start
MIN_LOG_LINES = 5  # lines of each pod on disk that show that the job runs


class ClusterTrial(Trial):
    """Two fake pods that print lines until they succeed, behind their own gate."""

    def __init__(self, world: World, cell: Cell, namespace: ChaosNamespace) -> None:
        super().__init__(world, cell)
        self.namespace = namespace
        self.gate = Gate(self.truth_folder, as_user().get("cluster.context"))
        self.context = f"gate-{self.gate.address.rpartition(':')[2]}"
        world.add_context(self.context, self.gate.address)
        self.program: Program | None = None

    def build_profile(self) -> dict[str, Any]:
        annotations = {"torchyard.test/log": str(self.truth_folder / "{pod}")}
        if self.cell.step == "pending":
            annotations[WAITING_ANNOTATION] = "ContainerCreating"
        return {
            "about": str(self.cell),
            "launcher": self.cell.launcher,
            "image": "train:v1",
            "program": "/train.py",
            "nodes": 2,
            "rendezvous": "etcd-v2" if self.cell.needs_etcd else "c10d",
            "pod": {"node_selector": {"type": "kwok"}, "annotations": annotations},
            "cluster": {"context": self.context, "namespace": self.namespace.name},
            "deadlines": DEADLINES | BRIEF_DEADLINES if self.is_old else DEADLINES,
            "attempts": 2,
        }

    @property
    def is_old(self) -> bool:
        """Whether the run is resumed when it is older than its deadlines of start and silence."""
        return self.cell.fault.endswith("old run")

    # --- reaching the step

    def start_run(self) -> None:
        if self.cell.step not in ("pending", "running", "collect"):
            self.gate.hold(self.is_held_request, hold_response=self.cell.step != "preflight")
        super().start_run()

    def is_held_request(self, request: str) -> bool:
        """Whether a request is the central one of its step; without its response the client cannot infer the result."""
        _, plural = JOB_KINDS[self.launcher]
        is_dry_run = "dryRun" in request
        match self.cell.step:
            case "preflight":
                return self.is_in_step("preflight")
            case "etcd":
                return (
                    request.startswith("POST ")
                    and "/pods" in request
                    and not is_dry_run
                    and self.is_in_step("rendezvous")
                )
            case "submit":
                return (
                    request.startswith("POST ")
                    and f"/{plural}?" in request
                    and not is_dry_run
                    and self.is_in_step("submit")
                )
            case _:
                return request.startswith("DELETE ") and f"/{plural}/" in request and self.is_in_step("teardown")

    @property
    def launcher(self) -> Any:
        return self.cell.launcher

    def may_end(self, pod: Object) -> bool:
        """Whether a pod may start or end: not before its fault is injected, nor after one that ends its attempt."""
        if self.cell.step in ("collect", "teardown"):
            return True
        is_attempt_ended = self.cell.fault in RUN_ENDING_FAULTS or (
            self.cell.step == "pending" and self.cell.fault in ATTEMPT_ENDING_FAULTS
        )
        return self.is_fault_injected.is_set() and (not is_attempt_ended or get_labels(pod).get(ATTEMPT_LABEL) != "1")

    def wait_for_step(self) -> None:
        self.program = Program(self.namespace, self.truth_folder, self.name, self.may_end)
        self.program.start()
        match self.cell.step:
            case "collect":
                self.block_collect()
            case "pending":
                self.wait_for(
                    "pods that wait", lambda: self.is_in_step("wait") and len(self.list_scheduled_pods()) == 2
                )
            case "running":
                self.wait_for(
                    "pods that speak", lambda: self.is_in_step("wait") and self.count_log_lines() >= MIN_LOG_LINES
                )
            case _:
                self.wait_for("the request", self.gate.request_held.is_set)
        if self.is_old:
            old_enough_at = time.monotonic() + OLD_RUN_AGE_S
            self.wait_for("age", lambda: time.monotonic() > old_enough_at)
            self.gate.delay_s = 1.0  # its logs take longer than a check of its deadlines
        if self.cell.fault in ATTEMPT_ENDING_FAULTS:
            self.wait_for("pods", lambda: len(self.list_scheduled_pods()) == 2)
        if self.cell.fault == "etcd KILL" and self.cell.step == "etcd":
            self.wait_for("a store", lambda: self.namespace.list_store_pods(self.name))

    def list_scheduled_pods(self) -> list[Object]:
        """The pods that have a node."""
        return [pod for pod in self.namespace.list_worker_pods(self.name) if pod["spec"].get("nodeName")]

    def count_log_lines(self) -> int:
        """The number of lines in the shorter log of both pods; 0 until both exist."""
        paths = list(self.folder.path.glob("attempt-1/worker-*/log"))
        return min(len(path.read_text().splitlines()) for path in paths) if len(paths) == 2 else 0

    # --- injecting the fault

    def inject_launcher_fault(self) -> None:
        kind = self.cell.fault.removesuffix(" burst")
        if kind in get_args(Fault):
            duration_s = FAULT_DURATIONS_S.get(kind, BURST_S)
            self.gate.fail(cast(Fault, kind), duration_s=duration_s)
        elif self.cell.fault == "slow log" and self.program:
            self.gate.slow("/log?", SLOW_LOG_BYTES_PER_S)
            self.program.print_at_once(FINAL_LINE_COUNT)
        elif self.cell.fault == "foreign sweep":
            self.namespace.sweep(self.truth_folder)
        elif self.cell.fault == "job deleted":
            self.wait_for(
                "the job", lambda: self.namespace.jobs[self.launcher].list_of_run(self.name)
            )  # our watch may be late
            self.silence_pods(self.namespace.list_worker_pods(self.name))
            self.namespace.delete_job(self.launcher, self.name)
        elif self.cell.fault == "etcd KILL":
            for pod in self.namespace.list_store_pods(self.name):
                self.namespace.annotate(pod, "torchyard.test/end-now", "137")
        else:
            pod = max(self.list_scheduled_pods(), key=lambda pod: str(pod["metadata"]["name"]))
            self.silence_pods([pod])
            (self.namespace.evict if self.cell.fault == "pod evicted" else self.namespace.lose_node)(pod)

    def handle_outage(self, is_response_lost: bool) -> None:
        """React to a fault of the cluster: a held response is lost with its API server, or is delivered now."""
        self.is_fault_injected.set()
        if is_response_lost:
            self.gate.cut()
        self.gate.release()

    def silence_pods(self, pods: list[Object]) -> None:
        for pod in pods:
            if self.program:
                self.program.silence(pod)

    def release(self) -> None:
        super().release()
        self.gate.release()

    # --- judging the end

    def count_doubles(self) -> int:
        return self.namespace.count_doubles(self.launcher, self.name)

    def list_leftovers(self) -> list[str]:
        return self.namespace.list_leftovers(self.name)

    def count_lost_lines(self) -> int:
        """The number of lines that are missing or duplicated in the last machine's logs, without being reported."""
        printed = self.program.printed if self.program else {}
        return (
            0
            if self.are_logs_on_lost_machine()
            else sum(self.count_missing_lines(pod, lines) for pod, lines in printed.items())
        )

    def are_logs_on_lost_machine(self) -> bool:
        """Whether the report states that the logs are on the lost machine, because their pods were deleted by then."""
        report = self.folder.report()
        logs = report.collected.logs if report and report.collected else ()
        is_reported = bool(logs) and all("what was read of it" in log.lost for log in logs)
        return is_reported and self.cell.fault == "machine lost"

    def count_missing_lines(self, pod: str, lines: list[str]) -> int:
        path = self.find_log(pod)
        logged_lines = [line.partition(" | ")[2] for line in path.read_text().splitlines()] if path else []
        return sum(logged_lines.count(line) != 1 for line in lines)

    def find_log(self, pod: str) -> Path | None:
        """The path of a pod's log; None if it was not written."""
        for plan in self.folder.plans():
            if not isinstance(plan, ManifestPlan):
                continue
            path = plan.nodes.get(plan.node(pod))
            if path and Path(path).exists():
                return Path(path)
        return None

    def close(self) -> None:
        self.gate.close()
        if self.program:
            self.program.stop()
        self.namespace.delete_run(self.launcher, self.name)


class LeaseTrial(ClusterTrial):
    """The launcher loses the network and with it its Lease, and gets SIGTERM before the network is back.

    The job belongs to the next launcher then, which is a holder that the administrator writes into the Lease.
    """

    def inject_launcher_fault(self) -> None:
        self.gate.fail("black hole", duration_s=LEASE_OUTAGE_S)
        self.namespace.take_lease(self.name)
        os.kill(self.owner_pid, signal.SIGTERM)

    def watch_end(self) -> Result:
        """Wait until this launcher has exited; Prefect's state is the next launcher's, which does not exist here."""
        started_at = time.monotonic()
        self.is_fault_injected.set()
        self.release()
        end = wait_until("the end", self.find_end, END_TIMEOUT_S, 0.5)
        time.sleep(OBSERVED_S)
        problems = [f"ended {end['end']}"] if end["end"] not in get_expected_end(self.cell).names else []
        return Result(
            self.cell,
            end["end"],
            end["sentence"],
            time.monotonic() - started_at,
            double_submits=self.count_doubles(),
            leftovers=tuple(self.list_remains()),
            other_problems=tuple(problems),
        )

    def find_end(self) -> dict[str, Any] | None:
        """The end in the run's journal; None until the process that wrote it has exited."""
        end = self.folder.read_record().find_last("end")
        return end if end and not Path(f"/proc/{self.owner_pid}").exists() else None

    def list_leftovers(self) -> list[str]:
        """What a correct end does not change: the next launcher's job and both of its pods are there."""
        if not self.namespace.jobs[self.launcher].list_of_run(self.name):
            return ["nothing of the next launcher's job, which was deleted"]
        if len(self.namespace.list_worker_pods(self.name)) != 2:
            return ["fewer than two pods of the next launcher's job"]
        return []
