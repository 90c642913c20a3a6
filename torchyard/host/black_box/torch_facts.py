"""Query torch about this process's collectives: the only module that uses its flight recorder and private names.

The flight recorder has NCCL's collectives (`_dump_nccl_trace_json`) and, in newer versions, gloo's
(`_dump_fr_trace_json`), if `enable_flight_recorder` was called before torch was imported. Every torch counts calls
(`_get_sequence_number_for_group`). With a torch that has none of them no groups are reported: the record then has only
the stack.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
from typing import Any, Iterable

Json = Any
_COMPLETE_DUMP = "_dump_fr_trace_json"  # where torch has it, the two dumps contain the collectives of every backend
_DUMPS = (_COMPLETE_DUMP, "_dump_nccl_trace_json")
_BUFFER_SIZE = "2000"  # calls that torch keeps, as its newer versions do by default: reading 2,000 takes 60 ms
_VERSION = re.compile(r"__version__ = '(\d+)\.(\d+)")
_RENAMED_IN = (2, 9)  # from then on torch warns about the older name
_TRANSFERS = {"send": ("dst", "group_dst"), "recv": ("src", "group_src")}  # and the names of the peer's rank there
# Collectives in which one rank differs from the others, and the names of its rank there.
_ROOTED = {
    "broadcast": ("src", "group_src"),
    "scatter": ("src", "group_src"),
    "reduce": ("dst", "group_dst"),
    "gather": ("dst", "group_dst"),
}
# The functions of torch that call a collective, and the names of these calls in the flight recorder, as far as one is
# always recorded under one name.
_OPERATIONS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_gather_single": "all_gather_base",
    "all_gather_into_tensor": "all_gather_base",
    "_all_gather_base": "all_gather_base",
    "reduce_scatter_single": "reduce_scatter_base",
    "reduce_scatter_tensor": "reduce_scatter_base",
    "_reduce_scatter_base": "reduce_scatter_base",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
}
_SETUP = "set-up"  # of process groups, which is not counted
_DEFAULT_GROUP = "0"  # its ranks, all of them, are not listed
_GLOO_SUFFIX = " of gloo"  # of the name of a group that has NCCL, too: each backend numbers its own calls
_MAX_MEMBERS = 256  # ranks of a group that are listed: more do not fit into a line


def enable_flight_recorder() -> None:
    """Let torch record collectives, unless the user has set how many, by either name of the variable."""
    if "TORCH_FR_BUFFER_SIZE" in os.environ or "TORCH_NCCL_TRACE_BUFFER_SIZE" in os.environ:
        return
    version = _read_torch_version()
    if version:
        name = "TORCH_FR_BUFFER_SIZE" if version >= _RENAMED_IN else "TORCH_NCCL_TRACE_BUFFER_SIZE"
        os.environ[name] = _BUFFER_SIZE


def _read_torch_version() -> tuple[int, int] | None:
    """The version of the torch that this Python would import, without importing it; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
        match = _VERSION.search(file.read())
    return (int(match[1]), int(match[2])) if match else None


def count_collectives() -> dict[str, tuple[int, int]]:
    """Collectives called and completed, by torch's number of the process group; empty before there is one.

    With the name of the dump: each backend numbers its groups from 0.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not getattr(c10d, "is_initialized", bool)():
        return {}
    counts: dict[str, tuple[int, int]] = {}
    for name, dump in _find_dumps().items():
        for number, status in (json.loads(dump(False, False)).get("pg_status") or {}).items():
            enqueued = int(status["last_enqueued_collective"])
            completed = int(status["last_completed_collective"])
            if enqueued >= 0:
                counts["%s/%s" % (name, number)] = (enqueued, max(completed, 0))
    return counts or _count_sequence_numbers(c10d)


def count_calls() -> int | None:
    """Collectives that this process has called in all, also in groups that no longer exist; if none, its transfers.

    None if this torch does not record those of every backend, or the user has disabled its recorder.
    """
    core = sys.modules.get("torch._C._distributed_c10d")
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", ""))
    if not hasattr(core, _COMPLETE_DUMP) or size == "0":
        return None
    counts = [
        int(status["last_enqueued_collective"])
        for dump in _find_dumps().values()
        for status in (json.loads(dump(False, False)).get("pg_status") or {}).values()
    ]
    return sum(count for count in counts if count > 0) or len(list_entries())


def read_world_size() -> int | None:
    """The number of ranks in the program's default process group; None if there is none."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not getattr(c10d, "is_initialized", bool)():
        return None
    return int(getattr(c10d, "get_world_size")())  # noqa: B009


