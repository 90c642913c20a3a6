"""A finding: what was examined, the result, and what to do. Profiles, manifests and preflight report in this form."""

from dataclasses import dataclass, replace
from typing import Literal, Self

Verdict = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of examining one thing.

    where: what was examined: a key (`options.hosts`), an object of a manifest and its key, or a requirement
        (`queue default`, `port 29400 of gpu1`). Empty for a whole profile.
    what: what is the case there, as a clause.
    remedy: what to do; empty if there is nothing to do, or if `what` says it.
    verdict: whether it prevents the run.
    takes_other_port: whether the run can take another port instead of the one that is held.
    """

    where: str
    what: str
    remedy: str = ""
    verdict: Verdict = "failed"
    takes_other_port: bool = False

    def __str__(self) -> str:
        """`where: what; remedy`, without the parts that are empty."""
        sentence = f"{self.where}: {self.what}" if self.where else self.what
        return f"{sentence}; {self.remedy}" if self.remedy else sentence

    def within(self, location: str) -> Self:
        """The same finding with a location before its `where`: a file and line, or the object that has the key."""
        return replace(self, where=f"{location}: {self.where}" if self.where else location)


def passed_check(subject: str, detail: str) -> Finding:
    return Finding(subject, detail, verdict="ok")


def warning_check(subject: str, detail: str, remedy: str = "") -> Finding:
    return Finding(subject, detail, remedy, "warning")


def failed_check(subject: str, detail: str, remedy: str) -> Finding:
    return Finding(subject, detail, remedy)
