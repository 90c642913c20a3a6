"""Run Run:ai's CLI and interpret its answers. Standard library only, Python 3.8 or newer.

The format of its answers is not documented, so the statuses of a job and its pods are looked for anywhere in them.
"""

from __future__ import annotations

import calendar
import collections
import contextlib
import fcntl
import json
import os
import re
import subprocess
import time
from typing import Any, Iterator

from torchyard.host.log import read_tail

Json = Any
_JOB_COMMANDS = {"cli-v1": [], "cli-v2": ["training", "pytorch"]}
_HELP_COMMANDS = {"cli-v1": ["submit-dist", "pytorch", "--help"], "cli-v2": ["training", "pytorch", "submit", "--help"]}
_PROJECT_COMMANDS = {"cli-v1": ["list", "projects"], "cli-v2": ["project", "list"]}
_DEFAULT_POD_LIMIT = 10  # pods that v2 describes by default
_MISSING_MESSAGE = re.compile(r"not found|n[o']t exist|could not find|no such|couldn't find", re.IGNORECASE)
# An earlier version wrote `torchyard/run`.
_RUN_LABEL = re.compile(r'torchyard/(?:cli-)?run"?\s*[,:=]\s*(?:"value"\s*:\s*)?"?([a-z0-9-]+)')
_STATUS_KEYS = ("status", "phase", "state")
_NAME_KEYS = ("name", "podname", "pod")
_PLAIN_STATUS = re.compile(
    r'^\W*(?:job |workload )?(?:status|phase)"?\s*[:=]\s*"?([A-Za-z]+)', re.IGNORECASE | re.MULTILINE
)
_SUCCEEDED_WORDS = {"succeeded", "completed"}
_RUNNING_WORDS = {"running", "degraded", "updating", "terminating"}
_FAILED_WORDS = {"failed", "fail", "error", "timedout", "preempted", "evicted", "oomkilled", "containercannotrun"}
_LINE_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d) ")
_LOG_OVERLAP_S = 2  # seconds that are fetched again: the stamps of stdout and stderr are not in perfect order


class RunaiJob:
    """One pod of a Run:ai job, from the launcher's command-line arguments."""

    def __init__(self, given: list[str]) -> None:
        self.given = given
        self.folder, self.node, pods, self.generation, self.project, self.cli, self.verb, self.name = given
        self.pods, index = int(pods), int(self.node.rpartition("-")[2])
        self.pod = "%s-%s" % (self.name, "worker-%d" % (index - 1) if index else "master-0")
        self.taken = os.path.join(self.folder, self.node, "taken")

    def of(self, index: int) -> RunaiJob:
        """Another pod of the same job."""
        return RunaiJob([self.given[0], "node-%d" % index] + self.given[2:])

    def words(self, verb: str, *more: str) -> list[str]:
        """The CLI's command line for a verb on the job."""
        noun = ["job"] if self.generation == "cli-v1" and verb != "logs" else []
        return (
            [self.cli]
            + _JOB_COMMANDS[self.generation]
            + [verb]
            + noun
            + [self.name, "--project", self.project]
            + list(more)
        )


@contextlib.contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Wait for a lock and hold it."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# --- running the CLI ------------------------------------------------------------------------------------------------


def _run_cli(words: list[str], seconds: float) -> tuple[int, bytes, bytes]:
    """The exit code, stdout and stderr of a command; it never raises."""
    try:
        made = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
        return made.returncode, made.stdout, made.stderr
    except subprocess.TimeoutExpired:
        return 124, b"", b"no answer within %d s" % seconds
    except OSError as error:
        return 127, b"", ("cannot start %s: %s" % (words[0], error.strerror)).encode()


def query_cli(words: list[str], seconds: float) -> tuple[int, str]:
    """The exit code of a command and its output, stderr included: v1 prints its errors on stdout."""
    code, out, err = _run_cli(words, seconds)
    return code, (out + b"\n" + err).decode(errors="replace")


def describe_runai_job(job: RunaiJob) -> Json:
    """Whether the job exists (None: unknown, see `why`), its and its pods' statuses, and the run that it belongs to."""
    more = ["--pod-limit", "-1"] if job.generation == "cli-v2" and job.pods > _DEFAULT_POD_LIMIT else []
    code, said = query_cli(job.words("describe", "-o", "json", *more), 20)
    found = _parse_statuses(said, job.name) if code == 0 else {}
    if found.get(""):
        label = _RUN_LABEL.search(said)
        return {"found": True, "words": found, "why": "", "run": label.group(1) if label else ""}
    about = [line for line in said.splitlines() if _MISSING_MESSAGE.search(line) and "project" not in line.lower()]
    why = find_error_line(said) if code else "its answer has no status of the job"
    return {"found": False if about else None, "why": why, "run": ""}


