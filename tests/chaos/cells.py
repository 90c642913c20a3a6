"""The cells of the matrix: which fault can strike at which step of which launcher, and how the run must end then."""

import itertools
from typing import Literal, NamedTuple

from tests.tools.matrix import flatten

Step = Literal["preflight", "etcd", "submit", "pending", "running", "collect", "teardown"]
Launcher = Literal["volcano", "pytorchjob", "job", "baremetal"]
STEPS: tuple[Step, ...] = ("preflight", "etcd", "submit", "pending", "running", "collect", "teardown")
CLUSTER_LAUNCHERS: tuple[Launcher, ...] = ("volcano", "pytorchjob", "job")
LAUNCHERS: tuple[Launcher, ...] = (*CLUSTER_LAUNCHERS, "baremetal")
POD_STEPS: tuple[Step, ...] = ("submit", "pending", "running")
AGENT_STEPS: tuple[Step, ...] = ("pending", "running", "teardown")
BRIEF_STEPS: tuple[Step, ...] = ("etcd", "submit")


class Fault(NamedTuple):
    """A fault and the cells that it has.

    scope: whether it hits one run, all runs of a world, or all runs of the cluster.
    reason: why it does not apply to the other steps.
    """

    launchers: tuple[Launcher, ...] = CLUSTER_LAUNCHERS
    steps: tuple[Step, ...] = STEPS
    scope: Literal["run", "world", "cluster"] = "run"
    reason: str = ""


FAULTS: dict[str, Fault] = {
    "flow KILL": Fault(LAUNCHERS),
    "machine lost": Fault(scope="world"),
    "machine lost, old run": Fault(steps=("running",), scope="world", reason="no job is older than a deadline"),
    "power cut": Fault(("baremetal",), ("pending", "running"), "world", reason="there is no job to attach to"),
    "flow TERM": Fault(LAUNCHERS),
    "worker TERM": Fault(LAUNCHERS, scope="world"),
    "worker KILL": Fault(("baremetal",), scope="world"),
    "server TERM": Fault(("baremetal",), scope="world"),
    "server KILL": Fault(("baremetal",), scope="world"),
    "server STOP": Fault(LAUNCHERS, scope="world"),
    "cancel": Fault(LAUNCHERS),
    "500 burst": Fault(),
    "429 burst": Fault(),
    "401 burst": Fault(),
    "410 burst": Fault(steps=("etcd", "pending", "running"), reason="no watch is open"),
    "404 page": Fault(),
    "hidden namespace": Fault(
        steps=("pending", "running", "collect", "teardown"),
        reason="a run without its namespace ends before it has a job",
    ),
    "empty list": Fault(steps=("pending", "running", "collect", "teardown"), reason="no list can hide the job"),
    "lost Lease": Fault(steps=("running",), reason="the next launcher has nothing to lose"),
    "reset": Fault(),
    "black hole": Fault(),
    "API server restart": Fault(scope="cluster"),
    "controller down": Fault(scope="cluster"),
    "slow log": Fault(steps=("running",), reason="no pod is about to end"),
    "foreign sweep": Fault(),
    "pod evicted": Fault(steps=POD_STEPS, reason="no pod is pending or running"),
    "node lost": Fault(steps=POD_STEPS, reason="no pod is pending or running"),
    "job deleted": Fault(steps=(*POD_STEPS, "collect", "teardown"), reason="there is no job yet"),
    "etcd KILL": Fault(LAUNCHERS, ("etcd", *POD_STEPS), reason="there is no etcd, or no process needs it any more"),
    "etcd TERM": Fault(("baremetal",), AGENT_STEPS, reason="there is no etcd, or no process needs it any more"),
    "agent TERM": Fault(("baremetal",), AGENT_STEPS, reason="there is no agent"),
    "agent KILL": Fault(("baremetal",), AGENT_STEPS, reason="there is no agent"),
    "rank TERM": Fault(("baremetal",), ("running", "teardown"), reason="there is no rank"),
    "rank KILL": Fault(("baremetal",), ("running", "teardown"), reason="there is no rank"),
    "ssh cut": Fault(("baremetal",), ("running",), reason="no log can be silent"),
    "clock ahead": Fault(("baremetal",), ("running",), reason="there is no job to attach to"),
    "shared folder": Fault(("baremetal",), ("running",), reason="nothing runs in the other container"),
    "archive unmounted": Fault(("baremetal",), ("running",), reason="the run does not read its archive"),
}


