"""What an archive holds of a run's folder, and how two journals of one run become one.

Records are small and written whole, but for the journal, which grows by a line. Logs grow while the job runs: they are
archived once the job of their attempt has ended, because an object cannot be appended to, and until then the lines are
where the job is. Checkpoints belong to the program, and locks, leases and supervisors to this machine: neither is
archived.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

JOURNAL = "journal"
RECORD = "record.json"
REPORT = "report.json"
_RECORDS = re.compile(
    rf"{JOURNAL}|profile\.json|{REPORT}|{RECORD}"
    r"|attempt-\d{1,6}/(?:(?:plan|outcome|ended)\.json|hang/(?:hang|stacks)\.txt)"
)
_LOGS = re.compile(r"attempt-\d{1,6}/[A-Za-z0-9][\w.-]{0,250}/log")
_PATTERNS = ("*.json", "attempt-*/*.json", "attempt-*/hang/*.txt")


class Version(NamedTuple):
    """By which two contents of a file are told apart."""

    size: int
    modified_ns: int


def is_record(name: str) -> bool:
    return bool(_RECORDS.fullmatch(name))


def is_log(name: str) -> bool:
    return bool(_LOGS.fullmatch(name))


def list_records(folder: Path) -> dict[str, Version]:
    """The records of a run's folder except its journal. OSError."""
    return _list_versions(folder, [path for pattern in _PATTERNS for path in folder.glob(pattern)])


def list_ended_logs(folder: Path) -> dict[str, Version]:
    """The logs of the attempts whose job has ended. OSError."""
    ended = [path.parent for path in folder.glob("attempt-*/outcome.json")]
    return _list_versions(folder, [log for attempt in ended for log in attempt.glob("*/log")])


def _list_versions(folder: Path, paths: list[Path]) -> dict[str, Version]:
    versions = {}
    for path in sorted(paths):
        name = str(path.relative_to(folder))
        if is_record(name) or is_log(name):
            stat = path.stat()
            versions[name] = Version(stat.st_size, stat.st_mtime_ns)
    return versions


def merge_journals(local: bytes, remote: bytes) -> bytes:
    """One journal with the lines of both, in order of time; `ours` itself if it has all of them.

    They differ if a run went on elsewhere, and if the process here was lost before its last lines were archived.
    """
    local_lines = _list_complete_lines(local)
    remote_lines = _list_complete_lines(remote)
    if set(remote_lines) <= set(local_lines):
        return local
    remote_line_set = set(remote_lines)
    lines = sorted([*remote_lines, *(line for line in local_lines if line not in remote_line_set)], key=_parse_time)
    return b"".join(line + b"\n" for line in lines)


def list_origins(journal: bytes) -> list[str]:
    """The folders in which processes of the run had what they have written into the archive."""
    folders = (_parse_event(line).get("folder") for line in _list_complete_lines(journal))
    return list(dict.fromkeys(folder for folder in folders if isinstance(folder, str) and folder.startswith("/")))


def move_paths(text: str, origins: list[str], folder: str) -> str:
    """A record in which the run's folder is this one, so that its logs are found here."""
    for origin in sorted(origins, key=len, reverse=True):
        if origin != folder:
            pattern = re.escape(json.dumps(origin, ensure_ascii=False)[1:-1]) + r"(?=[/\")])"
            text = re.sub(pattern, lambda _: json.dumps(folder, ensure_ascii=False)[1:-1], text)
    return text


def _list_complete_lines(journal: bytes) -> list[bytes]:
    """The whole lines; a torn one is left out."""
    return [line for line in journal.split(b"\n") if _parse_event(line)]


def _parse_event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    is_event = (
        isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("at"), int | float)
    )
    return event if is_event else {}


def _parse_time(line: bytes) -> float:
    return float(_parse_event(line)["at"])
