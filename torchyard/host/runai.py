#!/usr/bin/env python3
"""Supervise a Run:ai job through Run:ai's own CLI. Standard library only, Python 3.8 or newer.

The launcher starts this as `python3 -I -S runai.py FOLDER PODS GENERATION PROJECT CLI JOB VERB`. As for supervisor.py,
stdin has a request and stdout a response by the name of a node; the first pod's stand for the job:

    submit   {"spec": {"argv": [...], "run": RUN}}: runs the CLI command or adopts an existing job; its state
    cancel   {"run": RUN}: copies the rest of every log and deletes the job, if it is this run's; what is left
    watch    sends the states and logs of all pods until they have ended: see watch.py

Two verbs have arguments instead, the first of which is the folder of a node, and become a command of the CLI:
    enter FOLDER COMMAND...       runs the command in the pod
    forward FOLDER LOCAL REMOTE   forwards port LOCAL of this machine to port REMOTE of the pod

The job lives in Run:ai. FOLDER (the attempt's, shared by all of its pods) holds only what can be fetched again:

    state          the job's state, JSON, as the CLI last reported it (state.lock)
    NODE/log-copy  the pod's log so far, each line as `2026-11-21T08:00:47.123456789Z node-0 | text`
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.identity import NEVER, measure_time_since, read_boot_clock
from torchyard.host.runai_cli import (
    JobResponse,
    RunaiJob,
    RunaiPod,
    copy_log,
    find_error_line,
    get_pod_status,
    hold_lock,
    query_cli,
    query_job,
    record_statuses,
)
from torchyard.host.state import file_path
from torchyard.host.watch import Launcher, Renewal, WatchedProcess, read_request, watch_processes

Json = Any
_QUERY_INTERVAL_S = 2.0  # seconds between two calls of the CLI, each of which sends a request to a server
_APPEARANCE_TIMEOUT_S = 60.0  # seconds until a submitted job can be described
_ABSENT_AFTER_RESPONSES = 2  # consecutive responses without the job, after which it is gone
_SUBMIT_TIMEOUT_S = 45
_POLL_INTERVAL_S = 0.3  # between two looks at the stored state
_LAST_COPY_INTERVAL_S = 0.5  # between two copies of the log of a pod that has ended
_MAX_CLI_PROCESSES = 8  # that copy logs at once
_COPY_TIMEOUT_S = 20.0  # for the logs of all pods: the job must be deleted before the launcher ends the verb
_DELETE_COMMAND_TIMEOUT_S = 30
_DELETE_TIMEOUT_S = 60.0  # seconds that a deletion may take, with the copying before it: a pod's grace is 30


def _refresh_state(job: RunaiJob) -> Json:
    """The state of the job, queried again if it is old."""
    with hold_lock(file_path(job.folder, "state.lock")):
        state = _load_state(job)
        if measure_time_since(state["queried_at"]) >= _QUERY_INTERVAL_S:
            state = update_state(state, query_job(job))
            _save_state(job, state)
        return state


def update_state(state: Json, response: JobResponse) -> Json:
    """The state after one more response.

    A query that failed changes nothing: logins expire and networks break. A job is gone after two responses in a row
    that do not have it, not counting failed queries; a new one may need a minute until the CLI can describe it.
    """
    state = dict(state, queried_at=read_boot_clock(), reason=response.reason if response.exists is None else "")
    if response.exists:
        return record_statuses(state, response.statuses)
    if response.exists is None:
        return state
    state["missing"] += 1
    is_new = not state["has_appeared"] and measure_time_since(state["submitted_at"]) < _APPEARANCE_TIMEOUT_S
    if state["missing"] >= _ABSENT_AFTER_RESPONSES and not is_new:
        state["is_deleted"] = True
    return state


def _load_state(job: RunaiJob) -> Json:
    """The job's stored state; an empty one if the job is new, or the file was lost or torn by a power cut.

    OSError if it cannot be read: it must not be replaced then.

    Keys: `queried_at`, when the CLI was last queried, and `submitted_at`, both by the clock since boot; `submitted`, in
    seconds since the epoch; `reason`, why the last query failed, or empty; `missing`, consecutive responses without the
    job; `has_appeared`, it was in a response; `is_deleted`. By pod name (the job itself has an empty one): its status
    (`statuses`), and since when it has that status (`since`), when it started to run (`started`) and when it ended
    (`ended`).
    """
    try:
        with open(file_path(job.folder, "state"), encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        state = {
            "queried_at": NEVER,
            "submitted_at": NEVER,
            "submitted": 0,
            "reason": "",
            "missing": 0,
            "has_appeared": False,
            "is_deleted": False,
        }
        return dict(state, statuses={}, since={}, started={}, ended={})


def _save_state(job: RunaiJob, state: Json) -> None:
    temp_path = file_path(job.folder, "state.part")
    with open(temp_path, "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(temp_path, file_path(job.folder, "state"))


# --- the verbs -----------------------------------------------------------------------------------------------------


def _submit_job(job: RunaiJob, spec: Json) -> Json:
    """Create the job, unless it exists; its state, or why it could not be created or belongs to another run."""
    os.makedirs(job.folder, exist_ok=True)
    response = query_job(job)
    created = False
    if response.exists is False:
        exit_code, output = query_cli(spec["argv"], timeout_s=_SUBMIT_TIMEOUT_S)
        created = exit_code == 0
        if not created and "already exists" in output:  # another process was faster, or the query came too early
            response = query_job(job)
        else:
            response = JobResponse(created, find_error_line(output), {}, "")
    if not response.exists:
        return {"phase": "failed", "created": False, "error": response.reason}
    if not created and response.run not in ("", spec["run"]):
        message_format = (
            "job %s in project %s belongs to another run (torchyard/cli-run: %s): delete it, or rename the profile"
        )
        message = message_format % (job.name, job.project, response.run)
        return {"phase": "failed", "created": False, "error": message}
    with hold_lock(file_path(job.folder, "state.lock")):
        state = _load_state(job)
        if not state["submitted"]:
            state["submitted"] = time.time()
            state["submitted_at"] = read_boot_clock()
        _save_state(job, state)
    return {"phase": "running", "created": created, "started": state["submitted"]}


def _watch_job(job: RunaiJob) -> bool:
    """Send the states and logs of the pods; see host/watch.py. False if the launcher left before their end."""
    os.makedirs(job.folder, exist_ok=True)
    launcher = Launcher()
    nodes, offsets = read_request(launcher)
    pool = ThreadPoolExecutor(_MAX_CLI_PROCESSES)  # not waited for: a CLI that hangs must not hold up the exit
    state_reader = _StateReader(job)
    processes: dict[str, WatchedProcess] = {}
    for pod in job.pods:
        if pod.node in nodes:
            reader = _PodReader(pod, state_reader, pool)
            processes[pod.node] = WatchedProcess(
                pod.copy_path, reader.read_state, reader.is_complete_after, reader.measure_age
            )
    for node, offset in offsets.items():
        processes[node].request_log(offset)
    return watch_processes(launcher, processes, lambda _: Renewal("", ""), _POLL_INTERVAL_S)


class _StateReader:
    """Reads the job's state once for all of its pods in each round."""

    def __init__(self, job: RunaiJob) -> None:
        self._job = job
        self._state: Json = None
        self._read_at = float("-inf")  # monotonic seconds

    def read(self) -> Json:
        if time.monotonic() - self._read_at >= _POLL_INTERVAL_S / 2:
            self._state = _refresh_state(self._job)
            self._read_at = time.monotonic()
        return self._state


