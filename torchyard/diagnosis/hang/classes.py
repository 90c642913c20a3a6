"""What depends on the class of a hang: mypy requires an answer here for every new class."""

import math
from typing import NamedTuple, assert_never

from torchyard.model.hang import FaultClass, Hang, HangClass

_ELSEWHERE_LIMIT_S = 300.0  # of what may wait for another machine


class FaultFacts(NamedTuple):
    """What is known about a rank that others wait for, by the class of its fault.

    priority: if several ranks are missing, those whose fault has the lowest one, the most certain, are blamed.
    is_certain: the rank hangs even if another missing rank may still call the collective.
    is_working: the rank may still make progress, so that the sentence contains the limit that it has exceeded.
    suffix: what the rank does at its location, as the end of a clause.
    """

    priority: int
    is_certain: bool = False
    is_working: bool = False
    suffix: str = ""


def get_fault_facts(kind: FaultClass) -> FaultFacts:
    """The facts about a class of faults."""
    match kind:
        case "stopped":
            facts = FaultFacts(priority=0, is_certain=True)
        case "gil":
            facts = FaultFacts(priority=1, is_certain=True, suffix=", in a call that holds Python's global lock")
        case "storage":
            facts = FaultFacts(priority=2, is_certain=True, suffix=", where it reads or writes files")
        case "data-loader":
            facts = FaultFacts(priority=3)
        case "missing-rank":
            facts = FaultFacts(priority=4)
        case "network":
            facts = FaultFacts(priority=5, suffix=", where it waits for another machine")
        case "compute":
            facts = FaultFacts(priority=6, is_working=True)
        case _:
            assert_never(kind)
    return facts


def get_proof_limit_s(hang: Hang) -> float:
    """For how many seconds a hang must be proven, without a break, before it may end the job; infinite: it never does.

    A file server that fails over, and another machine that works for this one, need minutes and show nothing here.
    """
    limit_s = max(map(_get_class_limit_s, (hang.kind, *hang.fault_kinds)))
    return max(limit_s, _ELSEWHERE_LIMIT_S) if hang.is_polling else limit_s


def _get_class_limit_s(kind: HangClass) -> float:
    match kind:
        case "missing-rank" | "stopped" | "gil":
            return 30.0
        case "collective-mismatch" | "deadlock-between-groups" | "all-waiting-outside" | "unknown":
            return 30.0
        case "storage" | "data-loader":  # what a loader's processes wait for is mostly a file
            return 120.0
        case "network":
            return _ELSEWHERE_LIMIT_S
        case "compute":
            return math.inf
        case _:
            assert_never(kind)


def points_at_node(kind: HangClass) -> bool:
    """Whether another node may cure a hang, so that the next attempt avoids this one."""
    match kind:
        case "missing-rank" | "stopped" | "network" | "storage" | "unknown":
            return True
        case "compute" | "data-loader" | "gil":
            return False
        case "collective-mismatch" | "deadlock-between-groups" | "all-waiting-outside":
            return False
        case _:
            assert_never(kind)


def has_exclusive_calls(kind: HangClass) -> bool:
    """Whether the ranks are in calls that exclude each other: a mistake of the program, which an attempt repeats."""
    match kind:
        case "collective-mismatch" | "deadlock-between-groups":
            return True
        case "missing-rank" | "stopped" | "network" | "storage" | "compute" | "data-loader" | "gil":
            return False
        case "all-waiting-outside" | "unknown":
            return False
        case _:
            assert_never(kind)


def list_waiting_ranks(hang: Hang) -> tuple[int, ...]:
    """The ranks that wait in a call: where calls exclude each other, also those that cause the hang."""
    return (*hang.waiting, *hang.ranks) if has_exclusive_calls(hang.kind) else hang.waiting
