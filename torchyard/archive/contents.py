"""Which files of a run's folder are archived, and how the journals of one run are merged.

Records are small and written completely, except the journal, which grows line by line. Each process that archives a run
writes its own journal object, so that a process that has lost the run cannot overwrite the lines of the process that
ended it.

Logs grow while the job runs. They are archived after the job of their attempt has ended, because an object cannot be
appended to; until then the lines are stored where the job runs. Checkpoints belong to the program, and locks, leases
and supervisors' files to one machine, so they are not archived.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.common.json_text import parse_json

JOURNAL = "journal"
RECORD = "record.json"
REPORT = "report.json"
_JOURNALS = re.compile(rf"{JOURNAL}-[0-9a-f]{{1,32}}")
_RECORDS = re.compile(
    rf"profile\.json|{REPORT}|{RECORD}"
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
    """One journal with the lines of all, in order of time; `local` itself if it has all of them.

    They differ if the run was resumed elsewhere, or if a process of this machine was lost before its last lines were
    archived.
    """
    local_lines = _list_complete_lines(local)
    archived_lines: dict[bytes, None] = {}  # each line once: a process also archives the lines that it has fetched
    for journal in archived:
        archived_lines |= dict.fromkeys(_list_complete_lines(journal))
    if archived_lines.keys() <= set(local_lines):
        return local
    lines = [*archived_lines, *(line for line in local_lines if line not in archived_lines)]
    return b"".join(line + b"\n" for line in sorted(lines, key=_parse_time))


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
