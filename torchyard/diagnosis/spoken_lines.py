"""What a process said, line by line: without escapes and marks, without noise, and the exceptions that it raised."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchyard.model.run import LogLine

_LINE_END_CHARS = 1000
_MAX_LINE_PARTS = 20  # kept of a line with carriage returns: a progress bar may write thousands
# A colour is also seen without its first character.
_COLOUR_TEXT = r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]|\[(?:[01]|22|[39]\d)(?:;\d{1,3}){0,8}m"
_ESCAPE = re.compile(_COLOUR_TEXT + r"|\x1b\][^\x07]{0,200}\x07|[\x00-\x08\x0b-\x1f\x7f]")
# What may stand before the words of a process: kubectl, srun -l, mpirun, Ray, torch's hook, torchrun's tee.
_LINE_PREFIX = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d):? ?|\[pod/\S{1,200}\] ?| {0,4}(?P<task>\d{1,5}): (?=\S)"
    r"|\[\d{1,5},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?|\((?:raylet|\w{1,60} pid=\d{1,9})[^)]{0,100}\) ?"
    r"|\[[Rr]ank:? ?(?P<rank>\d{1,6})\]:? ?"
    r"|\[(?![^\s\]]{0,80}\.(?:py|cc|cpp|cu|h):)(?:(?:[\w.-]{1,80}:|[A-Za-z_][\w.-]{0,80}?)(?P<local>\d{1,3})\]:"
    r"|[A-Za-z][\w.-]{0,80}:(?P<bare>\d{1,3})\])"
)
_INFORMATION = re.compile(r"^I\d{4} |Warning: | NCCL INFO ")
_TRACEBACK_HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r'[\s|]{1,200}File "')
_CHAIN_SENTENCES = ("The above exception was the direct cause", "During handling of the above exception")
_EXCEPTION_NAME = r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Za-z_][\w.]{0,200}"
_RAISED = re.compile(_EXCEPTION_NAME + r"(?:\(\w{1,80}\))?(?::(?!\d)|\s*$)")
_BARE_EXCEPTION = re.compile(_EXCEPTION_NAME + r"(?:Error|Exception|Interrupt)(?:\(\w{1,80}\))?(?::|\s*$)")
_WRAPPER_EXCEPTION = re.compile(
    r"\S{0,200}(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SystemExit)\b"
)


class SpokenLine(NamedTuple):
    """A line without escapes; `text` is also without the marks before it."""

    at: float
    text: str
    line: str
    local: int | None = None
    rank: int | None = None


def parse_line(line: LogLine) -> Iterator[SpokenLine]:
    """The parts of a line that a terminal shows one over the other, the last ones; a long one loses its middle."""
    local: str | None = None
    rank: str | None = None
    parts = re.split(r"[\r\n]+", line.text)
    for part in [*parts[:1], *parts[1:][-_MAX_LINE_PARTS:]]:
        short = part if len(part) <= 2 * _LINE_END_CHARS else f"{part[:_LINE_END_CHARS]} ... {part[-_LINE_END_CHARS:]}"
        text = whole = _ESCAPE.sub("", short)
        while mark := _LINE_PREFIX.match(text):
            text = text[mark.end() :]
            local = mark["local"] or mark["bare"] or local
            rank = mark["rank"] or mark["mpi"] or mark["task"] or rank
        yield SpokenLine(line.at, text, whole, int(local) if local else None, int(rank) if rank else None)


def drop_noise(lines: Iterable[SpokenLine]) -> Iterator[SpokenLine]:
    """Without the frames of tracebacks, whose source may hold any words, without warnings and plain information."""
    framed = False
    for seen in lines:
        framed = bool(_FRAME.match(seen.text)) or (framed and seen.text[:1].isspace())
        if not framed and not _INFORMATION.search(seen.text):
            yield seen


def find_exceptions(lines: Iterable[SpokenLine]) -> list[list[SpokenLine]]:
    """The exceptions that were raised, each with those it came from; without a traceback, what looks like one."""
    chains: list[list[SpokenLine]] = []
    bare, chain = list[list[SpokenLine]](), list[SpokenLine]()
    inside = linked = ignored = False
    for seen in lines:
        if _TRACEBACK_HEAD in seen.text or _FRAME.match(seen.text):
            if not inside and not linked:
                chain = []
                chains += [] if ignored else [chain]
            inside, linked, ignored = True, False, False
        elif inside and _RAISED.match(seen.text):
            chain.append(seen)
            inside = False
        elif not inside and _BARE_EXCEPTION.match(seen.text):
            bare.append([seen])
        linked = linked or seen.text.startswith(_CHAIN_SENTENCES)
        ignored = ignored or seen.text.startswith("Exception ignored")
    told = [
        [seen for seen in chain if not _WRAPPER_EXCEPTION.match(seen.text)]
        for chain in (chains if any(chains) else bare)
    ]
    return [chain for chain in told if chain]
