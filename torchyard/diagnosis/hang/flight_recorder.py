"""Dumps of torch's flight recorder, pickled or JSON, as records of ranks, so that the same judge reads them.

Formats 1.5 to 2.10 (torch 2.4 to 2.13). A dump is input: of a pickle only plain containers, texts and numbers are read.
"""

import json
import pickle
import pickletools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.model.hang import Collective, Frame, GroupProgress, RankRecord

MAX_DUMP_BYTES = 256 * 1024 * 1024
_MAX_MEMO = 1 << 24
_MAX_TENSORS, _MAX_FRAMES, _MAX_TEXT_CHARS = 8, 64, 300
_UNKNOWN_STATE = "?"
_DEFAULT_TIMEOUT_MS = 600_000
_PLAIN_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("MEMOIZE", "INT", "LONG", "FLOAT", "UNICODE", "DICT", "LIST", "PUT", "GET", "POP", "DUP"),
}


class DumpError(ValueError):
    """A file that is no dump of a flight recorder."""


class Dump(NamedTuple):
    """What one rank's flight recorder holds: its groups, and the oldest call that is not complete."""

    groups: dict[str, GroupProgress]
    waits: Collective | None
    stack: tuple[Frame, ...]
    timeout_s: float


def to_record(dump: Dump, rank: int, world: int) -> RankRecord:
    """A dump as if the rank's recorder had printed it; what a dump does not hold is unknown."""
    return RankRecord(
        kind="stall",
        at=0.0,
        rank=rank,
        world=world,
        pid=0,
        stalled_s=dump.timeout_s,
        usual_s=0.0,
        groups=dump.groups,
        waits=dump.waits,
        stack=dump.stack,
        state=_UNKNOWN_STATE,
    )


def read_dump(data: bytes) -> Dump:
    """A rank's dump; a DumpError that says why it is none."""
    if len(data) > MAX_DUMP_BYTES:
        raise DumpError(f"a dump of {len(data):,} bytes is too large: {MAX_DUMP_BYTES:,} are read at most")
    found = _read_json(data) if data.lstrip()[:1] == b"{" else _read_pickle(data)
    if not isinstance(found, dict) or not re.fullmatch(r"[12]\.\d{1,3}", str(found.get("version", ""))[:20]):
        raise DumpError("this is no dump of torch's flight recorder of version 1.x or 2.x: it has no such `version`")
    entries = [each for each in _to_list(found.get("entries")) if isinstance(each, dict)]
    entries.sort(key=lambda each: _to_int(each.get("record_id")))
    opened = [each for each in entries if not _is_complete(each)]
    oldest = opened[0] if opened else None
    timeout_ms = _to_int((oldest or {}).get("timeout_ms")) or _DEFAULT_TIMEOUT_MS
    return Dump(
        groups=_read_groups(found, entries),
        waits=_read_collective(oldest) if oldest else None,
        stack=_read_frames(oldest) if oldest else (),
        timeout_s=timeout_ms / 1000,
    )


def _read_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"the dump is no valid JSON: {str(error)[:200]}") from None


def _read_pickle(data: bytes) -> object:
    """A pickle of plain values: every opcode is checked before the first one is executed."""
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
    except Exception as error:  # a pickle may fail in any way
        raise DumpError(f"the dump is no whole pickle: {str(error)[:200]}") from None


def _is_complete(entry: Mapping[str, Any]) -> bool:
    """Gloo only retires what is complete; NCCL's watchdog retires what has timed out, too."""
    if str(entry.get("profiling_name")).startswith("gloo:"):
        return bool(entry.get("retired"))
    return entry.get("state") == "completed"


def _read_groups(found: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, GroupProgress]:
    """How far the rank has come in each group: by its calls, and by the counters that newer versions have."""
    ranks = {str(name): _read_ranks(its) for name, its in _to_dict(found.get("pg_config")).items()}
    status = _to_dict(found.get("pg_status"))
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if not _is_p2p(entry):
            calls.setdefault(_read_group(entry), []).append(entry)
    groups = {}
    for name, its in calls.items():
        counters = _to_dict(status.get(str(its[-1].get("pg_id"))))
        called = max(*map(_read_sequence, its), _to_int(counters.get("last_enqueued_collective")), 0)
        opened = [_read_sequence(each) for each in its if not _is_complete(each)]
        completed = max(min(opened) - 1, 0) if opened else called
        groups[name] = GroupProgress(ranks=ranks.get(name, ()), called=called, completed=completed)
    for name, members in ranks.items():
        if members:
            groups.setdefault(name, GroupProgress(ranks=members, called=0, completed=0))
    return groups


def _read_ranks(config: object) -> tuple[int, ...]:
    """`[0, 1]`, a text in all versions; empty where gloo does not say it."""
    text = str(_to_dict(config).get("ranks", ""))[:1_000_000]
    return tuple(int(each) for each in re.findall(r"\d{1,7}", text))


def _read_collective(entry: Mapping[str, Any]) -> Collective:
    sizes = [each for each in _to_list(entry.get("input_sizes")) if isinstance(each, list)][:_MAX_TENSORS]
    name = str(entry.get("profiling_name", ""))[:_MAX_TEXT_CHARS]
    return Collective(
        group=_read_group(entry),
        sequence=_read_sequence(entry),
        operation=name.partition(":")[2] or name,
        sizes=tuple(tuple(map(_to_int, each[:_MAX_TENSORS])) for each in sizes),
        dtypes=tuple(str(each)[:40] for each in _to_list(entry.get("input_dtypes"))[:_MAX_TENSORS]),
    )


def _read_group(entry: Mapping[str, Any]) -> str:
    """The group's name: a pair of name and description, or its number in the oldest versions."""
    its = entry.get("process_group")
    name = its[0] if isinstance(its, list | tuple) and its else its if isinstance(its, str) else entry.get("pg_id", "0")
    return str(name)[:_MAX_TEXT_CHARS]


def _read_sequence(entry: Mapping[str, Any]) -> int:
    key = "p2p_seq_id" if _is_p2p(entry) else "collective_seq_id"
    return max(_to_int(entry.get(key, entry.get("seq_id"))), 0)


def _is_p2p(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("is_p2p")) or bool(re.match(r"\w+:(?:send|recv)\b", str(entry.get("profiling_name"))))


def _read_frames(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    frames = [each for each in _to_list(entry.get("frames")) if isinstance(each, dict)][:_MAX_FRAMES]
    return tuple(
        Frame(
            function=str(each.get("name"))[:_MAX_TEXT_CHARS],
            file=str(each.get("filename"))[:_MAX_TEXT_CHARS],
            line=_to_int(each.get("line")),
        )
        for each in frames
    )


def _to_int(value: object) -> int:
    """A number; gloo's JSON writes its counters as texts."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?\d{1,18}", value) else 0
    return value if isinstance(value, int) else 0


def _to_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _to_dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
