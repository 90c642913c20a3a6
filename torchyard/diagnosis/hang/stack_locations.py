"""Where ranks are: the line of the user's code, the call below it, and ranks that are at the same place."""

import re
from collections.abc import Iterable, Mapping

from torchyard.common.ranks import format_ranks
from torchyard.model.hang import Frame, RankGroup, RankRecord

_LIBRARY = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3|/lib64/python3|<frozen|<string>|importlib|/multiprocessing/"
    # torch's own source tree; a user's folder may be called torch, too
    r"|/torch/(?:distributed|utils|nn|autograd|optim|cuda|multiprocessing|_\w+|serialization\.py)\b"
)
_STATES = {"D": "waits in the kernel", "T": "is stopped", "t": "is stopped", "Z": "has ended", "": "has ended"}
_MAX_NAMED = 8
MAX_CLUSTERS = 16


def find_user_frame(stack: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's own code."""
    return next((frame for frame in stack if not _LIBRARY.search(frame.file)), None)


def describe_place(record: RankRecord) -> str:
    """`load (train.py:88), in DataLoader.__next__`; the process's state if there is no stack."""
    where = find_user_frame(record.stack) or next(iter(record.stack), None)
    if record.kind == "end":
        return "has ended"
    if where is None:
        return _STATES.get(record.state, "unknown")
    below = _find_call_below(record.stack, where)
    return f"{where}, in {below}" if below else str(where)


def _find_call_below(stack: tuple[Frame, ...], where: Frame) -> str:
    """What the user's line calls, or the data loader that calls the user's line."""
    loader = next((frame for frame in stack if "/torch/utils/data/" in frame.file and frame != where), None)
    if loader:
        its = [frame.function for frame in stack if "/torch/utils/data/" in frame.file]
        return "DataLoader.__next__" if "__next__" in its else f"DataLoader.{loader.function}"
    place = stack.index(where)
    if place == 0:
        return ""
    call = stack[place - 1]
    call = stack[place - 2] if call.function == "wrapper" and place > 1 else call  # of torch's own decorator
    module = call.file.rpartition("/")[2].removesuffix(".py")
    return call.function if module in ("__init__", "distributed_c10d") else f"{module}.{call.function}"


def cluster_ranks(records: Mapping[int, RankRecord]) -> tuple[RankGroup, ...]:
    """Ranks that are at the same place, the fewest first: there the odd one is."""
    places: dict[str, list[int]] = {}
    for rank, record in records.items():
        places.setdefault(describe_place(record), []).append(rank)
    found = sorted((len(ranks), min(ranks), place) for place, ranks in places.items())
    return tuple(RankGroup(ranks=tuple(sorted(places[place])), location=place) for _, _, place in found[:MAX_CLUSTERS])


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-62, 64`."""
    every = sorted(set(ranks))
    return f"{'rank' if len(every) == 1 else 'ranks'} {format_ranks(every, _MAX_NAMED)}"


def name_nodes(nodes: Iterable[str]) -> str:
    """` on node-1, node-2`, nothing if no node is known."""
    known = sorted({node for node in nodes if node})
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return f" on {', '.join(known[:_MAX_NAMED])}{more}" if known else ""


def agree(ranks: Iterable[int], one: str, many: str) -> str:
    """The verb that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many