class _PodReader:
    """Reads the state of a pod, and copies its log again and again by the CLI.

    A copy runs in the pool while the state and the other pods are read. It is repeated every two seconds, less often
    for many pods, as each starts a program.
    """

    def __init__(self, pod: RunaiPod, state_reader: _StateReader, pool: ThreadPoolExecutor) -> None:
        self._pod = pod
        self._state_reader = state_reader
        self._pool = pool
        self._copy: Future[str | None] | None = None
        self._copy_is_last = False  # it was started after the pod's end
        self._copied_at = float("-inf")  # monotonic seconds
        self._is_complete = False

    def read_state(self) -> Json:
        state = self._state_reader.read()
        status = get_pod_status(state, self._pod.name)
        if not self._is_complete:
            self._continue_copying(status, is_deleted=state["is_deleted"])
        return status

    def is_complete_after(self, _: Json) -> bool:
        """Whether the pod has ended, and its log is copied to its end."""
        return self._is_complete

    def measure_age(self, _: Json) -> float | None:
        """Seconds since the job was submitted; None if this machine has not submitted it."""
        state = self._state_reader.read()
        return measure_time_since(state["submitted_at"]) if state["submitted"] else None

    def _continue_copying(self, status: Json, *, is_deleted: bool) -> None:
        """Take over the result of the last copy, and start the next one if it is time."""
        has_ended = status["phase"] in ("exited", "absent")
        interval_s = _LAST_COPY_INTERVAL_S if has_ended else max(_QUERY_INTERVAL_S, self._pod.job.pod_count / 4)
        if self._copy is not None and self._copy.done():
            self._copied_at = time.monotonic()
            error = self._copy.result()
            self._copy = None
            if self._copy_is_last:
                self._is_complete = error is None or status["phase"] == "absent" or is_deleted
        if self._copy is None and not self._is_complete and time.monotonic() - self._copied_at >= interval_s:
            self._copy_is_last = has_ended
            self._copy = self._pool.submit(copy_log, self._pod, has_ended=has_ended)


