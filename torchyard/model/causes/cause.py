"""The cause of a failed job: its slug, what is known about it, and the rules that show it.

The causes and their rules are in torchyard/model/causes, one module per family.
"""

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import NamedTuple, Self


@dataclass(frozen=True)
class CauseFacts:
    """The definition of a member of Cause; its fields are those of the member."""

    slug: str
    advice: str = ""
    retry: bool = False
    points_at_node: bool = True
    requeue: bool = False


class Cause(StrEnum):
    """Why a job failed, as the slug that reports, tags and messages contain: a stable contract.

    This class has no members, so that each family of torchyard/model/causes defines its own beside its rules;
    `registry.parse_cause` finds the member of a slug.

    advice: a remedy, for the rules that do not name their own; "" if there is none.
    retry: another attempt may succeed, unless a rule has better evidence.
    points_at_node: the node of the failure may be at fault, so that the next attempt avoids it (`avoid_failed`).
    requeue: the platform took the machines away; the job did not fail, so the next attempt is one of `requeues`.
    """

    advice: str
    retry: bool
    points_at_node: bool
    requeue: bool

    def __new__(cls, definition: CauseFacts) -> Self:
        member = str.__new__(cls, definition.slug)
        member._value_ = definition.slug
        member.advice = definition.advice
        member.retry = definition.retry
        member.points_at_node = definition.points_at_node
        member.requeue = definition.requeue
        return member


class Distance(IntEnum):
    """How far a symptom usually is from the origin of the failure: a nearer symptom explains a farther one."""

    OWN = 0  # the process itself failed
    EXIT = 1  # it ended by itself, without a word
    FABRIC = 2  # its network failed, or the peer behind it
    PEER = 3  # it lost a peer
    WAIT = 4  # it waited for others in vain
    STOPPED = 5  # it was stopped, or exited
    UNKNOWN = 6


def list_exit_code_patterns(signal_number: int) -> tuple[str, ...]:
    """The forms in which launchers print that a process ended by a signal: Python's code of it, and the shell's."""
    code = rf"(?:-{signal_number}|{128 + signal_number})\b"
    return (
        rf"return code = {code}",
        rf"terminated with code {code}",
        rf"xit(?:ed)?(?: with)? (?:exit |status )?(?:code|status)[: =(]{{1,6}}{code}",
        rf"KILLED BY SIGNAL: {signal_number}\b",
        rf"died from signal {signal_number}\b",
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class LogRule:
    """A line of a log, or an exit code, that shows a cause.

    symptom: the clause after `Rank 3 on node-1`. `{evidence}` stands for the quoted line, `{code}` and `{signal}`
        for the exit code and its signal, other names for groups of the patterns.
    patterns: a line that one of them matches shows the cause; () if only exit codes do.
    failure_words: texts of other lines that are needed to explain the cause. A pattern whose texts are all inside
        groups needs its words here too (diagnosis/failure_words.py).
    own_advice, own_retry: in place of the cause's; None: as the cause.
    explains_signal: may be the reason why the process ended by a signal.
    worker_codes: exit codes of a worker that mean this cause; negative: a signal.
    agent_codes: the same for torchrun, or for what should have started it.
    """

    cause: Cause
    symptom: str
    patterns: tuple[str, ...] = ()
    failure_words: tuple[str, ...] = ()
    own_advice: str | None = None
    own_retry: bool | None = None
    distance: Distance = Distance.OWN
    explains_signal: bool = False
    worker_codes: tuple[int, ...] = ()
    agent_codes: tuple[int, ...] = ()

    @property
    def description(self) -> str:
        """The symptom and the advice, as one clause."""
        advice = self.cause.advice if self.own_advice is None else self.own_advice
        return f"{self.symptom}: {advice}" if advice else self.symptom

    @property
    def retry(self) -> bool:
        """Whether another attempt may succeed."""
        return self.cause.retry if self.own_retry is None else self.own_retry

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The patterns as one, compiled at the first use; None if there are none."""
        return re.compile("|".join(self.patterns)) if self.patterns else None


@dataclass(frozen=True, kw_only=True)
class PodRule:
    """What a reason in a pod's status, or an event, means.

    description: the clause after the pod's name.
    own_retry: in place of the cause's; None: as the cause.
    patience_s: seconds that the reason must persist before it ends the job; infinity if it never does.
    is_planned: the platform ends a healthy pod on purpose, as a drain does; such an end is a requeue like those of a
        cause with `requeue`.
    """

    cause: Cause
    description: str
    own_retry: bool | None = None
    patience_s: float = 0.0
    is_planned: bool = False

    @property
    def retry(self) -> bool:
        """Whether another attempt may succeed."""
        return self.cause.retry if self.own_retry is None else self.own_retry

    @property
    def requeue(self) -> bool:
        """Whether the platform took the machines away, and the job did not fail."""
        return self.cause.requeue or self.is_planned


class EventRule(NamedTuple):
    """An event that shows a cause. If it persists beyond the rule's patience, it ends a job that has not started.

    reason_pattern: matches the whole reason of the event.
    message_pattern: is searched in its message; "" matches any.
    """

    reason_pattern: str
    message_pattern: str
    pod_rule: PodRule
