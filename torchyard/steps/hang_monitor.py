"""Says which rank hangs while the job is waited for, from the records in its logs; the profile says what follows."""

import time
from collections.abc import Callable
from pathlib import Path

from torchyard.common.log import get_log
from torchyard.diagnosis.hang.judge import detect_hang
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.diagnosis.hang.stragglers import describe_straggler, find_straggler
from torchyard.diagnosis.log_patterns import RANK_HANGS
from torchyard.model.hang import Hang, HangClass, HangUpdate, Straggler
from torchyard.model.plan import Plan
from torchyard.model.run import Failure, Status
from torchyard.steps.hang_files import write_hang_files

# A hang is told at once, and acted on later: what ends a job must be beyond doubt.
_ACT_AFTER_S, _ACT_FACTOR = 30.0, 10.0  # seconds; times the longest pause so far
# Kinds that another node would not cure: the next attempt need not avoid this one.
_PROGRAM_KINDS: frozenset[HangClass] = frozenset(
    {"compute", "data-loader", "collective-mismatch", "deadlock-between-groups", "gil", "all-waiting-outside"}
)
_STRAGGLER_INTERVAL_S = 300.0  # between two warnings of the same rank


HangCallback = Callable[[HangUpdate], None]


class HangMonitor:
    """Check the ranks' records at every poll. `hang` and `straggler` are what is true now, or was at the end.

    A hang is reported immediately (a warning, the page in the attempt's folder, the callback), but ends the job only
    after `_ACT_AFTER_S` and `_ACT_FACTOR` times the longest usual pause, so that a false alarm cannot stop a healthy
    job.
    It is called by the polling thread alone. Errors of the callback and OSError of the page are raised to the caller.

    `on_update` is called whenever one of them changes, and once when a hang is beyond doubt.
    """

    def __init__(self, plan: Plan, on_update: HangCallback = lambda _: None) -> None:
        self.hang: Hang | None = None
        self.straggler: Straggler | None = None
        self._plan = plan
        self._on_update = on_update
        self._published = HangUpdate()
        self._folder = Path(next(iter(plan.nodes.values()))).parents[1]  # of the attempt: ATTEMPT/NODE/log
        self._last_straggler_warning: tuple[int, float] = (-1, 0.0)

    def check(self, box: BlackBox) -> Status | None:
        """Report a hang, or its end, once; the failed status if it is to end the attempt."""
        if self._plan.on_hang == "off" or not box.latest:
            return None
        self._report_straggler(box)
        previous, self.hang = self.hang, detect_hang(box.latest, box.world, box.get_record_ages())
        typical_pause_s = max(record.usual_s for record in box.latest.values())
        is_certain = self.hang is not None and self.hang.stalled_s >= max(_ACT_AFTER_S, _ACT_FACTOR * typical_pause_s)
        if self.hang is None:
            if previous:
                get_log().info("the ranks go on: %s", previous.sentence)
        elif previous is None or not _is_same(previous, self.hang):
            get_log().warning("%s", self.hang.sentence)
            write_hang_files(self._folder, self.hang, box.latest)
        self._publish(HangUpdate(hang=self.hang, straggler=self.straggler, is_certain=is_certain))
        return (
            self._build_failed_status(self.hang)
            if self.hang and is_certain and self._plan.on_hang != "report"
            else None
        )

    def _publish(self, update: HangUpdate) -> None:
        """Pass on what is new; how long a hang has lasted changes with every record."""
        published, self._published = self._published, update
        is_old = _is_same(published.hang, update.hang) and _is_same(published.straggler, update.straggler)
        if not is_old or update.is_certain > published.is_certain:
            self._on_update(update)

    def findings(self, status: Status) -> dict[str, Hang | Straggler | None]:
        """What of an outcome is known here: a hang only if the job did not go on after it."""
        return {"hang": None if status.state == "succeeded" else self.hang, "straggler": self.straggler}

    def _build_failed_status(self, hang: Hang) -> Status:
        is_retryable = self._plan.on_hang == "restart"
        failure = Failure(
            cause=RANK_HANGS.slug,
            sentence=hang.sentence,
            node=hang.nodes[0] if hang.nodes and hang.kind not in _PROGRAM_KINDS else None,
            rank=hang.ranks[0] if hang.ranks else None,
            retry=is_retryable,
            line=hang.evidence[0] if hang.evidence else None,
        )
        return Status(state="failed", reason=f"{hang.sentence} (on_hang: {self._plan.on_hang})", failure=failure)

    def _report_straggler(self, box: BlackBox) -> None:
        straggler = find_straggler(box.windows, {rank: record.node for rank, record in box.latest.items()})
        self.straggler = straggler or self.straggler
        rank, warned_at = self._last_straggler_warning
        now = time.monotonic()
        if straggler and (straggler.rank != rank or now - warned_at > _STRAGGLER_INTERVAL_S):
            self._last_straggler_warning = (straggler.rank, now)
            get_log().warning("%s", describe_straggler(straggler))


def _is_same(one: Hang | Straggler | None, other: Hang | Straggler | None) -> bool:
    """Whether two verdicts blame the same ranks for the same thing."""
    if isinstance(one, Hang) and isinstance(other, Hang):
        return (one.kind, one.ranks) == (other.kind, other.ranks)
    if isinstance(one, Straggler) and isinstance(other, Straggler):
        return one.rank == other.rank
    return one is other
