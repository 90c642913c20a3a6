"""The recorder's data about a job's ranks, and the verdicts derived from it: which rank hangs, where, and why."""

from typing import Literal, NamedTuple

from pydantic import Field

from torchyard.model.base import FrozenModel

RECORD_PREFIX = "torchyard-recorder: "  # prefix of a line of a node's log that holds ranks' records
OnHang = Literal["off", "report", "restart", "fail"]
# `silent` is not printed by a recorder: it is the last record of a rank of which no other has come for a long time.
RecordKind = Literal["pulse", "stall", "resume", "raised", "end", "silent"]
# Why a rank does not call the collective in which others wait.
FaultClass = Literal["missing-rank", "compute", "data-loader", "stopped", "gil", "network", "storage"]
HangClass = Literal[
    FaultClass,
    "collective-mismatch",
    "deadlock-between-groups",
    "all-waiting-outside",
    "unknown",
]


class Frame(FrozenModel):
    """One frame of a Python stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


class Collective(FrozenModel):
    """One call of a collective, or of a send or receive, as the rank that made it sees it."""

    group: str = Field(description="the process group's name in torch, `0` for the default group")
    sequence: int = Field(description="the number of the call in its group, from 1; 0 if it is not counted")
    operation: str = Field(description="all_reduce, barrier ...")
    sizes: tuple[tuple[int, ...], ...] = Field((), description="of the input tensors, in elements")
    dtypes: tuple[str, ...] = ()
    peer: int | None = Field(None, description="the other rank of a send or receive, which has no sequence: it is 0")
    root: int | None = Field(None, description="the rank from which a broadcast comes, or to which a reduce goes ...")
    members: tuple[int, ...] = Field((), description="the ranks of a group that is set up; empty: all, or not known")


class GroupProgress(FrozenModel):
    """How far a rank has come in one process group."""

    ranks: tuple[int, ...] = Field((), description="global ranks of the group; empty: all of the job")
    enqueued: int = Field(description="collectives that the rank has called")
    completed: int = Field(description="collectives that are complete, as the rank sees it")


class Link(FrozenModel):
    """A TCP connection of the rank that retransmits: what it sent is not acknowledged."""

    peer: str
    local: str = Field("", description="the rank's own address on this connection")
    retransmits: int
    queued: int = Field(description="bytes that are not acknowledged")


class RankRecord(FrozenModel):
    """The state of one rank, as the recorder on its node reports it (torchyard/host/black_box)."""

    kind: RecordKind
    timestamp: float = Field(description="seconds since the epoch, by the node's clock")
    node: str = Field("", description="the node of the plan whose log holds the record")
    rank: int
    world: int = Field(description="the number of ranks in the job")
    pid: int
    stalled_s: float = Field(description="seconds since any collective of this rank was called or completed")
    typical_pause_s: float = Field(
        description="the longest of the last such pauses at the same line of the program; 0 at a line without any"
    )
    groups: dict[str, GroupProgress] = Field({}, description="empty: not in a process group, or a torch without it")
    pending: Collective | None = Field(None, description="the oldest collective that is called and not complete")
    stack: tuple[Frame, ...] = Field((), description="the main thread's, innermost frame first")
    stack_id: int = Field(
        0, description="identifies the stack, which is left out if it is that of the rank's previous record; 0: none"
    )
    is_exiting: bool = Field(False, description="the program has ended or failed, and waits for its other threads")
    state: str = Field(
        "",
        description="of the thread that trains, as in /proc: R, S, D, T, Z, ?; empty in a stall if the rank has ended",
    )
    idle_s: float = Field(
        0.0,
        description="seconds for which the rank and its children have provably done nothing: no processor time, no "
        "wait for a processor, no bytes on connections and files, no page faults; 0 if active, or not measured",
    )
    longest_idle_s: float = Field(0.0, description="the longest idle time of this stall that ended with activity")
    is_polling: bool = Field(
        False, description="the thread that trains has woken up while the rank was idle, as a loop that polls"
    )
    waits_for_device: bool = Field(
        False, description="the thread that trains is in a call that waits for a GPU; then the rank is not idle"
    )
    uses_files: bool = Field(False, description="has read or written files in the last second")
    writes_files: bool = Field(False, description="has written files in the last five seconds")
    frozen_s: float = Field(
        0.0, description="seconds since the recorder's thread in the rank last ran: GIL, or stopped"
    )
    wchan: str = Field(
        "", description="kernel function in which the main thread sleeps; empty if the kernel does not report it"
    )
    collectives: int | None = Field(
        None, ge=0, description="collectives that the rank has called, in a record of its end; None if it is not known"
    )
    program_world: int | None = Field(
        None, ge=0, description="the ranks of its default process group, in a record of its end; None if it had none"
    )
    raised_after: float | None = Field(
        None,
        description="when the program was last seen without the exception that has ended it, in seconds since the "
        "epoch, by the node's clock; None if no exception has",
    )
    kernel_waits: tuple[str, ...] = Field(
        (),
        description="states and kernel functions of all threads of the rank and its children, while it is idle: "
        "`D folio_wait_bit_common`",
    )
    links: tuple[Link, ...] = ()
    full_mount: str = Field(
        "", description="mount point of a file system of the node that has recently become full; empty if none"
    )
    waiting_share: float = Field(
        0.0, description="share of the last window that the rank spent waiting in collectives, 0 to 1"
    )


class RankPulse(NamedTuple):
    """A healthy rank in its node's pulse; the fields are those of RankRecord.

    groups: by name, each as the collectives called, those completed, and the ranks of the group.
    """

    rank: int
    pid: int
    waiting_share: float
    stalled_s: float
    typical_pause_s: float
    groups: dict[str, tuple[int, ...]]


class NodePulse(FrozenModel):
    """The line of a node's recorder about its healthy ranks."""

    kind: Literal["pulse"]
    timestamp: float
    world: int
    ranks: tuple[RankPulse, ...]

    def build_records(self) -> list[RankRecord]:
        """A record for each rank. ValueError if a group lacks its numbers."""
        records = []
        for rank in self.ranks:
            groups = {}
            for name, (enqueued, completed, *members) in rank.groups.items():
                groups[name] = GroupProgress(ranks=tuple(members), enqueued=enqueued, completed=completed)
            record = RankRecord(
                kind=self.kind,
                timestamp=self.timestamp,
                rank=rank.rank,
                world=self.world,
                pid=rank.pid,
                stalled_s=rank.stalled_s,
                typical_pause_s=rank.typical_pause_s,
                groups=groups,
                waiting_share=rank.waiting_share,
            )
            records.append(record)
        return records


