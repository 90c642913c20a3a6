"""The cells of the matrix: which fault can strike at which step of which launcher, and how the run must end then."""

from typing import Literal, NamedTuple

Step = Literal["preflight", "etcd", "submit", "pending", "running", "collect", "teardown"]
Column = Literal["volcano", "pytorchjob", "baremetal"]
STEPS: tuple[Step, ...] = ("preflight", "etcd", "submit", "pending", "running", "collect", "teardown")
CLUSTER: tuple[Column, ...] = ("volcano", "pytorchjob")
COLUMNS: tuple[Column, ...] = (*CLUSTER, "baremetal")
PODS: tuple[Step, ...] = ("submit", "pending", "running")
AGENTS: tuple[Step, ...] = ("pending", "running", "teardown")
BRIEF: tuple[Step, ...] = ("etcd", "submit")


class Fault(NamedTuple):
    """A fault: the launchers and steps it applies to, what it hits at once, and why it skips the other steps."""

    columns: tuple[Column, ...] = CLUSTER
    steps: tuple[Step, ...] = STEPS
    strikes: Literal["run", "world", "cluster"] = "run"
    why: str = ""


FAULTS: dict[str, Fault] = {
    "flow KILL": Fault(COLUMNS),
    "machine lost": Fault(strikes="world"),
    "machine lost, old run": Fault(steps=("running",), strikes="world", why="no job is older than a deadline"),
    "power cut": Fault(("baremetal",), ("pending", "running"), "world", why="there is no job to attach to"),
    "flow TERM": Fault(COLUMNS),
    "worker TERM": Fault(COLUMNS, strikes="world"),
    "worker KILL": Fault(("baremetal",), strikes="world"),
    "server TERM": Fault(("baremetal",), strikes="world"),
    "server KILL": Fault(("baremetal",), strikes="world"),
    "server STOP": Fault(COLUMNS, strikes="world"),
    "cancel": Fault(COLUMNS),
    "500 burst": Fault(),
    "429 burst": Fault(),
    "401 burst": Fault(),
    "410 burst": Fault(steps=("etcd", "pending", "running"), why="no watch is open"),
    "reset": Fault(),
    "black hole": Fault(),
    "API server restart": Fault(strikes="cluster"),
    "controller down": Fault(strikes="cluster"),
    "slow log": Fault(steps=("running",), why="no pod is about to end"),
    "foreign sweep": Fault(),
    "pod evicted": Fault(steps=PODS, why="no pod is pending or running"),
    "node lost": Fault(steps=PODS, why="no pod is pending or running"),
    "job deleted": Fault(steps=(*PODS, "collect", "teardown"), why="there is no job yet"),
    "etcd KILL": Fault(COLUMNS, ("etcd", *PODS), why="there is no etcd, or no process needs it any more"),
    "etcd TERM": Fault(("baremetal",), AGENTS, why="there is no etcd, or no process needs it any more"),
    "agent TERM": Fault(("baremetal",), AGENTS, why="there is no agent"),
    "agent KILL": Fault(("baremetal",), AGENTS, why="there is no agent"),
    "rank TERM": Fault(("baremetal",), ("running", "teardown"), why="there is no rank"),
    "rank KILL": Fault(("baremetal",), ("running", "teardown"), why="there is no rank"),
}


class Cell(NamedTuple):
    """One fault at one step of a run of one launcher."""

    column: Column
    step: Step
    fault: str

    def __str__(self) -> str:
        return f"{self.column:<10} {self.step:<9} {self.fault:<18}"

    @property
    def store(self) -> bool:
        """Whether the run has its own etcd."""
        return self.step == "etcd" or self.fault.startswith("etcd")


class Right(NamedTuple):
    """A right end: the names of the state, text in its message, and the allowed numbers of attempts."""

    names: tuple[str, ...]
    says: str = ""
    attempts: tuple[int, ...] = (1,)


def absent(cell: Cell) -> str:
    """Why the matrix has no such cell; "" if it has."""
    fault = FAULTS[cell.fault]
    if cell.column not in fault.columns:
        return "the fault does not apply to this launcher"
    if cell.column == "baremetal" and cell.step in BRIEF:
        return "the step is over within milliseconds on one machine"
    return "" if cell.step in fault.steps else fault.why


def right(cell: Cell) -> Right:
    """How the run of a cell must end."""
    ended = cell.step in ("collect", "teardown")
    if cell.column == "baremetal" and cell.step == "teardown":  # the run was cancelled before the fault
        return Right(("Cancelled",))
    late = ("Completed",) if ended else ()
    # A controller may have replaced the pod before the run watches it.
    again = (1, 2) if cell.step == "submit" else (2,)
    # An operator's webhook is down with it, and preflight may report that.
    webhook = cell.step == "preflight" and cell.column == "pytorchjob"
    rules: dict[str, Right] = {
        "controller down": Right(("Completed", *(("Failed",) if webhook else ())), attempts=(0, 1)),
        "cancel": Right(("Cancelled", *late), attempts=(0, 1)),
        "flow TERM": Right(("Stopped", *late), attempts=(0, 1)),
        "job deleted": Right(late) if ended else Right(("Failed",), "deleted by somebody else"),
        "pod evicted": Right(("Completed",), attempts=again),
        "node lost": Right(("Completed",), attempts=again),
        "power cut": Right(("Completed",), attempts=(2,)),
        "etcd": Right(("Completed",), attempts=(1, 2)),
        "agent": Right(("Completed",), attempts=(1, 2)),
        "rank": Right(("Completed", "Failed"), attempts=(1, 2)),
    }
    return rules.get(cell.fault) or rules.get(cell.fault.split()[0]) or Right(("Completed",))


def all_cells() -> list[Cell]:
    """Every cell of the matrix, grouped by fault."""
    found = (Cell(column, step, fault) for column in COLUMNS for fault in FAULTS for step in STEPS)
    return [cell for cell in found if not absent(cell)]


class Result(NamedTuple):
    """The result of a cell."""

    cell: Cell
    end: str
    sentence: str
    seconds: float = 0.0
    doubles: int = 0
    left: tuple[str, ...] = ()
    lost: int = 0
    other: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong with the result."""
        counted = [f"{self.doubles} double submits"] * bool(self.doubles) + [f"left: {', '.join(self.left)}"] * bool(
            self.left
        )
        return [*self.other, *counted, *([f"{self.lost} lines lost or doubled"] if self.lost else [])]
