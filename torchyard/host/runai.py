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
    describe_runai_job,
    find_error_line,
    hold_lock,
    query_cli,
    read_pod_status,
    record_statuses,
)
from torchyard.host.state import file_path

Json = Any
_QUERY_INTERVAL_S = 2.0  # seconds between two calls of the CLI, each of which asks a server
_APPEARANCE_TIMEOUT_S = 60.0  # seconds until a submitted job can be described
_GONE_AFTER_MISSES = 2  # consecutive answers without the job, after which it is gone
_DELETE_TIMEOUT_S = 60.0  # seconds that a deletion may take: a pod's grace is 30


def _refresh_state(job: RunaiJob) -> Json:
    """The state of the job, queried again if it is old; the first of the pods' processes queries for all."""
    with hold_lock(file_path(job.folder, "told.lock")):
        told = _load_state(job)
        if time.time() - told["at"] >= _QUERY_INTERVAL_S:
            told = _update_state(told, describe_runai_job(job))
            _save_state(job, told)
        return told


def _update_state(told: Json, answer: Json) -> Json:
    """The state after one more answer. A missing answer ends nothing: logins expire and networks break."""
    told = dict(told, at=time.time(), why=answer["why"] if answer["found"] is None else "")
    if answer["found"]:
        return record_statuses(told, answer["words"])
    if answer["found"] is None:
        return told
    told["missing"] += 1
    young = not told["seen"] and time.time() - told["submitted"] < _APPEARANCE_TIMEOUT_S
    return dict(told, gone=told["gone"] or (told["missing"] >= _GONE_AFTER_MISSES and not young))


def _load_state(job: RunaiJob) -> Json:
    """The last known state; an empty one if the job is new or the folder was lost."""
    try:
        with open(file_path(job.folder, "told"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        new = {"at": 0, "submitted": 0, "why": "", "missing": 0, "seen": False, "gone": False}
        return dict(new, words={}, since={}, begun={}, ended={})


def _save_state(job: RunaiJob, told: Json) -> None:
    part = file_path(job.folder, "told.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(told, file)
    os.replace(part, file_path(job.folder, "told"))


# --- the verbs -----------------------------------------------------------------------------------------------------


def _submit_job(job: RunaiJob) -> None:
    spec = json.load(sys.stdin)
    os.makedirs(job.folder, exist_ok=True)
    answer = describe_runai_job(job)
    created = answer["found"] is False
    if created:
        code, said = query_cli(spec["argv"], 45)
        answer = (
            describe_runai_job(job)
            if code and "already exists" in said
            else {"found": not code, "why": find_error_line(said)}
        )
        created = not code
    if not answer["found"]:
        print(json.dumps({"phase": "failed", "created": False, "error": answer["why"]}))
    elif not created and answer["run"] not in ("", spec["run"]):
        why = "job %s in project %s belongs to another run (torchyard/cli-run: %s): delete it, or rename the profile"
        said = why % (job.name, job.project, answer["run"])
        print(json.dumps({"phase": "failed", "created": False, "error": said}))
    else:
        with hold_lock(file_path(job.folder, "told.lock")):
            told = _load_state(job)
            told["submitted"] = told["submitted"] or time.time()
            _save_state(job, told)
        print(json.dumps({"phase": "running", "created": created, "started": told["submitted"]}))


def _stream_status(job: RunaiJob) -> None:
    last, parent = None, os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        now = read_pod_status(_refresh_state(job), job.pod)
        if now != last:
            print(json.dumps(now), flush=True)
        if now["phase"] in ("exited", "absent"):
            return
        last = now
        time.sleep(0.3)


def _stream_log(job: RunaiJob, offset: int) -> None:
    """Print the log as it grows; polled every two seconds, less often for many pods, as each poll starts a program."""
    parent = os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        phase = read_pod_status(_refresh_state(job), job.pod)["phase"]
        over = phase in ("exited", "absent")
        missed = copy_log(job, over)
        offset = _print_copied_log(job, offset)
        if over and (not missed or phase == "absent" or _refresh_state(job)["gone"]):
            return
        time.sleep(0.5 if over else max(_QUERY_INTERVAL_S, job.pods / 4))


def _print_copied_log(job: RunaiJob, offset: int) -> int:
    """Print the copied log from byte `offset`; returns the byte after it."""
    end = count_copied_bytes(job)
    if end > offset:
        with open(job.taken, "rb") as file:
            file.seek(offset)
            sys.stdout.buffer.write(file.read(end - offset))
            sys.stdout.buffer.flush()
    return max(end, offset)


def _cancel_job(job: RunaiJob) -> None:
    """Delete the job and wait until it is gone. Its logs are deleted with it, so they are copied first."""
    os.makedirs(job.folder, exist_ok=True)
    answer, until = describe_runai_job(job), time.time() + _DELETE_TIMEOUT_S
    if answer["found"]:
        _copy_all_logs(job)
        code, said = query_cli(job.words("delete"), 30)
        answer = dict(describe_runai_job(job), why=find_error_line(said) if code else "it still exists")
        while answer["found"] and time.time() < until:
            _copy_all_logs(job)
            time.sleep(0.5)
            answer = dict(describe_runai_job(job), why=answer["why"])
    left = [] if answer["found"] is False else ["job %s of project %s: %s" % (job.name, job.project, answer["why"])]
    with hold_lock(file_path(job.folder, "told.lock")):
        told = dict(_load_state(job), gone=not left, at=time.time())
        _save_state(job, told)
    print(json.dumps({"phase": "running" if left else "absent", "left": left}))


def _copy_all_logs(job: RunaiJob) -> None:
    """Copy the rest of every pod's log, as far as it is available."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: copy_log(job.of(index), False), range(job.pods)))


if __name__ == "__main__":
    os.umask(0o077)  # logs are the user's alone
    VERBS = {"submit": _submit_job, "status": _stream_status, "cancel": _cancel_job}
    asked = RunaiJob(sys.argv[1:9])
    if sys.argv[7] == "follow":
        _stream_log(asked, int(sys.argv[9]))
    else:
        VERBS[sys.argv[7]](asked)
