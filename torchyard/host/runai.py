#!/usr/bin/env python3
"""Supervise one pod of a Run:ai job through Run:ai's own CLI. Standard library only, Python 3.8 or newer.

The launcher starts this as `python3 -I -S runai.py FOLDER NODE PODS GENERATION PROJECT CLI VERB JOB`:

    submit   runs the CLI command on stdin (JSON: argv, run) or adopts an existing job; prints its state
    status   prints the pod's state at every change, until it has ended
    follow   prints the pod's log from a byte (last argument), until all of it is printed
    cancel   copies the rest of every log, deletes the job, and prints what is left

The job lives in Run:ai. FOLDER (the attempt's, shared by all of its pods) holds only what can be fetched again:

    told        the job's state, JSON, as the CLI last reported it; one process asks for all pods
    NODE/taken  the pod's log so far, each line as `2026-11-21T08:00:47.123456789Z node-0 | text`
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.runai_cli import (
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
_QUERY_INTERVAL_S = 2.0  # seconds between two calls of the CLI, each of which asks a server
_APPEARANCE_TIMEOUT_S = 60.0  # seconds until a submitted job can be described
_ABSENT_AFTER_RESPONSES = 2  # consecutive answers without the job, after which it is gone
_DELETE_TIMEOUT_S = 60.0  # seconds that a deletion may take: a pod's grace is 30


def _refresh_state(job: RunaiJob) -> Json:
    """The state of the job, queried again if it is old; the first of the pods' processes queries for all."""
    with hold_lock(file_path(job.folder, "told.lock")):
        state = _load_state(job)
        if time.time() - state["at"] >= _QUERY_INTERVAL_S:
            state = _update_state(state, query_job(job))
            _save_state(job, state)
        return state


def _update_state(state: Json, response: Json) -> Json:
    """The state after one more answer. A missing answer ends nothing: logins expire and networks break."""
    state = dict(state, at=time.time(), why=response["why"] if response["found"] is None else "")
    if response["found"]:
        return record_statuses(state, response["words"])
    if response["found"] is None:
        return state
    state["missing"] += 1
    is_new = not state["seen"] and time.time() - state["submitted"] < _APPEARANCE_TIMEOUT_S
    return dict(state, gone=state["gone"] or (state["missing"] >= _ABSENT_AFTER_RESPONSES and not is_new))


def _load_state(job: RunaiJob) -> Json:
    """The last known state; an empty one if the job is new or the folder was lost."""
    try:
        with open(file_path(job.folder, "told"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        state = {"at": 0, "submitted": 0, "why": "", "missing": 0, "seen": False, "gone": False}
        return dict(state, words={}, since={}, begun={}, ended={})


def _save_state(job: RunaiJob, state: Json) -> None:
    temp_path = file_path(job.folder, "told.part")
    with open(temp_path, "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(temp_path, file_path(job.folder, "told"))


# --- the verbs -----------------------------------------------------------------------------------------------------


def _submit_job(job: RunaiJob) -> None:
    spec = json.load(sys.stdin)
    os.makedirs(job.folder, exist_ok=True)
    response = query_job(job)
    created = response["found"] is False
    if created:
        code, output = query_cli(spec["argv"], 45)
        response = (
            query_job(job)
            if code and "already exists" in output
            else {"found": not code, "why": find_error_line(output)}
        )
        created = not code
    if not response["found"]:
        print(json.dumps({"phase": "failed", "created": False, "error": response["why"]}))
    elif not created and response["run"] not in ("", spec["run"]):
        message_format = (
            "job %s in project %s belongs to another run (torchyard/cli-run: %s): delete it, or rename the profile"
        )
        message = message_format % (job.name, job.project, response["run"])
        print(json.dumps({"phase": "failed", "created": False, "error": message}))
    else:
        with hold_lock(file_path(job.folder, "told.lock")):
            state = _load_state(job)
            state["submitted"] = state["submitted"] or time.time()
            _save_state(job, state)
        print(json.dumps({"phase": "running", "created": created, "started": state["submitted"]}))


def _stream_status(job: RunaiJob) -> None:
    printed_status, parent = None, os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        status = get_pod_status(_refresh_state(job), job.pod_name)
        if status != printed_status:
            print(json.dumps(status), flush=True)
        if status["phase"] in ("exited", "absent"):
            return
        printed_status = status
        time.sleep(0.3)


def _stream_log(job: RunaiJob, offset: int) -> None:
    """Print the log as it grows; polled every two seconds, less often for many pods, as each poll starts a program."""
    parent = os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        phase = get_pod_status(_refresh_state(job), job.pod_name)["phase"]
        has_ended = phase in ("exited", "absent")
        copy_error = copy_log(job, has_ended)
        offset = _print_copied_log(job, offset)
        if has_ended and (not copy_error or phase == "absent" or _refresh_state(job)["gone"]):
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
    response, deadline = query_job(job), time.time() + _DELETE_TIMEOUT_S
    if response["found"]:
        _copy_all_logs(job)
        code, output = query_cli(job.build_argv("delete"), 30)
        response = dict(query_job(job), why=find_error_line(output) if code else "it still exists")
        while response["found"] and time.time() < deadline:
            _copy_all_logs(job)
            time.sleep(0.5)
            response = dict(query_job(job), why=response["why"])
    leftovers = (
        [] if response["found"] is False else ["job %s of project %s: %s" % (job.name, job.project, response["why"])]
    )
    with hold_lock(file_path(job.folder, "told.lock")):
        state = dict(_load_state(job), gone=not leftovers, at=time.time())
        _save_state(job, state)
    print(json.dumps({"phase": "running" if leftovers else "absent", "left": leftovers}))


def _copy_all_logs(job: RunaiJob) -> None:
    """Copy the rest of every pod's log, as far as it is available."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: copy_log(job.for_pod(index), False), range(job.pod_count)))


if __name__ == "__main__":
    os.umask(0o077)  # logs are the user's alone
    VERBS = {"submit": _submit_job, "status": _stream_status, "cancel": _cancel_job}
    job = RunaiJob(sys.argv[1:9])
    if sys.argv[7] == "follow":
        _stream_log(job, int(sys.argv[9]))
    else:
        VERBS[sys.argv[7]](job)
