"""Run Run:ai's CLI and parse its output. Standard library only, Python 3.8 or newer.

The format of its output is not documented, so the statuses of a job and its pods are searched in all of it.
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
from typing import Any, Iterator, NamedTuple

from torchyard.host.log import read_tail

Json = Any
_JOB_COMMANDS = {"cli-v1": [], "cli-v2": ["training", "pytorch"]}
_V1_JOB_VERBS = ("describe", "delete")  # of v1, for several kinds of objects
_DEFAULT_POD_LIMIT = 10  # pods that v2 describes by default
_NAME_END = r"(?![\w-]|[./']\w)"  # not a pod's name, a host's or the file of a path, which begin with the job's
_MISSING_MESSAGES = (  # `The job NAME does not exist in project P`, `workload not found`; `could not find job NAME`
    r"(?<![\w./-])(?:%s|job|workload)" + _NAME_END + r"[\\\"'`)]* +(?:(?:was|is|does|could|can)? ?n[o']t|cannot)"
    r" +(?:be +)?(?:found|exist)",
    r"(?:n[o']t find|(?:failed|unable) to find|no such)"
    r" +(?:(?:the|a|any|training|pytorch|job|workload|with|name|named):? +)*[\\\"'`(]*%s" + _NAME_END,
)
_RUN_LABEL = re.compile(r'torchyard/cli-run"?\s*[,:=]\s*(?:"value"\s*:\s*)?"?([a-z0-9-]+)')
_STATUS_KEYS = ("status", "phase", "state")
_NAME_KEYS = ("name", "podname", "pod")
_PLAIN_STATUS = re.compile(
    r'^\W*(?:job |workload )?(?:status|phase)"?\s*[:=]\s*"?([A-Za-z]+)', re.IGNORECASE | re.MULTILINE
)
_SUCCEEDED_STATUSES = {"succeeded", "completed"}
_RUNNING_STATUSES = {"running", "degraded", "updating", "terminating"}
_FAILED_STATUSES = {"failed", "fail", "error", "timedout", "preempted", "evicted", "oomkilled", "containercannotrun"}
_LINE_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d) ")
_LOG_OVERLAP_S = 2  # seconds that are fetched again: the time stamps of stdout and stderr are not in order
QUERY_TIMEOUT_S = 20
_LOG_TIMEOUT_S = 30


class RunaiJob:
    """A Run:ai job, from the launcher's command-line arguments (see runai.py)."""

    def __init__(self, argv: list[str]) -> None:
        self.folder, pod_count, self.generation, self.project, self.cli, self.name = argv
        self.pod_count = int(pod_count)

    @property
    def pods(self) -> list[RunaiPod]:
        return [RunaiPod(self, index) for index in range(self.pod_count)]

    def build_argv(self, verb: str, *extra_args: str) -> list[str]:
        """The CLI's command line for a verb on the job."""
        argv = [self.cli] + _JOB_COMMANDS[self.generation] + [verb]
        if self.generation == "cli-v1" and verb in _V1_JOB_VERBS:
            argv.append("job")
        return argv + [self.name, "--project", self.project] + list(extra_args)


class RunaiPod:
    """One pod of a Run:ai job: the first one is its master."""

    def __init__(self, job: RunaiJob, index: int) -> None:
        self.job = job
        self.node = "node-%d" % index
        self.name = "%s-%s" % (job.name, "worker-%d" % (index - 1) if index else "master-0")
        self.copy_path = os.path.join(job.folder, self.node, "log-copy")

    def build_exec_argv(self, argv: list[str], *, has_terminal: bool) -> list[str]:
        """The CLI's command line that runs a command in the pod, with this process's input."""
        flags = ["--stdin", "--tty"] if has_terminal else ["--stdin"]
        return self.job.build_argv("exec", "--pod", self.name, *flags, "--", *argv)

    def build_forward_argv(self, local_port: str, remote_port: str) -> list[str]:
        """The CLI's command line that forwards a port of the loopback interface to the pod."""
        ports = "%s:%s" % (local_port, remote_port)
        return self.job.build_argv("port-forward", "--pod", self.name, "--port", ports, "--address", "localhost")


@contextlib.contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Wait for a lock file and hold it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# --- running the CLI ------------------------------------------------------------------------------------------------


def _run_cli(argv: list[str], *, timeout_s: float) -> tuple[int, bytes, bytes]:
    """The exit code, stdout and stderr of a command. As in a shell, 124 is a timeout, and 127 a missing program."""
    try:
        completed = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
        return completed.returncode, completed.stdout, completed.stderr
    except subprocess.TimeoutExpired:
        return 124, b"", b"no answer within %d s" % timeout_s
    except OSError as error:
        return 127, b"", ("cannot start %s: %s" % (argv[0], error.strerror)).encode()


