"""The cells of the matrix: where a job runs, who stops it, and how its program saves; and how each must be reported."""

from typing import Literal, NamedTuple

Location = Literal["local", "ssh", "prefect", "volcano", "pytorchjob", "jobset", "job", "appwrapper"]
Way = Literal[
    "interrupt",
    "terminate",
    "cancel",
    "deadline",
    "lost-launcher",
    "twice",
    "hang",
    "evict",
    "drain",
    "preempt",
    "kueue",
]
Save = Literal["quick", "slow", "long", "no-handler", "too-long", "torn", "overwrite", "none", "exit-0"]

CLUSTER_LOCATIONS: tuple[Location, ...] = ("volcano", "pytorchjob")
KUEUE_LOCATIONS: tuple[Location, ...] = ("pytorchjob", "jobset", "job", "appwrapper")
POD_LOCATIONS: tuple[Location, ...] = tuple(dict.fromkeys((*CLUSTER_LOCATIONS, *KUEUE_LOCATIONS)))
CLI_LOCATIONS: tuple[Location, ...] = ("local", "ssh", *CLUSTER_LOCATIONS)
LOCATIONS: tuple[Location, ...] = ("local", "ssh", "prefect", *POD_LOCATIONS)


class WayFacts(NamedTuple):
    """What a way to stop a job is.

    has_next_attempt: the run continues by itself, in an attempt that starts from the checkpoint.
    """

    description: str
    locations: tuple[Location, ...]
    has_next_attempt: bool = False


WAYS: dict[Way, WayFacts] = {
    "interrupt": WayFacts("Ctrl-C", CLI_LOCATIONS),
    "terminate": WayFacts("SIGTERM to the launcher", CLI_LOCATIONS),
    "cancel": WayFacts("a cancel in Prefect", ("prefect",)),
    "deadline": WayFacts("deadlines.notice before deadlines.run", CLI_LOCATIONS),
    "lost-launcher": WayFacts("the launcher is killed, and Ctrl-C ends the next one", CLI_LOCATIONS),
    "twice": WayFacts("the launcher is killed while it stops the job, and another process continues", CLI_LOCATIONS),
    "hang": WayFacts("on_hang: restart", CLI_LOCATIONS, has_next_attempt=True),
    "evict": WayFacts("rank 0's pod is evicted by the Eviction API", CLUSTER_LOCATIONS, has_next_attempt=True),
    "drain": WayFacts("the node of rank 0 is drained", CLUSTER_LOCATIONS, has_next_attempt=True),
    "preempt": WayFacts("a pod of a higher priority preempts rank 0's", CLUSTER_LOCATIONS, has_next_attempt=True),
    "kueue": WayFacts("a job of a higher priority preempts it in Kueue", KUEUE_LOCATIONS, has_next_attempt=True),
}
# A drain closes a node for the pods of other cells, and Volcano's preemption takes pods of any lower priority.
EXCLUSIVE_WAYS: tuple[Way, ...] = ("drain", "preempt")
SAVES: dict[Save, str] = {
    "quick": "saves at once on SIGTERM",
    "slow": "saves for most of the grace on SIGTERM",
    "long": "saves on SIGTERM for longer than the 30 s that torchrun gives by itself, within a longer grace",
    "no-handler": "has no handler, and has saved before",
    "too-long": "saves for longer than the grace on SIGTERM",
    "torn": "dies in the middle of its save on SIGTERM",
    "overwrite": "dies while it overwrites its only checkpoint on SIGTERM",
    "none": "has no handler, and saves nothing",
    "exit-0": "saves at once on SIGTERM, and ends with exit code 0",
}
_BASIC_SAVES: tuple[Save, ...] = ("quick", "slow", "torn", "no-handler")
_GRACE_S = 12.0
_LONG_GRACE_S = 60.0
_SAVE_S: dict[Save, float] = {"slow": 6.0, "long": 40.0, "too-long": 60.0}


class Cell(NamedTuple):
    """One way to stop one kind of program."""

    location: Location
    way: Way
    save: Save

    @property
    def is_in_cluster(self) -> bool:
        return self.location in POD_LOCATIONS

    @property
    def has_next_attempt(self) -> bool:
        """Whether the run continues by itself after the stop."""
        return WAYS[self.way].has_next_attempt

    @property
    def grace_s(self) -> float:
        """The profile's `deadlines.grace`."""
        return _LONG_GRACE_S if self.save == "long" else _GRACE_S

    @property
    def save_s(self) -> float:
        """How long the program saves at the stop."""
        return _SAVE_S.get(self.save, 0.0)

    def __str__(self) -> str:
        return f"{self.location:<10} {self.way:<14} {self.save:<10}"


class Expected(NamedTuple):
    """What must be reported of a cell.

    is_saved: the last step of the program is in a complete checkpoint.
    has_resume_point: a checkpoint remains from which the run can continue.
    sentence: a text in the report's sentence about the work; empty if there must be none.
    """

    is_saved: bool
    has_resume_point: bool
    sentence: str


_SAVED = Expected(is_saved=True, has_resume_point=True, sentence="nothing is lost")
_LOST_SINCE_SAVE = Expected(is_saved=False, has_resume_point=True, sentence="of work since step")
EXPECTED: dict[Save, Expected] = {
    "quick": _SAVED,
    "slow": _SAVED,
    "long": _SAVED,
    "exit-0": _SAVED,
    "no-handler": _LOST_SINCE_SAVE._replace(sentence="nothing was saved after the stop"),
    "too-long": _LOST_SINCE_SAVE,
    "torn": _LOST_SINCE_SAVE,
    "overwrite": Expected(is_saved=False, has_resume_point=False, sentence="none of its checkpoints is complete"),
    "none": Expected(is_saved=False, has_resume_point=False, sentence=""),
}


def list_saves(location: Location, way: Way) -> tuple[Save, ...]:
    """The kinds of saves that are played for a way to stop a job at a location.

    All of them for the commonest way, and on this machine; elsewhere those that differ in what is reported.
    """
    if way == "hang":
        return _BASIC_SAVES
    if location in ("local", "prefect") or way == "interrupt":
        return tuple(SAVES)
    if way in (*EXCLUSIVE_WAYS, "kueue"):
        return ("quick", "torn", "exit-0")
    if WAYS[way].has_next_attempt:
        return (*_BASIC_SAVES, "exit-0")
    return _BASIC_SAVES


def list_cells() -> list[Cell]:
    """Every cell of the matrix, grouped by location and way."""
    cells = []
    for location in LOCATIONS:
        for way, way_facts in WAYS.items():
            if location in way_facts.locations:
                cells += [Cell(location, way, save) for save in list_saves(location, way)]
    return cells


class Result(NamedTuple):
    """The result of a cell.

    stop_s: between the request and the launcher's end.
    """

    cell: Cell
    sentence: str
    stop_s: float = 0.0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = "WRONG: " + "; ".join(self.problems) if self.problems else "ok"
        return f"{self.cell} {self.stop_s:5.1f} s  {verdict} | {self.sentence[:150]}"
