"""Read dumps of torch's flight recorder, pickled or JSON, as records of ranks, so that the same rules detect a hang.

Formats 1.5 to 2.10 (torch 2.4 to 2.13). A dump is untrusted: of a pickle only plain values are read.
"""

import pickle
import pickletools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.common.json_text import parse_json
from torchyard.model.hang import Collective, Frame, GroupProgress, RankRecord

MAX_DUMP_BYTES = 256 * 1024 * 1024
_MAX_MEMO = 1 << 24  # objects of a pickle: the C reader allocates a table of the highest index
_MAX_TENSORS = 8  # of a call, and dimensions of a tensor
_MAX_FRAMES = 64
_MAX_TEXT_CHARS = 300
_UNKNOWN_STATE = "?"  # of the process: a dump does not contain it
_DEFAULT_TIMEOUT_MS = 600_000
_OPCODE_NAMES = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
    BINFLOAT BINUNICODE SHORT_BINUNICODE EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1
    TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET
    MEMOIZE INT LONG FLOAT UNICODE DICT LIST PUT GET POP DUP
"""
_PLAIN_OPCODES = frozenset(_OPCODE_NAMES.split())  # those that build values, and call nothing


class DumpError(ValueError):
    """A file that is not a dump of a flight recorder, or that is refused."""


class Dump(NamedTuple):
    """What one rank's flight recorder holds.

    pending, stack, timeout_s: of the oldest call that is not complete; None, () and torch's default if all are.
    """

    groups: dict[str, GroupProgress]
    pending: Collective | None
    stack: tuple[Frame, ...]
    timeout_s: float


def build_record(dump: Dump, rank: int, world: int) -> RankRecord:
    """Return a dump as a stall that the rank's recorder could have printed; the process's state is unknown."""
    return RankRecord(
        kind="stall",
        timestamp=0.0,
        rank=rank,
        world=world,
        pid=0,
        stalled_s=dump.timeout_s,
        typical_pause_s=0.0,
        groups=dump.groups,
        pending=dump.pending,
        stack=dump.stack,
        state=_UNKNOWN_STATE,
        idle_s=dump.timeout_s,  # torch's watchdog has found that nothing moved
    )


def parse_dump(data: bytes) -> Dump:
    """Parse a rank's dump. DumpError with the reason if `data` is not one, is too large, or is refused."""
    if len(data) > MAX_DUMP_BYTES:
        raise DumpError(f"a dump of {len(data):,} bytes is too large: {MAX_DUMP_BYTES:,} are read at most")
    dump = _parse_json(data) if data.lstrip()[:1] == b"{" else _parse_pickle(data)
    if not isinstance(dump, dict) or not re.fullmatch(r"[12]\.\d{1,3}", str(dump.get("version", ""))[:20]):
        raise DumpError("this is not a dump of torch's flight recorder, version 1.x or 2.x: it has no such `version`")
    entries = [entry for entry in _to_list(dump.get("entries")) if isinstance(entry, dict)]
    entries.sort(key=lambda entry: _to_int(entry.get("record_id")))
    pending = [entry for entry in entries if not _is_complete(entry)]
    oldest = pending[0] if pending else None
    timeout_ms = _to_int((oldest or {}).get("timeout_ms")) or _DEFAULT_TIMEOUT_MS
    return Dump(
        groups=_parse_groups(dump, entries),
        pending=_parse_collective(oldest) if oldest else None,
        stack=_parse_frames(oldest) if oldest else (),
        timeout_s=timeout_ms / 1000,
    )


def _parse_json(data: bytes) -> object:
    try:
        return parse_json(data)
    except ValueError as error:
        raise DumpError(f"the dump is not valid JSON: {str(error)[:200]}") from None


