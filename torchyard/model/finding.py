"""A finding: what was examined, the result, and what to do. Profiles, manifests and preflight report in this form."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

Verdict = Literal["ok", "warning", "failed"]


class FilePosition(NamedTuple):
    """A line of a file, counted from 1; `override` without a line for a value that is not from a file."""

    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of examining one thing.

    where: what was examined: a key (`options.hosts`), an object of a manifest and its key, or a requirement
        (`queue default`, `port 29400 of gpu1`). Empty for a whole profile.
    what: the observation, as a clause.
    remedy: what to do; empty if there is nothing to do, or if `what` says it.
    verdict: whether it prevents the run.
    takes_other_port: whether the run can take another port instead of the one that is held.
    lacks_room: whether the nodes that the pods may use are too few.
    lacks_toleration: whether nodes are large enough, and have a taint that the pods do not tolerate.
    file: the file with the mistake, or `override` if the value is not from a file; empty if it is not about a file.
    line: the line in this file, counted from 1; None if it is not known.
    """

    where: str
    what: str
    remedy: str = ""
    verdict: Verdict = "failed"
    takes_other_port: bool = False
    lacks_room: bool = False
    lacks_toleration: bool = False
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        """`file:line: where: what; remedy`, without the parts that are empty."""
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        sentence = ": ".join(part for part in (location, self.where, self.what) if part)
        return f"{sentence}; {self.remedy}" if self.remedy else sentence

    def within(self, location: str) -> Self:
        """The same finding with the object that has the key before its `where`."""
        return replace(self, where=f"{location}: {self.where}" if self.where else location)

    def at(self, position: FilePosition) -> Self:
        """The same finding with its position in a file."""
        return replace(self, file=position.file, line=position.line)


def passed_check(subject: str, detail: str) -> Finding:
    return Finding(subject, detail, verdict="ok")


def warning_check(subject: str, detail: str, remedy: str = "") -> Finding:
    return Finding(subject, detail, remedy, "warning")


def failed_check(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, detail, remedy)


def describe_checks(checks: Sequence[Finding]) -> str:
    """`12 of 12 checks, 1 with a warning`: how many have not failed, and how many of these are warnings."""
    passed_count = sum(check.verdict != "failed" for check in checks)
    warning_count = sum(check.verdict == "warning" for check in checks)
    suffix = f", {warning_count} with a warning" if warning_count else ""
    return f"{passed_count} of {len(checks)} checks{suffix}"