def query_cli(argv: list[str], *, timeout_s: float) -> tuple[int, str]:
    """The exit code of a command and its output, stderr included: v1 prints its errors on stdout."""
    exit_code, stdout, stderr = _run_cli(argv, timeout_s=timeout_s)
    return exit_code, (stdout + b"\n" + stderr).decode(errors="replace")


class JobResponse(NamedTuple):
    """What the CLI reports about a job.

    exists: None if that is unknown, for the given `reason`: logins expire, networks break, and the CLI is replaced.
    reason: why there is no status; empty if there is one.
    statuses: the job's own under an empty name, each pod's under its name.
    run: the run that the job is labelled with; empty without that label.
    """

    exists: bool | None
    reason: str
    statuses: dict[str, str]
    run: str


def query_job(job: RunaiJob) -> JobResponse:
    """Query the job, its pods' statuses, and the run that it belongs to."""
    argv = job.build_argv("describe", "-o", "json")
    if job.generation == "cli-v2" and job.pod_count > _DEFAULT_POD_LIMIT:
        argv += ["--pod-limit", "-1"]
    exit_code, output = query_cli(argv, timeout_s=QUERY_TIMEOUT_S)
    statuses = parse_statuses(output, job.name) if exit_code == 0 else {}
    if statuses.get(""):
        label = _RUN_LABEL.search(output)
        return JobResponse(True, "", statuses, label.group(1) if label else "")
    if exit_code == 0:
        return JobResponse(None, "its response has no status of the job", {}, "")
    exists = False if _reports_missing(output, job.name) else None
    return JobResponse(exists, find_error_line(output), {}, "")


def _reports_missing(output: str, job_name: str) -> bool:
    """Whether an error of the CLI states that the job does not exist.

    Hosts, files, programs, pages, clusters and projects are also "not found", and then nothing is known about the job.
    """
    return any(re.search(pattern % re.escape(job_name), output, re.IGNORECASE) for pattern in _MISSING_MESSAGES)