class RankGroup(FrozenModel):
    """Ranks that stand at the same location of the code."""

    ranks: tuple[int, ...]
    location: str = Field(
        description="innermost frame of the user's code and the call below it, or the process's state"
    )


class Hang(FrozenModel):
    """A job, or a part of it, that makes no progress."""

    kind: HangClass
    ranks: tuple[int, ...] = Field(description="the ranks that cause the hang; empty if unknown")
    nodes: tuple[str, ...] = Field(description="the nodes of `ranks`")
    sentence: str = Field(description="which rank hangs, where, and which ranks wait for it")
    location: str = Field("", description="`function (file:line)` of the rank that hangs; empty if unknown")
    collective: Collective | None = Field(
        None, description="the collective in which the other ranks wait; None if they do not wait in one"
    )
    waiting: tuple[int, ...] = Field((), description="the ranks that wait for `ranks`")
    stalled_s: float = 0.0
    proven_s: float = Field(
        0.0, description="seconds for which measurements prove that it makes no progress: only then it may end the job"
    )
    is_polling: bool = Field(
        False, description="a rank that causes it polls, so that it may wait for work that is done elsewhere"
    )
    fault_kinds: tuple[FaultClass, ...] = Field(
        (), description="what the ranks that cause it wait for, by their own records: all ranks, if none is named"
    )
    rank_groups: tuple[RankGroup, ...] = ()
    evidence: tuple[str, ...] = Field((), description="facts that prove it, one sentence each")


class Straggler(FrozenModel):
    """A rank that arrives last at collectives, so that all others wait for it."""

    rank: int
    node: str
    lost_percent: float = Field(description="share of the other ranks' time that they spent waiting for it")
    lost_s: float = Field(description="seconds that the other ranks waited for it in the window")
    window_s: float


class HangUpdate(FrozenModel):
    """A change of the hang verdict while a job runs."""

    hang: Hang | None = Field(None, description="None: no rank hangs, or the hang is over")
    straggler: Straggler | None = None
    is_certain: bool = Field(False, description="the verdict has stood for so long that it is worth a message")
