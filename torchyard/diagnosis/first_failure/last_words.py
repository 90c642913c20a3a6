"""The last words of the rank that failed first: its traceback, the lines about its error, or what it printed last."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchyard.common.escaping import single_line
from torchyard.diagnosis.failure_words import DIGITS
from torchyard.diagnosis.first_failure.failure_signs import FailureSign
from torchyard.diagnosis.log_line_parts import LogLinePart, parse_line
from torchyard.diagnosis.root_cause import diagnose_process
from torchyard.diagnosis.tracebacks import split_lines
from torchyard.diagnosis.worker_reports import has_started_workers
from torchyard.model.causes.cause import Distance
from torchyard.model.run import LogLine

_MAX_BLOCK_LINES = 40  # of a traceback, of which the last ones matter most
_MAX_ERROR_LINES = 6  # from a line that shows an error on
_MAX_OTHER_LINES = 3  # of a process that shows no error
_MAX_LINE_CHARS = 240
_WITHOUT_DIGITS = str.maketrans("", "", DIGITS.decode())


class LastWords(NamedTuple):
    """What a process that failed printed last.

    rank: of the sign, or else as the line names it that shows the error; None if neither does.
    is_consequence: it failed because another one did, was stopped, or shows nothing.
    failed_at: when it failed, as its own lines show it, else the sign of its failure; in seconds since the epoch.
    lines: without prefixes, at most `_MAX_BLOCK_LINES`; empty if it has printed nothing.
    error: the text that shows the error, without digits; empty if none does.
    same_ranks: the other ranks whose error is the same; empty until all are compared.
    """

    failure_sign: FailureSign
    rank: int | None
    is_consequence: bool
    failed_at: float
    lines: tuple[str, ...]
    error: str
    same_ranks: tuple[int, ...] = ()


def find_first_failure(
    signs: Iterable[FailureSign], logs: Mapping[str, Sequence[LogLine]], *, with_consequences: bool
) -> LastWords | None:
    """The last words of the rank that failed first; None if no rank has printed its last words completely.

    logs: the last lines of the nodes of all signs.
    with_consequences: also of a rank that failed only because of another one, if there is no better one.
    """
    all_words = _read_all_words(signs, logs)
    candidates = [last_words for last_words in all_words if with_consequences or not last_words.is_consequence]
    first = min(candidates, key=_get_priority, default=None)
    if first is None:
        return None
    return first._replace(same_ranks=_list_same_ranks(first, all_words))


def find_same_ranks(
    failure_sign: FailureSign, signs: Iterable[FailureSign], logs: Mapping[str, Sequence[LogLine]]
) -> tuple[int, ...]:
    """The other ranks of `signs` that failed with the same error as that of `failure_sign`, apart from digits."""
    all_words = _read_all_words(signs, logs)
    for last_words in all_words:
        if last_words.failure_sign == failure_sign:
            return _list_same_ranks(last_words, all_words)
    return ()


def _read_all_words(signs: Iterable[FailureSign], logs: Mapping[str, Sequence[LogLine]]) -> list[LastWords]:
    """The last words of each sign whose process has printed them completely."""
    parts_by_node = {node: _parse_lines(lines) for node, lines in logs.items()}
    all_words: list[LastWords] = []
    for failure_sign in signs:
        last_words = _read_words(failure_sign, parts_by_node[failure_sign.node])
        if last_words:
            all_words.append(last_words)
    return all_words


def _list_same_ranks(first: LastWords, all_words: Iterable[LastWords]) -> tuple[int, ...]:
    ranks: list[int] = []
    for last_words in all_words:
        is_same = bool(last_words.error) and last_words.error == first.error
        if is_same and last_words.rank is not None and last_words.rank != first.rank:
            ranks.append(last_words.rank)
    return tuple(sorted(ranks))


def _get_priority(last_words: LastWords) -> tuple[bool, float]:
    return last_words.is_consequence, last_words.failed_at


def _parse_lines(lines: Iterable[LogLine]) -> list[LogLinePart]:
    """The parts of the lines since the node's agent has started its workers for the last time."""
    parts: list[LogLinePart] = []
    for line in lines:
        for part in parse_line(line):
            if part.local_rank is None and has_started_workers(part.text):
                parts = []
            parts.append(part)
    return parts


def _read_words(failure_sign: FailureSign, parts: Sequence[LogLinePart]) -> LastWords | None:
    """The last words of the process of a sign; None if it prints an exception whose last line is still missing."""
    stream = _select_stream(failure_sign, parts)
    is_shared = failure_sign.is_worker and stream is parts
    cause = diagnose_process(failure_sign.node, stream, failure_sign.exit_code, failure_sign.line, is_shared=is_shared)
    evidence = cause.evidence if cause and cause.evidence is not failure_sign.line else None
    if not failure_sign.has_ended and (evidence is None or evidence.timestamp < failure_sign.shown_at):
        return None
    lines: Sequence[LogLinePart] = ()
    if evidence or not is_shared:  # the last lines of a node may be another process's
        lines = _select_lines(stream, evidence)
    return LastWords(
        failure_sign=failure_sign,
        rank=evidence.rank if evidence and failure_sign.rank is None else failure_sign.rank,
        is_consequence=cause.distance >= Distance.PEER if cause else not failure_sign.is_worker,
        failed_at=evidence.timestamp if evidence else failure_sign.shown_at,
        lines=tuple(single_line(line.text, _MAX_LINE_CHARS) for line in lines),
        error=evidence.text.translate(_WITHOUT_DIGITS) if evidence else "",
    )


def _select_stream(failure_sign: FailureSign, parts: Sequence[LogLinePart]) -> Sequence[LogLinePart]:
    """The lines of the sign's process; all of its node's if they do not name the processes that printed them."""
    if any(part.local_rank is not None for part in parts):
        return [part for part in parts if part.local_rank == failure_sign.local_rank]
    if failure_sign.rank is None:
        return parts
    return [part for part in parts if part.rank == failure_sign.rank] or parts


def _select_lines(stream: Sequence[LogLinePart], evidence: LogLinePart | None) -> Sequence[LogLinePart]:
    """The traceback that contains the evidence, or the lines from it on; the last lines if there is no such line."""
    if evidence:
        for exception in reversed(split_lines(stream).exceptions):
            if evidence in (*exception.lines, *exception.message):
                return stream[exception.start : exception.end + 1][-_MAX_BLOCK_LINES:]
        for index in reversed(range(len(stream))):
            if stream[index] == evidence:
                return stream[index : index + _MAX_ERROR_LINES]
    printed = [part for part in stream if part.text.strip()]
    return printed[-_MAX_OTHER_LINES:]
