"""Reports the first rank that fails while a job runs, with its last words, before its agent ends."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from torchyard.diagnosis.failure_words import DIGITS
from torchyard.diagnosis.first_failure.failure_signs import FailureSign, FailureSignReader
from torchyard.diagnosis.first_failure.last_words import find_first_failure, find_same_ranks
from torchyard.diagnosis.pod_facts import normalize_exit_code
from torchyard.model.event import RankFailed
from torchyard.model.plan import Plan
from torchyard.model.run import LogLine
from torchyard.steps.log_tail import LogTails

SETTLE_S = 0.2  # after the first sign: the rest of a traceback arrives, and the other ranks that fail at that moment
_MAX_RETRY_DELAY_S = 2.0  # it doubles with each try, for an exception whose last line does not arrive
_MAX_SIGNS = 64  # that are compared: the earliest ones
_MAX_NODES = 16  # whose last lines are read
_MAX_NODE_LINES = 400
_WITHOUT_DIGITS = str.maketrans("", "", DIGITS.decode())


class FailureMonitor:
    """Find the rank that failed first in the signs of failures, and read its last words from the logs on disk.

    `check` is called at each poll of the job. It emits RankFailed once for each start of the workers, as soon as a rank
    has failed by itself: one that only lost a peer waits for the sign of that peer. It is emitted once more when the
    exit code of that rank is known. `conclude` is called once the job has failed, before what still runs is stopped: a
    failure that no sign has shown by then is emitted as the ends of the processes show it.

    Nothing is read without a new sign. Errors of `emit` and OSError of the logs are raised to the caller. `clock`:
    monotonic seconds.
    """

    def __init__(
        self,
        plan: Plan,
        signs: FailureSignReader,
        emit: Callable[[RankFailed], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = plan.nodes
        self._signs = signs
        self._emit = emit
        self._clock = clock
        self._tails = LogTails(plan.nodes)
        self._change_count = 0  # of the signs that were read
        self._check_at: float | None = None  # by the clock; None: nothing is due
        self._delay_s = SETTLE_S  # before the next check
        self._first: FailureSign | None = None  # the rank that was reported
        self._reported_text = ""  # without digits

    @property
    def is_pending(self) -> bool:
        """Whether the next check is due within `SETTLE_S`."""
        return self._check_at is not None

    def check(self) -> None:
        """Report the first rank that has failed, and later its exit code, once `SETTLE_S` have passed after a new sign.

        If the logs do not show yet which rank that is, they are read again after twice that time, and so on up to
        `_MAX_RETRY_DELAY_S`, then only after another sign.
        """
        now = self._clock()
        if self._signs.change_count != self._change_count:
            self._change_count = self._signs.change_count
            self._delay_s = SETTLE_S
            self._check_at = min(self._check_at or math.inf, now + SETTLE_S)
        if self._check_at is None or now < self._check_at:
            return
        self._check_at = None
        if self._first:
            self._update_first(self._first)
        signs = self._signs.signs
        if self._first or not signs or self._report_first(signs):
            return
        if self._delay_s < _MAX_RETRY_DELAY_S:
            self._delay_s *= 2
            self._check_at = now + self._delay_s

    def conclude(self, exit_codes: Mapping[str, int | None]) -> None:
        """Report the first failure of a job that has failed, if that is not done yet.

        `exit_codes`: of the processes of the nodes; negative: a signal; None: running, or unknown.
        """
        if self._first:
            self._update_first(self._first)
            return
        signs = self._signs.signs
        nodes_with_signs = {failure_sign.node for failure_sign in signs}
        for node in self._nodes:
            exit_code = exit_codes.get(node)
            if exit_code and node not in nodes_with_signs:
                last_lines = self._tails.last(node, 1)
                ended_at = last_lines[0].timestamp if last_lines else 0.0
                code = normalize_exit_code(exit_code)
                signs.append(FailureSign(node, None, None, ended_at, code, has_ended=True))
        self._report_first(signs, with_consequences=True)

    def _update_first(self, first: FailureSign) -> None:
        """Report the exit code of the first rank, once; forget the rank if its agent has started it again."""
        current = self._signs.find(first)
        self._first = current
        if current is None or current == first:
            return
        signs = _select_signs(self._signs.signs)
        same_ranks = find_same_ranks(current, signs, self._read_tails(signs))
        self._emit(
            RankFailed(
                node=current.node,
                local_rank=current.local_rank,
                rank=current.rank,
                exit_code=current.exit_code,
                has_ended=current.has_ended,
                lines=(),
                same_ranks=same_ranks,
            )
        )

    def _report_first(self, signs: Sequence[FailureSign], *, with_consequences: bool = False) -> bool:
        """Report the rank that failed first; return False if none is found.

        Words that an earlier start of the workers has ended with are not repeated.
        """
        selected_signs = _select_signs(signs)
        tails = self._read_tails(selected_signs)
        last_words = find_first_failure(selected_signs, tails, with_consequences=with_consequences)
        if last_words is None:
            return False
        failure_sign = last_words.failure_sign
        failure = RankFailed(
            node=failure_sign.node,
            local_rank=failure_sign.local_rank,
            rank=last_words.rank,
            exit_code=failure_sign.exit_code,
            has_ended=failure_sign.has_ended,
            lines=last_words.lines,
            same_ranks=last_words.same_ranks,
        )
        text = "\n".join(last_words.lines).translate(_WITHOUT_DIGITS)
        if text == self._reported_text:
            failure = failure._replace(lines=())
        self._reported_text = text
        self._first = failure_sign
        self._emit(failure)
        return True

    def _read_tails(self, signs: Sequence[FailureSign]) -> dict[str, list[LogLine]]:
        """The last lines of the nodes of these signs."""
        return {node: self._tails.last(node, _MAX_NODE_LINES) for node in {failure_sign.node for failure_sign in signs}}


def _select_signs(signs: Sequence[FailureSign]) -> list[FailureSign]:
    """The signs that are compared: ends by a signal, which print no words, then the earliest ones; of few nodes."""
    nodes: set[str] = set()
    selected: list[FailureSign] = []
    for failure_sign in sorted(signs, key=_get_priority)[:_MAX_SIGNS]:
        if len(nodes) < _MAX_NODES or failure_sign.node in nodes:
            nodes.add(failure_sign.node)
            selected.append(failure_sign)
    return selected


def _get_priority(failure_sign: FailureSign) -> tuple[bool, float]:
    is_signal = failure_sign.exit_code is not None and failure_sign.exit_code < 0
    return not is_signal, failure_sign.shown_at
