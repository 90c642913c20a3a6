"""Parse the lines that a process printed: strip escapes and prefixes, drop noise, find exceptions."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torchyard.model.run import LogLine

_MAX_END_CHARS = 1000  # kept of each end of a long line
_MAX_LINE_PARTS = 20  # kept of a line with carriage returns: a progress bar may write thousands
# A colour code may lack its first character.
_COLOUR_CODE = r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]|\[(?:[01]|22|[39]\d)(?:;\d{1,3}){0,8}m"
_ESCAPE = re.compile(_COLOUR_CODE + r"|\x1b\][^\x07]{0,200}\x07|[\x00-\x08\x0b-\x1f\x7f]")
# Prefixes of a process's lines: kubectl, srun -l, mpirun, Ray, torch's hook, torchrun's tee.
_LINE_PREFIX = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d):? ?|\[pod/\S{1,200}\] ?| {0,4}(?P<task>\d{1,5}): (?=\S)"
    r"|\[\d{1,5},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?"
    r"|\((?:raylet|\w{1,60}(?:\[[^\]]{0,60}\])? pid=\d{1,9})[^)]{0,100}\) ?"
    r"|\[[Rr]ank:? ?(?P<rank>\d{1,6})\]:? ?"
    r"|\[(?![^\s\]]{0,80}\.(?:py|cc|cpp|cu|h):)(?:(?:[\w.-]{1,80}:|[A-Za-z_][\w.-]{0,80}?)(?P<local>\d{1,3})\]:"
    r"|[A-Za-z][\w.-]{0,80}:(?P<bare>\d{1,3})\])"
)
# Information, warnings, and what a program tries again. Kubernetes prints `Warning` before events, NCCL before errors.
_INFORMATION = re.compile(
    r"^[IW]\d{4} |^\[[IW] |Warning: | NCCL INFO |(?<!NCCL )(?<!=)\bWARN(?:ING)?\b"
    r"|NCCL WARN.{0,80}\bRAS\b|\bRAS\b.{0,80}\bbind|Retrying \(Retry\(|thrown while requesting"
    r"|\b[Rr]etrying (?:in|after|with)\b|^wandb: "
)
_SERIOUS_WARNING = re.compile("death signal|worker (?:process has )?died")  # torchrun and Ray log these as warnings
LOST_WORKER_MARKER = "failed (exitcode: "
_LOST_WORKER = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) ")
_TRACEBACK_HEADER = "Traceback (most recent call last)"
_INDENTED_HEADER = re.compile(r"([\s|+-]{0,100})" + re.escape(_TRACEBACK_HEADER))
_FRAME = re.compile(r'[\s|]{1,200}File "')
_CHAIN_SENTENCES = ("The above exception was the direct cause", "During handling of the above exception")
_EXCEPTION_NAME = r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)[A-Za-z_][\w.]{0,200}"
_EXCEPTION = re.compile(_EXCEPTION_NAME + r"(?:\(\w{1,80}\))?(?::(?!\d)|\s*$)")
_BARE_EXCEPTION = re.compile(_EXCEPTION_NAME + r"(?:Error|Exception|Interrupt)(?:\(\w{1,80}\))?(?::|\s*$)")
_WRAPPER_EXCEPTION = re.compile(
    r"\S{0,200}(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SystemExit)\b"
)


class LogLinePart(NamedTuple):
    """One part of a log line: the whole line, or what was printed between two of its carriage returns.

    timestamp: of the line, in seconds since the epoch.
    text: without escapes and prefixes.
    line: without escapes, with its prefixes.
    local_rank, rank: of the process that printed it, as its prefixes name them; None if they do not.
    """

    timestamp: float
    text: str
    line: str
    local_rank: int | None = None
    rank: int | None = None


class LostWorker(NamedTuple):
    """A worker that torchrun has lost; a negative exit code is a signal."""

    local_rank: int
    exit_code: int


def parse_line(line: LogLine) -> Iterator[LogLinePart]:
    """Yield the first and the last parts of a line whose parts overwrite each other; a long part loses its middle.

    A part without a rank in its own prefixes has that of the part before it.
    """
    local_rank: str | None = None
    rank: str | None = None
    parts = [part for part in re.split(r"[\r\n]+", line.text) if part] or [""]
    for part in [*parts[:1], *parts[1:][-_MAX_LINE_PARTS:]]:
        excerpt = part
        if len(part) > 2 * _MAX_END_CHARS:
            excerpt = f"{part[:_MAX_END_CHARS]} ... {part[-_MAX_END_CHARS:]}"
        clean_line = _ESCAPE.sub("", excerpt)
        text = clean_line
        while prefix := _LINE_PREFIX.match(text):
            text = text[prefix.end() :]
            local_rank = prefix["local"] or prefix["bare"] or local_rank
            rank = prefix["rank"] or prefix["mpi"] or prefix["task"] or rank
        yield LogLinePart(
            line.timestamp,
            text,
            clean_line,
            int(local_rank) if local_rank else None,
            int(rank) if rank else None,
        )


def drop_noise(lines: Iterable[LogLinePart]) -> Iterator[LogLinePart]:
    """The lines without traceback frames, whose source may contain any text, and without warnings and information."""
    frame_depth: int | None = None
    for line in lines:
        depth = len(line.text) - len(line.text.lstrip(" \t|"))
        if _FRAME.match(line.text):
            frame_depth = depth
        elif frame_depth is not None and depth < frame_depth:
            frame_depth = None
        if frame_depth is None and (not _INFORMATION.search(line.text) or _SERIOUS_WARNING.search(line.text)):
            yield line


def find_exceptions(lines: Iterable[LogLinePart]) -> list[list[LogLinePart]]:
    """The exceptions that were raised: of each, the last line of every traceback in its chain, in the printed order.

    Without any traceback, each line that looks like an exception is one. Exceptions that Python ignored are left out.
    """
    chains: list[list[LogLinePart]] = []
    chain: list[LogLinePart] = []
    bare_exceptions: list[list[LogLinePart]] = []
    in_traceback = False
    is_chained = False  # a sentence has announced that the next traceback belongs to this chain
    is_ignored = False  # Python has announced that the next traceback is of an exception that it ignores
    indent = ""
    for line in lines:
        text = line.text.removeprefix(indent)
        if _TRACEBACK_HEADER in line.text or _FRAME.match(line.text):
            if match := _INDENTED_HEADER.match(line.text):
                indent = match[1]
            if not in_traceback and not is_chained:
                chain = []
                if not is_ignored:
                    chains.append(chain)
            in_traceback = True
            is_chained = False
            is_ignored = False
        elif in_traceback and _EXCEPTION.match(text):
            chain.append(line._replace(text=text))
            in_traceback = False
        elif not in_traceback and _BARE_EXCEPTION.match(line.text):
            bare_exceptions.append([line])
        is_chained = is_chained or text.startswith(_CHAIN_SENTENCES)
        is_ignored = is_ignored or line.text.startswith("Exception ignored")

    exceptions = []
    for candidate in chains if any(chains) else bare_exceptions:
        # A wrapper only reports that a child has failed.
        own_lines = [line for line in candidate if not _WRAPPER_EXCEPTION.match(line.text)]
        if own_lines:
            exceptions.append(own_lines)
    return exceptions


def parse_lost_worker(text: str) -> LostWorker | None:
    """The worker that torchrun has just lost, as it logs it; None if the line is not about a lost worker."""
    match = _LOST_WORKER.search(text)
    return LostWorker(local_rank=int(match[2]), exit_code=int(match[1])) if match else None