def find_error_line(said: str) -> str:
    """The error line in a CLI's output, else the last line: cobra prints its usage after the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it gives no reason"]
    return next((line for line in lines if line.lower().startswith("error")), lines[-1])


def check_cli(need: Json) -> Json:
    """What preflight checks of a CLI: whether it runs, its generation, whether a user is logged in, the project."""
    cli, generation = need["cli"], need["generation"]
    code, said = query_cli([cli, "version"], 20)
    if code:
        return {"runs": False, "why": find_error_line(said)}
    generations = [each for each, words in sorted(_HELP_COMMANDS.items()) if query_cli([cli] + words, 20)[0] == 0]
    code, said = query_cli([cli, "whoami"], 20)
    fact = {"runs": True, "generations": generations, "user": code == 0, "why": find_error_line(said) if code else ""}
    if generation in generations and not code:
        code, said = query_cli([cli] + _PROJECT_COMMANDS[generation], 20)
        fact["project"] = None if code else bool(re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(need["project"]), said))
    return fact


# --- parsing its answers -------------------------------------------------------------------------------------------


def _walk_mappings(value: Json) -> Iterator[Json]:
    """Every mapping in an answer, the outer ones first."""
    queue = collections.deque([value])
    while queue:
        each = queue.popleft()
        if isinstance(each, dict):
            yield each
        queue.extend(each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())


def _find_text(part: Json, keys: tuple[str, ...]) -> str:
    """The first text under one of these keys, in any case, or one mapping deeper."""
    if not isinstance(part, dict):
        return ""
    low = {str(key).lower(): value for key, value in part.items()}
    found = [low[key] for key in keys if key in low]
    texts = [each for each in found if isinstance(each, str)]
    return texts[0] if texts else next((word for each in found if (word := _find_text(each, keys + ("value",)))), "")


def _parse_statuses(said: str, name: str) -> dict[str, str]:
    """The statuses in an answer: the job's under "", each pod's under its name."""
    try:
        answer = json.loads(said[said.index("{") : said.rindex("}") + 1])
    except ValueError:
        found = _PLAIN_STATUS.search(said)
        return {"": found.group(1) if found else ""}
    answers = [
        (_find_text(part, _NAME_KEYS) or _find_text(part.get("metadata"), _NAME_KEYS), _find_text(part, _STATUS_KEYS))
        for part in _walk_mappings(answer)
    ]
    named = {called: word for called, word in answers if called and word}
    return dict(named, **{"": named.get(name) or next((word for _, word in answers if word), "")})


def record_statuses(record: Json, found: dict[str, str]) -> Json:
    """The state after an answer: each status and since when, when each first ran, and when each had ended."""
    now = time.time()
    since, begun, ended = dict(record["since"]), dict(record["begun"]), dict(record["ended"])
    for name, word in found.items():
        since[name] = since[name] if record["words"].get(name) == word else now
        if _parse_phase(word) != "starting":
            begun.setdefault(name, now)
        if _parse_phase(word) == "exited":
            ended.setdefault(name, now)
    gone = found[""].lower() == "deleted"
    return dict(record, words=found, since=since, begun=begun, ended=ended, seen=True, gone=gone, missing=0)


def _parse_phase(word: str) -> str:
    """The phase that a status means; an unknown status never means the end."""
    low = word.lower()
    if low in _SUCCEEDED_WORDS or low in _FAILED_WORDS:
        return "exited"
    return "running" if low in _RUNNING_WORDS else "starting"


def read_pod_status(record: Json, pod: str) -> Json:
    """The state of one pod. Without a status of its own it has the job's; a failed job has no running pods."""
    whole = record["words"].get("", "")
    word = record["words"].get(pod) or whole
    phase, code = _parse_phase(word), 0 if word.lower() in _SUCCEEDED_WORDS else None
    if word.lower() in _FAILED_WORDS:
        code = 1 if pod in record["words"] else None
    elif phase != "exited" and whole.lower() in _FAILED_WORDS:
        phase, word = "exited", whole
    if record["gone"] and phase != "exited":
        phase = "absent"
    name = pod if pod in record["words"] else ""
    times = {
        "started": record["begun"].get(name),
        "ended": record["ended"].get(name),
        "since": record["since"].get(name),
    }
    return dict(times, phase=phase, exit=code, word=word, job=whole, detail=record["why"])


# --- logs ----------------------------------------------------------------------------------------------------------


def count_copied_bytes(job: RunaiJob) -> int:
    """How many bytes of the pod's log have been copied."""
    try:
        return os.path.getsize(job.taken)
    except FileNotFoundError:
        return 0


def copy_log(job: RunaiJob, over: bool) -> str:
    """Append the log's new lines to the copy; returns why that failed, or "". `over`: half a line counts too."""
    os.makedirs(os.path.dirname(job.taken), exist_ok=True)
    mark = (" %s | " % job.node).encode()
    with hold_lock(job.taken + ".lock"), open(job.taken, "a+b") as copy:
        had = [line.replace(mark, b" ", 1) for line in read_tail(copy)]
        since = max((_parse_stamp(line) for line in had), default=0) - _LOG_OVERLAP_S
        begin = ["--since-time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))] if had else []
        code, out, err = _run_cli(job.words("logs", "--pod", job.pod, "--timestamps", *begin), 30)
        again = collections.Counter(line for line in had if _parse_stamp(line) >= since)
        *lines, rest = out.split(b"\n")
        for line in filter(_LINE_STAMP.match, lines + [rest] if over else lines):
            again[line] -= 1
            if again[line] < 0:
                copy.write(line.replace(b" ", mark, 1) + b"\n")
    return find_error_line((err or out).decode(errors="replace")) if code else ""


def _parse_stamp(line: bytes) -> int:
    """A line's time stamp in seconds since the epoch; 0 if it has none."""
    found = _LINE_STAMP.match(line)
    if not found:
        return 0
    zone = found.group(1).decode().replace(":", "")
    away = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    return calendar.timegm(time.strptime(line[:19].decode(), "%Y-%m-%dT%H:%M:%S")) - away
