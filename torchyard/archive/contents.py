"""Which files of a run's folder are archived, and how the journals of one run are merged.

Records are small and written completely, except the journal, which grows line by line. Each process that archives a run
writes its own journal object, so that a process that has lost the run cannot overwrite the lines of the process that
ended it.

Logs grow while the job runs. They are archived after the job of their attempt has ended, because an object cannot be
appended to; until then the lines are stored where the job runs. Checkpoints belong to the program, and locks, leases
and supervisors' files to one machine, so they are not archived; what is known of the checkpoints is.
"""

import heapq
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.common.json_text import parse_json

JOURNAL = "journal"
RECORD = "record.json"
REPORT = "report.json"
_JOURNALS = re.compile(rf"{JOURNAL}-[0-9a-f]{{1,32}}")
_RECORDS = re.compile(
    rf"profile\.json|checkpoints\.json|{REPORT}|{RECORD}"
    r"|attempt-\d{1,6}/(?:(?:plan|outcome|ended)\.json|hang/(?:hang|stacks)\.txt)"
)
_LOGS = re.compile(r"attempt-\d{1,6}/[A-Za-z0-9][\w.-]{0,250}/log")
_PATTERNS = ("*.json", "attempt-*/*.json", "attempt-*/hang/*.txt")


class Version(NamedTuple):
    """Size and time of a file's last change; a file whose version is unchanged is not copied again."""

    size: int
    modified_ns: int


def build_journal_name(process_id: str) -> str:
    """The name of the journal object of one process. `process_id`: hexadecimal digits that no other process has."""
    return f"{JOURNAL}-{process_id}"


def is_journal(name: str) -> bool:
    return bool(_JOURNALS.fullmatch(name))


def is_record(name: str) -> bool:
    """Whether a file is a record of a run other than its journal."""
    return bool(_RECORDS.fullmatch(name))


def is_log(name: str) -> bool:
    return bool(_LOGS.fullmatch(name))


def list_records(folder: Path) -> dict[str, Version]:
    """The records of a run's folder except its journal. OSError if they cannot be read."""
    paths: list[Path] = []
    for pattern in _PATTERNS:
        paths += folder.glob(pattern)
    return _list_versions(folder, paths)


def list_ended_logs(folder: Path) -> dict[str, Version]:
    """The logs of the attempts whose job has ended. OSError if they cannot be read."""
    paths: list[Path] = []
    for outcome_path in folder.glob("attempt-*/outcome.json"):
        paths += outcome_path.parent.glob("*/log")
    return _list_versions(folder, paths)


def _list_versions(folder: Path, paths: list[Path]) -> dict[str, Version]:
    versions: dict[str, Version] = {}
    for path in sorted(paths):
        name = str(path.relative_to(folder))
        if is_record(name) or is_log(name):
            stat = path.stat()
            versions[name] = Version(stat.st_size, stat.st_mtime_ns)
    return versions


def merge_journals(local: bytes, archived: Iterable[bytes]) -> bytes:
    """One journal with the lines of all, each once, in the order of events; `local` itself if it has all of them.

    The journals differ if the run was resumed elsewhere, or if a launcher on this machine was lost before its last
    lines were archived. The clocks of two machines may differ by hours, so times decide only between lines whose order
    no journal shows. The launchers of a run never overlap: all lines of one come before the start of the next one.
    Every line has its time, so that no two events have the same line; an incomplete last line is left out.
    """
    journals = [_list_complete_lines(local)]
    journals += map(_list_complete_lines, archived)
    if set().union(*journals[1:]) <= set(journals[0]):
        return local
    launches_of_journals = list(map(_split_launches, journals))
    merged: list[bytes] = []
    for start in _merge_sequences([list(launches) for launches in launches_of_journals]):
        merged += _merge_sequences([launches[start] for launches in launches_of_journals if start in launches])
    return b"".join(line + b"\n" for line in dict.fromkeys(merged))


def _split_launches(lines: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """The lines of each process that has run the run, by its start; a line before the first start is by itself."""
    launches: dict[bytes, list[bytes]] = {}
    start: bytes | None = None
    for line in lines:
        if _parse_event(line)["event"] == "start":
            start = line
        launches.setdefault(start or line, []).append(line)
    return launches


def _merge_sequences(sequences: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The items of all sequences, each once and in the order of every sequence; by time where these leave it open."""
    successors: dict[bytes, set[bytes]] = {item: set() for sequence in sequences for item in sequence}
    for sequence in sequences:
        for item, successor in itertools.pairwise(sequence):
            if item != successor:
                successors[item].add(successor)
    predecessor_counts = dict.fromkeys(successors, 0)
    for following in successors.values():
        for successor in following:
            predecessor_counts[successor] += 1
    ready = [(_parse_time(item), item) for item, count in predecessor_counts.items() if not count]
    heapq.heapify(ready)
    merged: dict[bytes, None] = {}
    while ready:
        _, item = heapq.heappop(ready)
        merged[item] = None
        for successor in successors[item]:
            predecessor_counts[successor] -= 1
            if not predecessor_counts[successor]:
                heapq.heappush(ready, (_parse_time(successor), successor))
    # Journals that contradict each other, such as edited ones.
    return [*merged, *sorted(successors.keys() - merged.keys(), key=_parse_time)]


def list_origins(journal: bytes) -> list[str]:
    """The run's folders on the machines whose processes have written its journal."""
    folders = (_parse_event(line).get("folder") for line in _list_complete_lines(journal))
    return list(dict.fromkeys(folder for folder in folders if isinstance(folder, str) and folder.startswith("/")))


def move_paths(text: str, origins: list[str], folder: str) -> str:
    """Replace the folders `origins` in a record by `folder`, so that its paths lead to this machine's files."""
    for origin in sorted(origins, key=len, reverse=True):
        if origin != folder:
            pattern = re.escape(json.dumps(origin, ensure_ascii=False)[1:-1]) + r"(?=[/\")])"
            text = re.sub(pattern, lambda _: json.dumps(folder, ensure_ascii=False)[1:-1], text)
    return text


def _list_complete_lines(journal: bytes) -> list[bytes]:
    """The lines that are valid events; torn lines are left out."""
    return [line for line in journal.split(b"\n") if _parse_event(line)]


def _parse_event(line: bytes) -> dict[str, Any]:
    """Parse a line; empty if it is not an event."""
    try:
        event = parse_json(line)
    except ValueError:
        return {}
    is_event = (
        isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("at"), int | float)
    )
    return event if is_event else {}


def _parse_time(line: bytes) -> float:
    return float(_parse_event(line)["at"])