class Cell(NamedTuple):
    """One fault at one step of a run of one launcher."""

    launcher: Launcher
    step: Step
    fault: str

    def __str__(self) -> str:
        return f"{self.launcher:<10} {self.step:<9} {self.fault:<18}"

    @property
    def needs_etcd(self) -> bool:
        """Whether the run has its own etcd."""
        return self.step == "etcd" or self.fault.startswith("etcd")


class ExpectedEnd(NamedTuple):
    """A correct end: the allowed names of the state, a text in its message, and the allowed numbers of attempts."""

    names: tuple[str, ...]
    text: str = ""
    attempts: tuple[int, ...] = (1,)


def explain_absence(cell: Cell) -> str | None:
    """Why the matrix does not have this cell; None if it has."""
    fault = FAULTS[cell.fault]
    if cell.launcher not in fault.launchers:
        return "the fault does not apply to this launcher"
    if cell.launcher == "baremetal" and cell.step in BRIEF_STEPS:
        return "the step is over within milliseconds on one machine"
    return None if cell.step in fault.steps else fault.reason


def get_expected_end(cell: Cell) -> ExpectedEnd:
    """How the run of a cell must end."""
    is_after_wait = cell.step in ("collect", "teardown")
    if cell.launcher == "baremetal" and cell.step == "teardown":  # the run was cancelled before the fault
        return ExpectedEnd(("Cancelled",))
    completed = ("Completed",) if is_after_wait else ()
    # A controller may have replaced the pod before the run watches it.
    attempts = (1, 2) if cell.step == "submit" else (2,)
    # An operator's webhook is down with it, and preflight may report that.
    uses_webhook = cell.step == "preflight" and cell.launcher == "pytorchjob"
    rules: dict[str, ExpectedEnd] = {
        "controller down": ExpectedEnd(("Completed", *(("Failed",) if uses_webhook else ())), attempts=(0, 1)),
        "cancel": ExpectedEnd(("Cancelled", *completed), attempts=(0, 1)),
        "flow TERM": ExpectedEnd(("Stopped", *completed), attempts=(0, 1)),
        "job deleted": ExpectedEnd(completed)
        if is_after_wait
        else ExpectedEnd(("Failed",), "deleted by another user or controller"),
        "pod evicted": ExpectedEnd(("Completed",), attempts=attempts),
        "node lost": ExpectedEnd(("Completed",), attempts=attempts),
        "power cut": ExpectedEnd(("Completed",), attempts=(2,)),
        "etcd": ExpectedEnd(("Completed",), attempts=(1, 2)),
        "agent": ExpectedEnd(("Completed",), attempts=(1, 2)),
        "rank": ExpectedEnd(("Completed", "Failed"), attempts=(1, 2)),
        "shared folder": ExpectedEnd(("stopped",)),
        "lost Lease": ExpectedEnd(("moved",)),
    }
    return rules.get(cell.fault) or rules.get(cell.fault.split()[0]) or ExpectedEnd(("Completed",))


def list_cells() -> list[Cell]:
    """Every cell of the matrix, grouped by launcher and fault."""
    product = itertools.product(LAUNCHERS, FAULTS, STEPS)
    candidates = [Cell(launcher, step, fault) for launcher, fault, step in product]
    return [cell for cell in candidates if not explain_absence(cell)]


class Result(NamedTuple):
    """The result of a cell."""

    cell: Cell
    end: str
    sentence: str
    seconds: float = 0.0
    double_submits: int = 0
    leftovers: tuple[str, ...] = ()
    lost_lines: int = 0
    other_problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = flatten("WRONG: " + "; ".join(self.problems) if self.problems else "ok", 400)
        counts = f"{self.double_submits} {len(self.leftovers)} {self.lost_lines}"
        return f"{self.cell} {self.end:<10} {self.seconds:6.1f} s  {counts}  {verdict} | {flatten(self.sentence, 110)}"

    @property
    def problems(self) -> list[str]:
        """Every deviation from a correct result, as text."""
        problems = list(self.other_problems)
        if self.double_submits:
            problems.append(f"{self.double_submits} double submits")
        if self.leftovers:
            problems.append(f"left: {', '.join(self.leftovers)}")
        if self.lost_lines:
            problems.append(f"{self.lost_lines} lines lost or doubled")
        return problems