class GroupNames:
    """Names of process groups, by torch's number of them. Names are the same in every rank, numbers are not."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._queried_counts: dict[str, tuple[int, int]] = {}

    def build_groups(self, counts: dict[str, tuple[int, int]], world: int) -> dict[str, Json]:
        """The groups by name, with their members. torch is queried again only if an unnamed group progresses."""
        unknown = {number: count for number, count in counts.items() if number not in self._names}
        if unknown and unknown != self._queried_counts:
            self._queried_counts = unknown
            self._names.update((str(entry["pg_id"]), str(entry["process_group"][0])) for entry in list_entries())
        groups = {}
        for number, (enqueued, completed) in counts.items():
            name = self._names.get(number, number.rpartition("/")[2])
            groups[name] = {
                "ranks": list_ranks(name, world),
                "enqueued": enqueued,
                "completed": min(completed, enqueued),
            }
        return groups


def list_ranks(name: str, world: int) -> list[int]:
    """The ranks of a group as a record lists them: none if they are all ranks of the job, too many, or not known."""
    group = name.partition(_GLOO_SUFFIX)[0]
    ranks = _list_members().get(group, [])
    includes_all = group == _DEFAULT_GROUP and len(ranks) == world
    return [] if includes_all or len(ranks) > _MAX_MEMBERS else ranks


def list_settled_groups(entries: list[Json], groups: dict[str, Json]) -> list[str]:
    """The groups of which every call is complete, although torch has counted fewer.

    Gloo counts a completed call in the thread that carried it out: if an earlier one ends later, the count falls back.
    """
    incomplete = {name: progress for name, progress in groups.items() if progress["completed"] < progress["enqueued"]}
    open_flags: dict[str, list[bool]] = {}
    newest_sequences: dict[str, int] = {}
    for entry in entries:
        name = str(entry["process_group"][0])
        sequence = int(entry["collective_seq_id"])
        if name in incomplete and not entry.get("is_p2p") and sequence > incomplete[name]["completed"]:
            open_flags.setdefault(name, []).append(not entry.get("retired") and entry.get("state") != "completed")
            newest_sequences[name] = max(newest_sequences.get(name, 0), sequence)
    return [
        name
        for name, flags in open_flags.items()
        if not any(flags) and newest_sequences[name] >= incomplete[name]["enqueued"]
    ]


def find_oldest_wait(entries: list[Json], groups: dict[str, Json]) -> Json | None:
    """The oldest collective that is called and not complete; None if there is none."""
    for entry in entries:
        name = str(entry["process_group"][0])
        sequence = int(entry["collective_seq_id"])
        if entry.get("retired") or entry.get("state") == "completed" or entry.get("is_p2p"):
            continue
        if name in groups and sequence <= groups[name]["completed"]:
            continue
        return {
            "group": name,
            "sequence": sequence,
            "operation": str(entry["profiling_name"]).rpartition(":")[2],
            "sizes": [list(size) for size in entry.get("input_sizes") or []][:8],
            "dtypes": [str(dtype) for dtype in entry.get("input_dtypes") or []][:8],
        }
    return None


def find_call(frames: Iterable[Any]) -> Json | None:
    """What the stack shows of a call of torch.distributed, and its flight recorder does not; None if nothing.

    A send or receive with its `peer`, because gloo's are not in the flight recorder; the `members` of a new group; the
    `operation` of a collective, the `root` of a broadcast, scatter, reduce or gather, and as `unrecorded` the name of a
    group whose call may not be recorded yet.
    """
    for frame in frames:
        name = frame.f_code.co_name
        if not frame.f_code.co_filename.endswith("distributed_c10d.py"):
            continue
        if name in _TRANSFERS:
            return {"group": "0", "sequence": 0, "operation": name, "peer": _find_rank(frame, *_TRANSFERS[name])}
        if name in _OPERATIONS:
            group = _find_unrecorded_group(frame.f_locals.get("group"))
            call: Json = {"operation": _OPERATIONS[name], "unrecorded": group}
            if name in _ROOTED:
                call["root"] = _find_rank(frame, *_ROOTED[name])
            return call
        if name == "new_group":
            ranks = frame.f_locals.get("ranks")
            members = [int(rank) for rank in ranks] if ranks is not None else []
            return {"group": _SETUP, "sequence": 0, "operation": name, "members": members[:_MAX_MEMBERS]}
    return None


def _find_unrecorded_group(group: object) -> str | None:
    """The name of the group of a call that blocks before torch records it, as NCCL's first one does; None if it cannot.

    `group`: the argument of the call; None: the default group.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    core = sys.modules.get("torch._C._distributed_c10d")
    with contextlib.suppress(Exception):  # of a torch that keeps its groups in another way
        group = group or c10d._get_default_group()
        backend = str(c10d._world.pg_map[group][0])
        # A group of several backends, or of none that was named, may use gloo, which an older torch does not record.
        may_use_nccl = "nccl" in backend or backend == "undefined"
        if backend == "nccl" or (may_use_nccl and hasattr(core, _COMPLETE_DUMP)):
            return str(c10d._world.pg_names[group])
    return None