def _parse_pickle(data: bytes) -> object:
    """The value of a pickle of plain values; every opcode is checked before the first one is executed."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _PLAIN_OPCODES:
                raise DumpError(
                    f"the dump is refused: it is a pickle that holds more than plain values ({opcode.name})"
                )
            if "PUT" in opcode.name and _to_int(argument) > _MAX_MEMO:
                raise DumpError("the dump is refused: it is a pickle with too many objects")
        return pickle.loads(data)
    except DumpError:
        raise
    except Exception as error:  # a malformed pickle can raise any exception
        raise DumpError(f"the dump is not a complete pickle: {str(error)[:200]}") from None


def _is_complete(entry: Mapping[str, Any]) -> bool:
    """Whether a call is complete. Gloo retires only complete calls; NCCL's watchdog also those that have timed out."""
    if str(entry.get("profiling_name")).startswith("gloo:"):
        return bool(entry.get("retired"))
    return entry.get("state") == "completed"


def _parse_groups(dump: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, GroupProgress]:
    """How far the rank has come in each group, by its calls and by the counters of newer versions."""
    ranks = {str(name): _parse_ranks(config) for name, config in _to_dict(dump.get("pg_config")).items()}
    status = _to_dict(dump.get("pg_status"))
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if not _is_p2p(entry):
            calls.setdefault(_get_group_name(entry), []).append(entry)
    groups = {}
    for name, group_entries in calls.items():
        counters = _to_dict(status.get(str(group_entries[-1].get("pg_id"))))
        enqueued = max(*map(_get_sequence, group_entries), _to_int(counters.get("last_enqueued_collective")), 0)
        pending_sequences = [
            _get_sequence(group_entry) for group_entry in group_entries if not _is_complete(group_entry)
        ]
        completed = max(min(pending_sequences) - 1, 0) if pending_sequences else enqueued
        groups[name] = GroupProgress(ranks=ranks.get(name, ()), enqueued=enqueued, completed=completed)
    for name, members in ranks.items():
        if members:
            groups.setdefault(name, GroupProgress(ranks=members, enqueued=0, completed=0))
    return groups


def _parse_ranks(config: object) -> tuple[int, ...]:
    """The members of a group, which are text in all versions (`[0, 1]`); empty if gloo does not list them."""
    text = str(_to_dict(config).get("ranks", ""))[:1_000_000]
    return tuple(int(rank) for rank in re.findall(r"\d{1,7}", text))


def _parse_collective(entry: Mapping[str, Any]) -> Collective:
    sizes = [size for size in _to_list(entry.get("input_sizes")) if isinstance(size, list)][:_MAX_TENSORS]
    name = str(entry.get("profiling_name", ""))[:_MAX_TEXT_CHARS]
    return Collective(
        group=_get_group_name(entry),
        sequence=_get_sequence(entry),
        operation=name.partition(":")[2] or name,
        sizes=tuple(tuple(map(_to_int, size[:_MAX_TENSORS])) for size in sizes),
        dtypes=tuple(str(dtype)[:40] for dtype in _to_list(entry.get("input_dtypes"))[:_MAX_TENSORS]),
    )


def _get_group_name(entry: Mapping[str, Any]) -> str:
    """The group's name, from a pair of name and description; in the oldest versions its number."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        name = group[0]
    elif isinstance(group, str):
        name = group
    else:
        name = entry.get("pg_id", "0")
    return str(name)[:_MAX_TEXT_CHARS]


def _get_sequence(entry: Mapping[str, Any]) -> int:
    key = "p2p_seq_id" if _is_p2p(entry) else "collective_seq_id"
    return max(_to_int(entry.get(key, entry.get("seq_id"))), 0)


def _is_p2p(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("is_p2p")) or bool(re.match(r"\w+:(?:send|recv)\b", str(entry.get("profiling_name"))))


def _parse_frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    frames = [frame for frame in _to_list(entry.get("frames")) if isinstance(frame, dict)][:_MAX_FRAMES]
    return tuple(
        Frame(
            function=str(frame.get("name"))[:_MAX_TEXT_CHARS],
            file=str(frame.get("filename"))[:_MAX_TEXT_CHARS],
            line=_to_int(frame.get("line")),
        )
        for frame in frames
    )


def _to_int(value: object) -> int:
    """An integer, also from text, as which gloo's JSON writes its counters; 0 for any other value."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?\d{1,18}", value) else 0
    return value if isinstance(value, int) else 0


def _to_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _to_dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
