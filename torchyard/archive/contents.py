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

JOURNAL, RECORD, REPORT = "journal", "record.json", "report.json"
_RECORDS = re.compile(
    rf"{JOURNAL}|profile\.json|{REPORT}|{RECORD}"
    r"|attempt-\d{1,6}/(?:(?:plan|outcome|ended)\.json|hang/(?:hang|stacks)\.txt)"
)
_LOGS = re.compile(r"attempt-\d{1,6}/[A-Za-z0-9][\w.-]{0,250}/log")
_PATTERNS = ("*.json", "attempt-*/*.json", "attempt-*/hang/*.txt")


class Version(NamedTuple):
    """By which two contents of a file are told apart."""

    size: int
    changed_ns: int


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
    found = {}
    for path in sorted(paths):
        name = str(path.relative_to(folder))
        if is_record(name) or is_log(name):
            about = path.stat()
            found[name] = Version(about.st_size, about.st_mtime_ns)
    return found


def merge_journals(ours: bytes, theirs: bytes) -> bytes:
    """One journal with the lines of both, in order of time; `ours` itself if it has all of them.

    They differ if a run went on elsewhere, and if the process here was lost before its last lines were archived.
    """
    here, there = _list_lines(ours), _list_lines(theirs)
    if set(there) <= set(here):
        return ours
    known = set(there)
    lines = sorted([*there, *(line for line in here if line not in known)], key=_read_time)
    return b"".join(line + b"\n" for line in lines)


def list_origins(journal: bytes) -> list[str]:
    """The folders in which processes of the run had what they have written into the archive."""
    found = (_read_event(line).get("folder") for line in _list_lines(journal))
    return list(dict.fromkeys(each for each in found if isinstance(each, str) and each.startswith("/")))


def move_paths(text: str, origins: list[str], folder: str) -> str:
    """A record in which the run's folder is this one, so that its logs are found here."""
    for origin in sorted(origins, key=len, reverse=True):
        if origin != folder:
            found = re.escape(json.dumps(origin, ensure_ascii=False)[1:-1]) + r"(?=[/\")])"
            text = re.sub(found, lambda _: json.dumps(folder, ensure_ascii=False)[1:-1], text)
    return text


def _list_lines(journal: bytes) -> list[bytes]:
    """The whole lines; a torn one is left out."""
    return [line for line in journal.split(b"\n") if _read_event(line)]


def _read_event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    whole = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("at"), int | float)
    return event if whole else {}


def _read_time(line: bytes) -> float:
    return float(_read_event(line)["at"])
