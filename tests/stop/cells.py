"""The cells of the matrix: where a job runs, who stops it, and how its program saves; and how each must be reported."""

import itertools
from typing import Literal, NamedTuple

Location = Literal["local", "ssh"]
Way = Literal["interrupt", "terminate", "deadline", "lost-launcher", "twice"]
Save = Literal["quick", "slow", "no-handler", "too-long", "torn", "none", "overwrite"]

LOCATIONS: tuple[Location, ...] = ("local", "ssh")
WAYS: dict[Way, str] = {
    "interrupt": "Ctrl-C",
    "terminate": "SIGTERM to the launcher",
    "deadline": "deadlines.notice before deadlines.run",
    "lost-launcher": "the launcher is killed, and Ctrl-C ends the next one",
    "twice": "the launcher is killed while it stops the job, and the next process continues the stop",
}
SAVES: dict[Save, str] = {
    "quick": "saves at once on SIGTERM",
    "slow": "saves for most of the grace on SIGTERM",
    "no-handler": "has no handler, and has saved before",
    "too-long": "saves for longer than the grace on SIGTERM",
    "torn": "dies in the middle of its save on SIGTERM",
    "overwrite": "dies while it overwrites its only checkpoint on SIGTERM",
    "none": "has no handler, and saves nothing",
}
GRACE_S = 12.0
SLOW_SAVE_S = 6.0
TOO_LONG_SAVE_S = 60.0


class Cell(NamedTuple):
    """One way to stop one kind of program."""

    location: Location
    way: Way
    save: Save

    def __str__(self) -> str:
        return f"{self.location:<6} {self.way:<14} {self.save:<10}"


class Expected(NamedTuple):
    """What must be reported of a cell.

    is_saved: the last step of the program is in a complete checkpoint.
    has_resume_point: a checkpoint remains from which the run can continue.
    sentence: a text in the report's sentence; empty if the sentence must not be about checkpoints.
    """

    is_saved: bool
    has_resume_point: bool
    sentence: str


EXPECTED: dict[Save, Expected] = {
    "quick": Expected(is_saved=True, has_resume_point=True, sentence="nothing is lost"),
    "slow": Expected(is_saved=True, has_resume_point=True, sentence="nothing is lost"),
    "no-handler": Expected(is_saved=False, has_resume_point=True, sentence="nothing was saved after the stop"),
    "too-long": Expected(is_saved=False, has_resume_point=True, sentence="of work since step"),
    "torn": Expected(is_saved=False, has_resume_point=True, sentence="of work since step"),
    "overwrite": Expected(is_saved=False, has_resume_point=False, sentence="none of its checkpoints is complete"),
    "none": Expected(is_saved=False, has_resume_point=False, sentence=""),
}


def list_cells() -> list[Cell]:
    """Every cell of the matrix, grouped by location and way."""
    return [Cell(location, way, save) for location, way, save in itertools.product(LOCATIONS, WAYS, SAVES)]


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