def _find_rank(frame: Any, name: str, group_name: str) -> int | None:
    """The rank in the first of these local variables that is a number; None if none is.

    `group_name`: of the variable that has the number in the call's group; without its members the rank is not known.
    """
    rank = frame.f_locals.get(name)
    if isinstance(rank, int):
        return rank
    number = frame.f_locals.get(group_name)
    if not isinstance(number, int):
        return None
    group = frame.f_locals.get("group")
    with contextlib.suppress(Exception):  # of a torch that keeps its groups in another way
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        numbers = c10d._world.pg_group_ranks[group or c10d._get_default_group()]
        for member, member_number in numbers.items():
            if member_number == number:
                return int(member)
    return None


def list_entries() -> list[Json]:
    """The calls that torch has kept, of each backend the oldest first; reading 2,000 of them takes 60 ms.

    `pg_id` and the group's name are made unique among the backends.
    """
    entries: list[Json] = []
    for dump_name, dump in _find_dumps().items():
        shared_names = _list_shared_groups() if dump_name == _COMPLETE_DUMP else set()
        for entry in json.loads(dump(True, False)).get("entries") or []:
            name, *description = entry["process_group"]
            if name in shared_names:
                name += _GLOO_SUFFIX
            entry.update(pg_id="%s/%s" % (dump_name, entry["pg_id"]), process_group=[name, *description])
            entries.append(entry)
    return entries


def _list_shared_groups() -> set[str]:
    """The names of the groups that use NCCL for tensors of a GPU, and gloo for others."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if not hasattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroupNCCL"):
        return set()
    names = set()
    with contextlib.suppress(Exception):  # of a torch that keeps its groups in another way
        for group, (backend, *_) in list(c10d._world.pg_map.items()):
            if backend == "undefined" or ("nccl" in backend and "gloo" in backend):
                names.add(str(c10d._world.pg_names[group]))
    return names


def _find_dumps() -> dict[str, Any]:
    """The functions of torch that return its flight recorders' content, by name."""
    core = sys.modules.get("torch._C._distributed_c10d")
    return {name: getattr(core, name) for name in _DUMPS if hasattr(core, name)}


def _count_sequence_numbers(c10d: object) -> dict[str, tuple[int, int]]:
    """The counts of a torch that counts only calls: a pending collective counts as complete."""
    counts = {}
    for group, name in getattr(c10d, "_world").pg_names.items():  # noqa: B009
        number = int(group._get_sequence_number_for_group())
        counts[str(name)] = (number, number)
    return counts


def _list_members() -> dict[str, list[int]]:
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    if world is None:
        return {}
    # A rank that is not in a new group has a placeholder without a name among the groups.
    groups = [(world.pg_names.get(group), ranks) for group, ranks in list(world.pg_group_ranks.items())]
    return {str(name): sorted(ranks) for name, ranks in groups if name is not None}
