"""Where ranks are: the line of the user's code, the call below it, and ranks that are at the same place."""

import re
from collections.abc import Iterable, Mapping

from torchyard.common.ranks import format_ranks
from torchyard.model.hang import Frame, RankGroup, RankRecord

_LIBRARY_CODE = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3|/lib64/python3|<frozen|<string>|importlib|/multiprocessing/"
    # torch's own source tree; a user's folder may be called torch, too
    r"|/torch/(?:distributed|utils|nn|autograd|optim|cuda|multiprocessing|_\w+|serialization\.py)\b"
)
_STATE_DESCRIPTIONS = {
    "D": "waits in the kernel",
    "T": "is stopped",
    "t": "is stopped",
    "Z": "has ended",
    "": "has ended",
}
_MAX_LISTED = 8
MAX_RANK_GROUPS = 16


def find_user_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's own code."""
    return next((frame for frame in stack if not _LIBRARY_CODE.search(frame.file)), None)


def describe_location(record: RankRecord) -> str:
    """`load (train.py:88), in DataLoader.__next__`; the process's state if there is no stack."""
    frame = find_user_frame(record.stack) or next(iter(record.stack), None)
    if record.kind == "end":
        return "has ended"
    if frame is None:
        return _STATE_DESCRIPTIONS.get(record.state, "unknown")
    inner_call = _find_call_below(record.stack, frame)
    return f"{frame}, in {inner_call}" if inner_call else str(frame)


def _find_call_below(stack: tuple[Frame, ...], user_frame: Frame) -> str:
    """What the user's line calls, or the data loader that calls the user's line."""
    loader = next((frame for frame in stack if "/torch/utils/data/" in frame.file and frame != user_frame), None)
    if loader:
        functions = [frame.function for frame in stack if "/torch/utils/data/" in frame.file]
        return "DataLoader.__next__" if "__next__" in functions else f"DataLoader.{loader.function}"
    index = stack.index(user_frame)
    if index == 0:
        return ""
    call = stack[index - 1]
    call = stack[index - 2] if call.function == "wrapper" and index > 1 else call  # of torch's own decorator
    module = call.file.rpartition("/")[2].removesuffix(".py")
    return call.function if module in ("__init__", "distributed_c10d") else f"{module}.{call.function}"


def group_ranks(records: Mapping[int, RankRecord]) -> tuple[RankGroup, ...]:
    """Ranks that are at the same place, the fewest first: there the odd one is."""
    ranks_by_location: dict[str, list[int]] = {}
    for rank, record in records.items():
        ranks_by_location.setdefault(describe_location(record), []).append(rank)
    sizes = sorted((len(ranks), min(ranks), location) for location, ranks in ranks_by_location.items())
    return tuple(
        RankGroup(ranks=tuple(sorted(ranks_by_location[location])), location=location)
        for _, _, location in sizes[:MAX_RANK_GROUPS]
    )


def describe_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-62, 64`."""
    unique_ranks = sorted(set(ranks))
    return f"{'rank' if len(unique_ranks) == 1 else 'ranks'} {format_ranks(unique_ranks, _MAX_LISTED)}"


def describe_nodes(nodes: Iterable[str]) -> str:
    """` on node-1, node-2`, nothing if no node is known."""
    names = sorted({node for node in nodes if node})
    suffix = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f" on {', '.join(names[:_MAX_LISTED])}{suffix}" if names else ""


def choose_verb(ranks: Iterable[int], singular: str, plural: str) -> str:
    """The verb that fits the number of ranks."""
    return singular if len(set(ranks)) == 1 else plural
