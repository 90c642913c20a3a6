#!/usr/bin/env python3
"""Supervise one pod of a Run:ai job through Run:ai's own CLI. Standard library only, Python 3.8 or newer.

The launcher starts this as `python3 -I -S runai.py FOLDER NODE PODS GENERATION PROJECT CLI VERB JOB`:

    submit   runs the CLI command on stdin (JSON: argv, run) or adopts an existing job; prints its state
    status   prints the pod's state at every change, until it has ended or the caller has exited
    follow   prints the pod's log from a byte (last argument), until all of it is printed or the caller has exited
    cancel   copies the rest of every log, deletes the job, and prints what is left

The job lives in Run:ai. FOLDER (the attempt's, shared by all of its pods) holds only what can be fetched again:

    state          the job's state, JSON, as the CLI last reported it; one process queries for all pods (state.lock)
    NODE/log-copy  the pod's log so far, each line as `2026-11-21T08:00:47.123456789Z node-0 | text`
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.runai_cli import (
    JobResponse,
    RunaiJob,
    copy_log,
    count_copied_bytes,
    find_error_line,
    get_pod_status,
    hold_lock,
    query_cli,
    query_job,
    record_statuses,
)
from torchyard.host.state import file_path

Json = Any
_QUERY_INTERVAL_S = 2.0  # seconds between two calls of the CLI, each of which sends a request to a server
_APPEARANCE_TIMEOUT_S = 60.0  # seconds until a submitted job can be described
_ABSENT_AFTER_RESPONSES = 2  # consecutive responses without the job, after which it is gone
_SUBMIT_TIMEOUT_S = 45
_DELETE_COMMAND_TIMEOUT_S = 30
_DELETE_TIMEOUT_S = 60.0  # seconds that a deletion may take: a pod's grace is 30


def _refresh_state(job: RunaiJob) -> Json:
    """The state of the job, queried again if it is old; the first of the pods' processes queries for all."""
    with hold_lock(file_path(job.folder, "state.lock")):
        state = _load_state(job)
        if time.time() - state["queried_at"] >= _QUERY_INTERVAL_S:
            state = update_state(state, query_job(job))
            _save_state(job, state)
        return state


def update_state(state: Json, response: JobResponse) -> Json:
    """The state after one more response.

    An error ends nothing: logins expire and networks break. A job is gone after two consecutive responses without it;
    a new one may need a minute until it can be described.
    """
    state = dict(state, queried_at=time.time(), reason=response.reason if response.exists is None else "")
    if response.exists:
        return record_statuses(state, response.statuses)
    if response.exists is None:
        return state
    state["missing"] += 1
    is_new = not state["has_appeared"] and time.time() - state["submitted"] < _APPEARANCE_TIMEOUT_S
    if state["missing"] >= _ABSENT_AFTER_RESPONSES and not is_new:
        state["is_deleted"] = True
    return state


def _load_state(job: RunaiJob) -> Json:
    """The job's stored state; an empty one if the job is new or the folder was lost.

    Keys: `queried_at`, when the CLI was last queried, and `submitted`, in seconds since the epoch; `reason`, why the
    last query failed, or empty; `missing`, consecutive responses without the job; `has_appeared`, it was in a response;
    `is_deleted`. By pod name (the job itself has an empty one): its status (`statuses`), and since when it has that
    status (`since`), when it started to run (`started`) and when it ended (`ended`).
    """
    try:
        with open(file_path(job.folder, "state"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        state = {
            "queried_at": 0,
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


def _submit_job(job: RunaiJob) -> None:
    """Create the job, unless it exists; print its state, or why it could not be created or belongs to another run."""
    spec = json.load(sys.stdin)
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
        print(json.dumps({"phase": "failed", "created": False, "error": response.reason}))
        return
    if not created and response.run not in ("", spec["run"]):
        message_format = (
            "job %s in project %s belongs to another run (torchyard/cli-run: %s): delete it, or rename the profile"
        )
        message = message_format % (job.name, job.project, response.run)
        print(json.dumps({"phase": "failed", "created": False, "error": message}))
        return
    with hold_lock(file_path(job.folder, "state.lock")):
        state = _load_state(job)
        state["submitted"] = state["submitted"] or time.time()
        _save_state(job, state)
    print(json.dumps({"phase": "running", "created": created, "started": state["submitted"]}))


def _stream_status(job: RunaiJob) -> None:
    """Print the pod's state at every change, until it has ended or the caller has exited."""
    printed_status = None
    caller_pid = os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == caller_pid:
        status = get_pod_status(_refresh_state(job), job.pod_name)
        if status != printed_status:
            print(json.dumps(status), flush=True)
            printed_status = status
        if status["phase"] in ("exited", "absent"):
            return
        time.sleep(0.3)


def _stream_log(job: RunaiJob, offset: int) -> None:
    """Print the log as it grows; polled every two seconds, less often for many pods, as each poll starts a program."""
    caller_pid = os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == caller_pid:
        phase = get_pod_status(_refresh_state(job), job.pod_name)["phase"]
        has_ended = phase in ("exited", "absent")
        error = copy_log(job, has_ended=has_ended)
        offset = _print_copied_log(job, offset)
        if has_ended and (error is None or phase == "absent" or _refresh_state(job)["is_deleted"]):
            return
        time.sleep(0.5 if has_ended else max(_QUERY_INTERVAL_S, job.pod_count / 4))


def _print_copied_log(job: RunaiJob, offset: int) -> int:
    """Print the copied log from byte `offset`; returns the byte after it."""
    size = count_copied_bytes(job)
    if size > offset:
        with open(job.copy_path, "rb") as file:
            file.seek(offset)
            sys.stdout.buffer.write(file.read(size - offset))
            sys.stdout.buffer.flush()
    return max(size, offset)


def _cancel_job(job: RunaiJob) -> None:
    """Delete the job and wait until it is gone. Its logs are deleted with it, so they are copied first."""
    os.makedirs(job.folder, exist_ok=True)
    response = query_job(job)
    reason = response.reason
    deadline = time.time() + _DELETE_TIMEOUT_S
    if response.exists:
        _copy_all_logs(job)
        exit_code, output = query_cli(job.build_argv("delete"), timeout_s=_DELETE_COMMAND_TIMEOUT_S)
        reason = find_error_line(output) if exit_code else "it still exists"
        response = query_job(job)
        while response.exists and time.time() < deadline:
            _copy_all_logs(job)
            time.sleep(0.5)
            response = query_job(job)
    leftovers: list[str] = []
    if response.exists is not False:
        leftovers.append("job %s of project %s: %s" % (job.name, job.project, reason))
    with hold_lock(file_path(job.folder, "state.lock")):
        state = dict(_load_state(job), is_deleted=not leftovers, queried_at=time.time())
        _save_state(job, state)
    print(json.dumps({"phase": "running" if leftovers else "absent", "left": leftovers}))


def _copy_all_logs(job: RunaiJob) -> None:
    """Copy the rest of every pod's log, as far as it is available."""
    pods = [job.for_pod(index) for index in range(job.pod_count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(functools.partial(copy_log, has_ended=False), pods))  # `list` raises a thread's error


if __name__ == "__main__":
    os.umask(0o077)  # logs are the user's alone
    VERBS = {"submit": _submit_job, "status": _stream_status, "cancel": _cancel_job}
    job = RunaiJob(sys.argv[1:9])
    if sys.argv[7] == "follow":
        _stream_log(job, int(sys.argv[9]))
    else:
        VERBS[sys.argv[7]](job)
