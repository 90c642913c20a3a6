"""Says which rank hangs while the job is waited for, from the records in its logs; the profile says what follows."""

import time
from pathlib import Path

from torchyard.common.log import get_log
from torchyard.diagnosis.hang.judge import judge_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stragglers import describe_straggler, find_straggler
from torchyard.diagnosis.log_patterns import RANK_HANGS
from torchyard.model.hang import Hang, HangClass, Straggler
from torchyard.model.plan import Plan
from torchyard.model.run import Failure, Status
from torchyard.steps.hang_files import write_hang

# A hang is told at once, and acted on later: what ends a job must be beyond doubt.
_ACT_AFTER_S, _ACT_FACTOR = 30.0, 10.0  # seconds; times the longest pause so far
# Kinds that another node would not cure: the next attempt need not avoid this one.
_PROGRAM_KINDS: frozenset[HangClass] = frozenset(
    {"compute", "data-loader", "collective-mismatch", "deadlock-between-groups", "gil", "all-waiting-outside"}
)
_STRAGGLER_INTERVAL_S = 300.0  # between two warnings of the same rank


class HangMonitor:
    """Judges the ranks' records at every poll. `hang` and `straggler` are what is true now, or was at the end."""

    def __init__(self, plan: Plan) -> None:
        self.hang: Hang | None = None
        self.straggler: Straggler | None = None
        self._plan = plan
        self._folder = Path(next(iter(plan.nodes.values()))).parents[1]  # of the attempt: ATTEMPT/NODE/log
        self._straggler_said: tuple[int, float] = (-1, 0.0)

    def judge(self, box: BlackBox) -> Status | None:
        """Report a hang, or its end, once; the failed status if it is to end the attempt."""
        if self._plan.on_hang == "off" or not box.latest:
            return None
        self._report_straggler(box)
        before, self.hang = self.hang, judge_hang(box.latest, box.world, box.ages())
        if self.hang is None:
            if before:
                get_log().info("the ranks go on: %s", before.sentence)
            return None
        if before is None or (before.kind, before.ranks) != (self.hang.kind, self.hang.ranks):
            get_log().warning("%s", self.hang.sentence)
            write_hang(self._folder, self.hang, box.latest)
        usual = max(record.usual_s for record in box.latest.values())
        is_due = self.hang.stalled_s >= max(_ACT_AFTER_S, _ACT_FACTOR * usual)
        return self._fail(self.hang) if is_due and self._plan.on_hang != "report" else None

    def findings(self, status: Status) -> dict[str, Hang | Straggler | None]:
        """What of an outcome is known here: a hang only if the job did not go on after it."""
        return {"hang": None if status.state == "succeeded" else self.hang, "straggler": self.straggler}

    def _fail(self, hang: Hang) -> Status:
        repeat = self._plan.on_hang == "restart"
        failure = Failure(
            cause=RANK_HANGS.slug,
            sentence=hang.sentence,
            node=hang.nodes[0] if hang.nodes and hang.kind not in _PROGRAM_KINDS else None,
            rank=hang.ranks[0] if hang.ranks else None,
            retry=repeat,
            line=hang.evidence[0] if hang.evidence else None,
        )
        return Status(state="failed", reason=f"{hang.sentence} (on_hang: {self._plan.on_hang})", failure=failure)

    def _report_straggler(self, box: BlackBox) -> None:
        found = find_straggler(box.windows, {rank: record.node for rank, record in box.latest.items()})
        self.straggler = found or self.straggler
        rank, said_at = self._straggler_said
        now = time.monotonic()
        if found and (found.rank != rank or now - said_at > _STRAGGLER_INTERVAL_S):
            self._straggler_said = (found.rank, now)
            get_log().warning("%s", describe_straggler(found))
