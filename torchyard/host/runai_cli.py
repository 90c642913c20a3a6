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
_SUCCEEDED_STATUSES = {"succeeded", "completed"}
_RUNNING_STATUSES = {"running", "degraded", "updating", "terminating"}
_FAILED_STATUSES = {"failed", "fail", "error", "timedout", "preempted", "evicted", "oomkilled", "containercannotrun"}
_LINE_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d) ")
_LOG_OVERLAP_S = 2  # seconds that are fetched again: the stamps of stdout and stderr are not in perfect order


class RunaiJob:
    """One pod of a Run:ai job, from the launcher's command-line arguments."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.folder, self.node, pods, self.generation, self.project, self.cli, self.verb, self.name = argv
        self.pod_count, index = int(pods), int(self.node.rpartition("-")[2])
        self.pod_name = "%s-%s" % (self.name, "worker-%d" % (index - 1) if index else "master-0")
        self.copy_path = os.path.join(self.folder, self.node, "taken")

    def for_pod(self, index: int) -> RunaiJob:
        """Another pod of the same job."""
        return RunaiJob([self.argv[0], "node-%d" % index] + self.argv[2:])

    def build_argv(self, verb: str, *extra_args: str) -> list[str]:
        """The CLI's command line for a verb on the job."""
        noun = ["job"] if self.generation == "cli-v1" and verb != "logs" else []
        return (
            [self.cli]
            + _JOB_COMMANDS[self.generation]
            + [verb]
            + noun
            + [self.name, "--project", self.project]
            + list(extra_args)
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


def _run_cli(argv: list[str], timeout_s: float) -> tuple[int, bytes, bytes]:
    """The exit code, stdout and stderr of a command; it never raises."""
    try:
        completed = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
        return completed.returncode, completed.stdout, completed.stderr
    except subprocess.TimeoutExpired:
        return 124, b"", b"no answer within %d s" % timeout_s
    except OSError as error:
        return 127, b"", ("cannot start %s: %s" % (argv[0], error.strerror)).encode()


def query_cli(argv: list[str], timeout_s: float) -> tuple[int, str]:
    """The exit code of a command and its output, stderr included: v1 prints its errors on stdout."""
    exit_code, out, err = _run_cli(argv, timeout_s)
    return exit_code, (out + b"\n" + err).decode(errors="replace")


def query_job(job: RunaiJob) -> Json:
    """Whether the job exists (None: unknown, see `why`), its and its pods' statuses, and the run that it belongs to."""
    extra_args = ["--pod-limit", "-1"] if job.generation == "cli-v2" and job.pod_count > _DEFAULT_POD_LIMIT else []
    code, output = query_cli(job.build_argv("describe", "-o", "json", *extra_args), 20)
    statuses = _parse_statuses(output, job.name) if code == 0 else {}
    if statuses.get(""):
        label = _RUN_LABEL.search(output)
        return {"found": True, "words": statuses, "why": "", "run": label.group(1) if label else ""}
    missing_lines = [
        line for line in output.splitlines() if _MISSING_MESSAGE.search(line) and "project" not in line.lower()
    ]
    reason = find_error_line(output) if code else "its answer has no status of the job"
    return {"found": False if missing_lines else None, "why": reason, "run": ""}


def find_error_line(output: str) -> str:
    """The error line in a CLI's output, else the last line: cobra prints its usage after the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it gives no reason"]
    return next((line for line in lines if line.lower().startswith("error")), lines[-1])


def check_cli(requirement: Json) -> Json:
    """What preflight checks of a CLI: whether it runs, its generation, whether a user is logged in, the project."""
    cli, generation = requirement["cli"], requirement["generation"]
    code, output = query_cli([cli, "version"], 20)
    if code:
        return {"runs": False, "why": find_error_line(output)}
    generations = [
        name for name, help_argv in sorted(_HELP_COMMANDS.items()) if query_cli([cli] + help_argv, 20)[0] == 0
    ]
    code, output = query_cli([cli, "whoami"], 20)
    result = {
        "runs": True,
        "generations": generations,
        "user": code == 0,
        "why": find_error_line(output) if code else "",
    }
    if generation in generations and not code:
        code, output = query_cli([cli] + _PROJECT_COMMANDS[generation], 20)
        result["project"] = (
            None if code else bool(re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(requirement["project"]), output))
        )
    return result


# --- parsing its answers -------------------------------------------------------------------------------------------


def _walk_mappings(value: Json) -> Iterator[Json]:
    """Every mapping in an answer, the outer ones first."""
    queue = collections.deque([value])
    while queue:
        current = queue.popleft()
        if isinstance(current, dict):
            yield current
        queue.extend(current.values() if isinstance(current, dict) else current if isinstance(current, list) else ())


def _find_text(mapping: Json, keys: tuple[str, ...]) -> str:
    """The first text under one of these keys, in any case, or one mapping deeper."""
    if not isinstance(mapping, dict):
        return ""
    lowered = {str(key).lower(): value for key, value in mapping.items()}
    values = [lowered[key] for key in keys if key in lowered]
    texts = [value for value in values if isinstance(value, str)]
    return texts[0] if texts else next((text for each in values if (text := _find_text(each, keys + ("value",)))), "")


def _parse_statuses(output: str, job_name: str) -> dict[str, str]:
    """The statuses in an answer: the job's under "", each pod's under its name."""
    try:
        response = json.loads(output[output.index("{") : output.rindex("}") + 1])
    except ValueError:
        match = _PLAIN_STATUS.search(output)
        return {"": match.group(1) if match else ""}
    named_statuses = [
        (
            _find_text(mapping, _NAME_KEYS) or _find_text(mapping.get("metadata"), _NAME_KEYS),
            _find_text(mapping, _STATUS_KEYS),
        )
        for mapping in _walk_mappings(response)
    ]
    by_name = {name: status for name, status in named_statuses if name and status}
    return dict(by_name, **{"": by_name.get(job_name) or next((status for _, status in named_statuses if status), "")})


def record_statuses(state: Json, statuses: dict[str, str]) -> Json:
    """The state after an answer: each status and since when, when each first ran, and when each had ended."""
    now = time.time()
    since, started, ended = dict(state["since"]), dict(state["begun"]), dict(state["ended"])
    for name, status in statuses.items():
        since[name] = since[name] if state["words"].get(name) == status else now
        if _parse_phase(status) != "starting":
            started.setdefault(name, now)
        if _parse_phase(status) == "exited":
            ended.setdefault(name, now)
    is_deleted = statuses[""].lower() == "deleted"
    return dict(state, words=statuses, since=since, begun=started, ended=ended, seen=True, gone=is_deleted, missing=0)


def _parse_phase(status: str) -> str:
    """The phase that a status means; an unknown status never means the end."""
    lowered = status.lower()
    if lowered in _SUCCEEDED_STATUSES or lowered in _FAILED_STATUSES:
        return "exited"
    return "running" if lowered in _RUNNING_STATUSES else "starting"


def get_pod_status(state: Json, pod_name: str) -> Json:
    """The state of one pod. Without a status of its own it has the job's; a failed job has no running pods."""
    job_status = state["words"].get("", "")
    status = state["words"].get(pod_name) or job_status
    phase, code = _parse_phase(status), 0 if status.lower() in _SUCCEEDED_STATUSES else None
    if status.lower() in _FAILED_STATUSES:
        code = 1 if pod_name in state["words"] else None
    elif phase != "exited" and job_status.lower() in _FAILED_STATUSES:
        phase, status = "exited", job_status
    if state["gone"] and phase != "exited":
        phase = "absent"
    name = pod_name if pod_name in state["words"] else ""
    times = {
        "started": state["begun"].get(name),
        "ended": state["ended"].get(name),
        "since": state["since"].get(name),
    }
    return dict(times, phase=phase, exit=code, word=status, job=job_status, detail=state["why"])


# --- logs ----------------------------------------------------------------------------------------------------------


def count_copied_bytes(job: RunaiJob) -> int:
    """How many bytes of the pod's log have been copied."""
    try:
        return os.path.getsize(job.copy_path)
    except FileNotFoundError:
        return 0


def copy_log(job: RunaiJob, has_ended: bool) -> str:
    """Append the log's new lines to the copy; returns why that failed, or "". `over`: half a line counts too."""
    os.makedirs(os.path.dirname(job.copy_path), exist_ok=True)
    prefix = (" %s | " % job.node).encode()
    with hold_lock(job.copy_path + ".lock"), open(job.copy_path, "a+b") as file:
        copied_lines = [line.replace(prefix, b" ", 1) for line in read_tail(file)]
        since = max((_parse_timestamp(line) for line in copied_lines), default=0) - _LOG_OVERLAP_S
        since_args = ["--since-time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))] if copied_lines else []
        code, out, err = _run_cli(job.build_argv("logs", "--pod", job.pod_name, "--timestamps", *since_args), 30)
        replayed = collections.Counter(line for line in copied_lines if _parse_timestamp(line) >= since)
        *lines, unfinished_line = out.split(b"\n")
        for line in filter(_LINE_TIMESTAMP.match, lines + [unfinished_line] if has_ended else lines):
            replayed[line] -= 1
            if replayed[line] < 0:
                file.write(line.replace(b" ", prefix, 1) + b"\n")
    return find_error_line((err or out).decode(errors="replace")) if code else ""


def _parse_timestamp(line: bytes) -> int:
    """A line's time stamp in seconds since the epoch; 0 if it has none."""
    match = _LINE_TIMESTAMP.match(line)
    if not match:
        return 0
    zone = match.group(1).decode().replace(":", "")
    utc_offset_s = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    return calendar.timegm(time.strptime(line[:19].decode(), "%Y-%m-%dT%H:%M:%S")) - utc_offset_s
