"""Detects hanging ranks and stragglers while a job runs, from the records in its logs; `on_hang` selects the action."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torchyard.common.log import get_log
from torchyard.diagnosis.hang.classes import get_proof_limit_s, list_waiting_ranks, points_at_node
from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stragglers import describe_straggler, find_straggler
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.hang import Hang, HangUpdate, RankRecord, Straggler
from torchyard.model.plan import Plan
from torchyard.model.run import Failure, Status
from torchyard.steps.hang_files import format_stacks, remove_hang, write_hang_files

_CERTAIN_AFTER_S = 30.0
_PAUSE_FACTOR = 10.0  # times the longest usual pause at the lines where the ranks stand
_STRAGGLER_INTERVAL_S = 300.0  # between two warnings of the same rank


class HangMonitor:
    """Check the ranks' records at every poll. `hang` and `straggler` are those of the last poll; None if there is none.

    A hang is reported immediately: a warning, the files in the attempt's folder, an event. It becomes certain when the
    same verdict has stood, without a break, for `_CERTAIN_AFTER_S` and a multiple of the usual pause: then a message is
    worth sending. It ends the job only if, in addition, measurements have proven for the limit of its class that the
    ranks which cause it do nothing (`Hang.proven_s`): time without a collective, which may be work, is not a proof.

    A HangUpdate is emitted whenever the hang or the straggler changes, and once when a hang has become certain, on the
    polling thread. Errors of `emit` and OSError of the files are raised to the caller. `clock`: monotonic seconds.
    """

    def __init__(
        self, plan: Plan, emit: Callable[[HangUpdate], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.hang: Hang | None = None
        self.straggler: Straggler | None = None
        self._plan = plan
        self._emit = emit
        self._clock = clock
        self._standing_since = 0.0  # when the present verdict was first reached
        self._has_judged = False  # this process has found that no rank hangs, by the records of all
        self._published = HangUpdate()
        self._folder = Path(next(iter(plan.nodes.values()))).parents[1]  # of the attempt: ATTEMPT/NODE/log
        self._last_straggler_warning: tuple[int, float] = (-1, 0.0)

    def check(self, box: BlackBox) -> Status | None:
        """Report a hang, or its end, once; return the failed status of a proven hang that ends the attempt.

        None if no rank provably hangs, or if `on_hang` does not end the job.
        """
        if self._plan.on_hang == "off" or not box.latest:
            return None
        self._report_straggler(box)
        previous = self.hang
        if previous and _has_waiting_rank_ended(previous, box.latest):
            return None  # the job ends, by a timeout or a signal: the verdict stays, and dying ranks are not judged
        self.hang = detect_hang(box.latest, box.world, box.get_record_ages())
        if not _is_same(previous, self.hang):
            self._standing_since = self._clock()
            self._report_change(previous, box)
        elif self.hang is None and not self._has_judged and len(box.latest) >= box.world:
            self._has_judged = True
            remove_hang(self._folder)  # of an earlier launcher: the ranks have continued since
        limit_s = _PAUSE_FACTOR * max(record.typical_pause_s for record in box.latest.values())
        stands_for_s = self._clock() - self._standing_since
        is_certain = self.hang is not None and stands_for_s >= max(_CERTAIN_AFTER_S, limit_s)
        self._publish(HangUpdate(hang=self.hang, straggler=self.straggler, is_certain=is_certain))
        if self.hang is None or not is_certain or self._plan.on_hang == "report":
            return None
        is_proven = self.hang.proven_s >= max(get_proof_limit_s(self.hang), limit_s)
        return self._build_failed_status(self.hang, box.latest) if is_proven else None

    def _report_change(self, previous: Hang | None, box: BlackBox) -> None:
        """Log and save a new verdict, or that the previous one no longer stands."""
        if self.hang:
            get_log().warning("%s", self.hang.sentence)
            write_hang_files(self._folder, self.hang, box.latest)
        elif previous:
            reason = "the ranks continue" if _has_progress(previous, box.latest) else "a rank is active again"
            get_log().info("%s: %s", reason, previous.sentence)
            remove_hang(self._folder)

    def _publish(self, update: HangUpdate) -> None:
        """Emit a change. The duration of a hang, which grows with every record, is not a change."""
        published = self._published
        self._published = update
        is_old = _is_same(published.hang, update.hang) and _is_same(published.straggler, update.straggler)
        has_become_certain = update.is_certain and not published.is_certain
        if has_become_certain or not is_old:
            self._emit(update)

    def get_outcome_fields(self, status: Status) -> dict[str, Hang | Straggler | None]:
        """The fields `hang` and `straggler` of an outcome; None where there is none, and no hang after a success."""
        hang = None if status.state == "succeeded" else self.hang
        return {"hang": hang, "straggler": self.straggler}

    def _build_failed_status(self, hang: Hang, records: Mapping[int, RankRecord]) -> Status:
        """The status of a job that a hang ends. Its failure quotes the stack of the first rank that hangs."""
        stacks = {rank: records[rank] for rank in hang.ranks[:1] if rank in records and records[rank].stack}
        failure = Failure(
            cause=LauncherCause.RANK_HANGS,
            sentence=hang.sentence,
            node=hang.nodes[0] if hang.nodes and points_at_node(hang.kind) else None,
            rank=hang.ranks[0] if hang.ranks else None,
            line=hang.evidence[0] if hang.evidence else None,
            tail=tuple(line for text in format_stacks(stacks) for line in text.split("\n")),
        )
        return Status(state="failed", reason=f"{hang.sentence} (on_hang: {self._plan.on_hang})", failure=failure)

    def _report_straggler(self, box: BlackBox) -> None:
        straggler = find_straggler(box.windows, {rank: record.node for rank, record in box.latest.items()})
        self.straggler = straggler or self.straggler
        rank, warned_at = self._last_straggler_warning
        now = self._clock()
        if straggler and (straggler.rank != rank or now - warned_at > _STRAGGLER_INTERVAL_S):
            self._last_straggler_warning = (straggler.rank, now)
            get_log().warning("%s", describe_straggler(straggler))


def _has_waiting_rank_ended(hang: Hang, records: Mapping[int, RankRecord]) -> bool:
    """Whether a rank that waited has ended, or an exception, such as that of its timeout, has ended its program."""
    waiting_records = [records[rank] for rank in list_waiting_ranks(hang) if rank in records]
    return any(record.kind == "end" or record.raised_after is not None for record in waiting_records)


def _has_progress(hang: Hang, records: Mapping[int, RankRecord]) -> bool:
    """Whether a rank that hung, or waited, has made progress since."""
    return any(records[rank].kind in ("pulse", "resume") for rank in (*hang.ranks, *hang.waiting) if rank in records)


def _is_same(one: Hang | Straggler | None, other: Hang | Straggler | None) -> bool:
    """Whether two verdicts blame the same ranks for the same kind of hang, or the same rank as a straggler."""
    if isinstance(one, Hang) and isinstance(other, Hang):
        return (one.kind, one.ranks) == (other.kind, other.ranks)
    if isinstance(one, Straggler) and isinstance(other, Straggler):
        return one.rank == other.rank
    return one is other
