"""Locations of ranks: the line of the user's code, the call below it, and the ranks that are at the same one."""

import re
from collections.abc import Iterable, Mapping

from torchyard.common.text import format_ranks
from torchyard.model.hang import Frame, RankGroup, RankRecord

_LIBRARY_CODE = re.compile(
    r"/bin/[\w-]+$|/site-packages/|/dist-packages/|/lib/python3|/lib64/python3|<frozen|<string>|importlib|/multiprocessing/"
    r"|\.(?:pyx|pxd|pxi)$"  # compiled by Cython, whose frames do not show whether a library has this file
    # Only torch's own source tree: a user's folder may be called torch, too.
    r"|/torch/(?:distributed|utils|nn|autograd|optim|cuda|multiprocessing|_\w+|serialization\.py)\b"
)
_STATE_DESCRIPTIONS = {
    "D": "waits in the kernel",
    "T": "is stopped",
    "t": "is stopped",
    "Z": "has ended",
    "": "has ended",
}  # of a stalled rank; other records do not contain the state
_LOADER_CODE = "/torch/utils/data/"
_MAX_LISTED = 8  # ranges of ranks, or nodes, in a text
MAX_RANK_GROUPS = 16


def find_user_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's own code; None if all frames are those of libraries."""
    for frame in stack:
        if not _LIBRARY_CODE.search(frame.file):
            return frame
    return None


def describe_location(record: RankRecord) -> str:
    """`load (train.py:88), in DataLoader.__next__`; the process's state if there is no stack.

    A rank that made progress when its record was made has no location.
    """
    if record.kind == "end":
        return "has ended"
    if record.kind == "raised":
        return "has ended by an exception"
    if record.kind == "silent":
        return "has sent no record for a long time"
    if record.kind in ("pulse", "resume"):
        return "made progress"
    if not record.stack:
        return _STATE_DESCRIPTIONS.get(record.state, "unknown")
    frame = find_user_frame(record.stack) or record.stack[0]
    inner_call = _describe_call_below(record.stack, frame)
    return f"{frame}, in {inner_call}" if inner_call else str(frame)


def _describe_call_below(stack: tuple[Frame, ...], user_frame: Frame) -> str:
    """What the user's line calls, or the data loader that calls the user's line; empty for the innermost frame."""
    loader_functions = [frame.function for frame in stack if _LOADER_CODE in frame.file]
    for frame in stack:
        if _LOADER_CODE in frame.file and frame != user_frame:
            return "DataLoader.__next__" if "__next__" in loader_functions else f"DataLoader.{frame.function}"
    index = stack.index(user_frame)
    if index == 0:
        return ""
    call = stack[index - 1]
    if call.function == "wrapper" and index > 1:  # torch's decorator around each collective
        call = stack[index - 2]
    module = call.file.rpartition("/")[2].removesuffix(".py")
    return call.function if module in ("__init__", "distributed_c10d") else f"{module}.{call.function}"


def group_ranks(records: Mapping[int, RankRecord]) -> tuple[RankGroup, ...]:
    """Group the ranks that are at the same location, the fewest first, because they are the odd ones."""
    ranks_by_location: dict[str, list[int]] = {}
    for rank, record in records.items():
        ranks_by_location.setdefault(describe_location(record), []).append(rank)
    groups = [RankGroup(ranks=tuple(sorted(ranks)), location=location) for location, ranks in ranks_by_location.items()]
    groups.sort(key=lambda group: (len(group.ranks), group.ranks[0]))
    return tuple(groups[:MAX_RANK_GROUPS])


def describe_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-62, 64`."""
    unique_ranks = sorted(set(ranks))
    noun = "rank" if len(unique_ranks) == 1 else "ranks"
    return f"{noun} {format_ranks(unique_ranks, _MAX_LISTED)}"


def describe_nodes(nodes: Iterable[str]) -> str:
    """` on node-1, node-2`; empty if no node is known."""
    names = sorted({node for node in nodes if node})
    if not names:
        return ""
    suffix = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f" on {', '.join(names[:_MAX_LISTED])}{suffix}"


def choose_verb(ranks: Iterable[int], singular: str, plural: str) -> str:
    """The form of a word that fits the number of ranks."""
    return singular if len(set(ranks)) == 1 else plural