def find_error_line(output: str) -> str:
    """The error line in a CLI's output, else the last line: cobra prints its usage after the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.lower().startswith("error"):
            return line
    return lines[-1] if lines else "the CLI printed no error message"


# --- parsing its output --------------------------------------------------------------------------------------------


def _walk_mappings(value: Json) -> Iterator[Json]:
    """Every mapping in a JSON value, the outer ones first."""
    queue = collections.deque([value])
    while queue:
        current = queue.popleft()
        if isinstance(current, dict):
            yield current
            queue.extend(current.values())
        elif isinstance(current, list):
            queue.extend(current)


def _find_text(mapping: Json, keys: tuple[str, ...]) -> str:
    """The first text under one of these keys, or in the mapping under one, as in `status: {phase: Running}`.

    Capitals and small letters are the same in the keys of `mapping`. Empty if there is none.
    """
    if not isinstance(mapping, dict):
        return ""
    values_by_key = {str(key).lower(): value for key, value in mapping.items()}
    values = [values_by_key[key] for key in keys if key in values_by_key]
    for value in values:
        if isinstance(value, str):
            return value
    for value in values:
        text = _find_text(value, keys + ("value",))
        if text:
            return text
    return ""


def parse_statuses(output: str, job_name: str) -> dict[str, str]:
    """The statuses in the CLI's output, by the names there, such as those of the pods.

    The job's own is also under the name "", and is empty if it is unknown. If the output does not name the job, that is
    the status of the outermost mapping which has one.
    """
    try:
        response = json.loads(output[output.index("{") : output.rindex("}") + 1])
    except (ValueError, RecursionError):
        match = _PLAIN_STATUS.search(output)
        return {"": match.group(1) if match else ""}
    first_status = ""
    statuses: dict[str, str] = {}
    for mapping in _walk_mappings(response):
        name = _find_text(mapping, _NAME_KEYS) or _find_text(mapping.get("metadata"), _NAME_KEYS)
        status = _find_text(mapping, _STATUS_KEYS)
        first_status = first_status or status
        if name and status:
            statuses[name] = status
    statuses[""] = statuses.get(job_name) or first_status
    return statuses


def record_statuses(state: Json, statuses: dict[str, str]) -> Json:
    """The state after a response: each status and since when, when each first ran, and when each had ended.

    Times are when this process received a response, in seconds since the epoch: the CLI reports none.
    """
    now = time.time()
    since = dict(state["since"])
    started = dict(state["started"])
    ended = dict(state["ended"])
    for name, status in statuses.items():
        if state["statuses"].get(name) != status:
            since[name] = now
        phase = _parse_phase(status)
        if phase != "starting":
            started.setdefault(name, now)
        if phase == "exited":
            ended.setdefault(name, now)
    is_deleted = statuses[""].lower() == "deleted"
    return dict(
        state,
        statuses=statuses,
        since=since,
        started=started,
        ended=ended,
        has_appeared=True,
        is_deleted=is_deleted,
        missing=0,
    )


def _parse_phase(status: str) -> str:
    """The phase that a status means; an unknown status never means the end."""
    lowered = status.lower()
    if lowered in _SUCCEEDED_STATUSES or lowered in _FAILED_STATUSES:
        return "exited"
    return "running" if lowered in _RUNNING_STATUSES else "starting"


def get_pod_status(state: Json, pod_name: str) -> Json:
    """The state of one pod. Without a status of its own it has the job's; a failed job has no running pods.

    Run:ai reports no exit codes: `exit` is 0 for a pod that succeeded, 1 for one that is itself reported as failed, and
    None if that is unknown.
    """
    job_status = state["statuses"].get("", "")
    status = state["statuses"].get(pod_name) or job_status
    phase = _parse_phase(status)
    exit_code = None
    if status.lower() in _SUCCEEDED_STATUSES:
        exit_code = 0
    elif status.lower() in _FAILED_STATUSES:
        exit_code = 1 if pod_name in state["statuses"] else None
    elif phase != "exited" and job_status.lower() in _FAILED_STATUSES:
        phase = "exited"
        status = job_status
    if state["is_deleted"] and phase != "exited":
        phase = "absent"
    name = pod_name if pod_name in state["statuses"] else ""
    detail = None
    if state["reason"]:
        detail = "runai does not answer: %s" % state["reason"]
    return {
        "started": state["started"].get(name),
        "ended": state["ended"].get(name),
        "since": state["since"].get(name),
        "phase": phase,
        "exit": exit_code,
        "status": status,
        "job": job_status,
        "detail": detail,
    }


# --- logs ----------------------------------------------------------------------------------------------------------


def copy_log(pod: RunaiPod, *, has_ended: bool) -> str | None:
    """Append the log's new lines to the copy; return why that failed, None if it did not.

    The CLI is asked for the log since `_LOG_OVERLAP_S` before the newest line of the copy, and lines that the copy has
    already are skipped. A last line that is not complete is copied once the pod has ended. Lines without a time stamp
    are messages of the CLI and are not copied.
    """
    try:
        return _append_new_lines(pod, has_ended=has_ended)
    except OSError as error:  # such as a full disk
        return "cannot write %s: %s" % (pod.copy_path, error.strerror)


def _append_new_lines(pod: RunaiPod, *, has_ended: bool) -> str | None:
    """See `copy_log`. Returns why the CLI could not print the log. OSError if the copy cannot be written."""
    os.makedirs(os.path.dirname(pod.copy_path), exist_ok=True)
    prefix = (" %s | " % pod.node).encode()
    with hold_lock(pod.copy_path + ".lock"), open(pod.copy_path, "a+b") as file:
        copied_lines = [line.replace(prefix, b" ", 1) for line in read_tail(file)]
        since = max((_parse_timestamp(line) for line in copied_lines), default=0) - _LOG_OVERLAP_S
        argv = pod.job.build_argv("logs", "--pod", pod.name, "--timestamps")
        if copied_lines:
            argv += ["--since-time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))]
        exit_code, stdout, stderr = _run_cli(argv, timeout_s=_LOG_TIMEOUT_S)
        repeat_counts = collections.Counter(line for line in copied_lines if _parse_timestamp(line) >= since)
        *lines, unfinished_line = stdout.split(b"\n")
        if has_ended:
            lines.append(unfinished_line)
        for line in filter(_LINE_TIMESTAMP.match, lines):
            repeat_counts[line] -= 1
            if repeat_counts[line] < 0:  # the copy lacks this one
                file.write(line.replace(b" ", prefix, 1) + b"\n")
    if exit_code == 0:
        return None
    return find_error_line((stderr or stdout).decode(errors="replace"))


def _parse_timestamp(line: bytes) -> int:
    """A line's time stamp in seconds since the epoch; 0 if it has none."""
    match = _LINE_TIMESTAMP.match(line)
    if not match:
        return 0
    zone = match.group(1).decode().replace(":", "")
    utc_offset_s = 0
    if zone != "Z":
        direction = int(zone[0] + "1")
        utc_offset_s = direction * (int(zone[1:3]) * 3600 + int(zone[3:5]) * 60)
    return calendar.timegm(time.strptime(line[:19].decode(), "%Y-%m-%dT%H:%M:%S")) - utc_offset_s