def _cancel_job(job: RunaiJob, run: str) -> Json:
    """Delete the job and wait until it is gone. Its logs are deleted with it, so they are copied first.

    Logs that cannot be copied, or not in time, are lost: without a lease, a job that is not deleted would keep running.
    A job of this name that is labelled with another run is not touched: this run has none.
    """
    response = query_job(job)
    if response.exists and response.run not in ("", run):
        return {"phase": "absent", "left": []}
    reason = response.reason
    deadline = time.monotonic() + _DELETE_TIMEOUT_S
    if response.exists:
        pool = ThreadPoolExecutor(_MAX_CLI_PROCESSES)  # not waited for: a CLI that hangs must not hold up the deletion
        _copy_all_logs(job, pool)
        exit_code, output = query_cli(job.build_argv("delete"), timeout_s=_DELETE_COMMAND_TIMEOUT_S)
        reason = find_error_line(output) if exit_code else "it still exists"
        response = query_job(job)
        while response.exists and time.monotonic() < deadline:
            _copy_all_logs(job, pool)
            time.sleep(0.5)
            response = query_job(job)
    leftovers: list[str] = []
    if response.exists is not False:
        leftovers.append("job %s of project %s: %s" % (job.name, job.project, reason))
    with contextlib.suppress(OSError):  # a watch then learns it from the CLI
        os.makedirs(job.folder, exist_ok=True)
        with hold_lock(file_path(job.folder, "state.lock")):
            state = dict(_load_state(job), is_deleted=not leftovers, queried_at=read_boot_clock())
            _save_state(job, state)
    return {"phase": "running" if leftovers else "absent", "left": leftovers}


def _copy_all_logs(job: RunaiJob, pool: ThreadPoolExecutor) -> None:
    """Copy the rest of every pod's log, as far as possible within `_COPY_TIMEOUT_S`. No error of it is raised."""
    copies = [pool.submit(copy_log, pod, has_ended=False) for pod in job.pods]
    wait(copies, timeout=_COPY_TIMEOUT_S)
    for copy in copies:
        copy.cancel()  # those that have not started


def _become_cli(verb: str, job: RunaiJob, args: list[str]) -> NoReturn:
    """Become the CLI's command that enters a pod or forwards a port to it."""
    folder, *rest = args
    node = os.path.basename(folder)
    pods = {pod.node: pod for pod in job.pods}
    if verb == "enter":
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        argv = pods[node].build_exec_argv(rest, has_terminal=has_terminal)
    else:
        argv = pods[node].build_forward_argv(*rest)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the CLI would inherit that
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit("cannot start %s: %s" % (argv[0], error.strerror))


def main(verb: str, job: RunaiJob, args: list[str]) -> NoReturn:
    if verb in ("enter", "forward"):
        _become_cli(verb, job, args)
    os.umask(0o077)  # logs are the user's alone
    if verb == "watch":
        os._exit(0 if _watch_job(job) else 1)  # without waiting for the threads that copy logs
    requests: dict[str, Json] = json.load(sys.stdin)
    ((node, request),) = requests.items()  # the job has one request, that of its first pod
    response = _submit_job(job, request["spec"]) if verb == "submit" else _cancel_job(job, request["run"])
    print(json.dumps({node: response}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[7], RunaiJob(sys.argv[1:7]), sys.argv[8:])
