#!/usr/bin/env python3
"""Speak for one pod of a Run:ai job, through Run:ai's own CLI. Standard library only, Python 3.8 or newer.

Started by the shell door as `python3 -I -S runai.py FOLDER NODE PODS GENERATION PROJECT CLI VERB JOB`:

    submit   runs the CLI's words on stdin (JSON: argv, run) or adopts the job that is there; prints how it is
    status   prints how the pod is at every change, until it has ended
    follow   prints the pod's log from the byte that the last argument names, until there will be no more
    cancel   takes the rest of every log, deletes the job, and prints what is left

The job lives in Run:ai. FOLDER (the attempt's, for all of its pods) holds what can be asked for again:

    told        how the job is, JSON, as the CLI said it last; asked by one process for all
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

from torchyard.host.runai_cli import Job, ask, describe, entry, held, last, size, take, take_in
from torchyard.host.state import path

Json = Any
EVERY = 2.0  # seconds between two questions to the CLI, which asks a server
APPEARS = 60.0  # seconds until a submitted job can be described
GONE = 2  # times in a row that it must be missing
DELETED = 60.0  # seconds that a deletion may take: a pod's grace is 30


def view(job: Job) -> Json:
    """What is known of the job, asked anew where it is old; the first of the pods' processes asks for all."""
    with held(path(job.folder, "told.lock")):
        told = read(job)
        if time.time() - told["at"] >= EVERY:
            told = renew(told, describe(job))
            write(job, told)
        return told


def renew(told: Json, answer: Json) -> Json:
    """What is known after one more answer. Silence ends nothing: a login expires, a network breaks."""
    told = dict(told, at=time.time(), why=answer["why"] if answer["found"] is None else "")
    if answer["found"]:
        return take_in(told, answer["words"])
    if answer["found"] is None:
        return told
    told["missing"] += 1
    young = not told["seen"] and time.time() - told["submitted"] < APPEARS
    return dict(told, gone=told["gone"] or (told["missing"] >= GONE and not young))


def read(job: Job) -> Json:
    """What was known last; nothing, where the job is new or the folder was lost."""
    try:
        with open(path(job.folder, "told"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        new = {"at": 0, "submitted": 0, "why": "", "missing": 0, "seen": False, "gone": False}
        return dict(new, words={}, since={}, begun={}, ended={})


def write(job: Job, told: Json) -> None:
    part = path(job.folder, "told.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(told, file)
    os.replace(part, path(job.folder, "told"))


# --- the verbs -----------------------------------------------------------------------------------------------------


def submit(job: Job) -> None:
    spec = json.load(sys.stdin)
    os.makedirs(job.folder, exist_ok=True)
    answer = describe(job)
    created = answer["found"] is False
    if created:
        code, said = ask(spec["argv"], 45)
        answer = describe(job) if code and "already exists" in said else {"found": not code, "why": last(said)}
        created = not code
    if not answer["found"]:
        print(json.dumps({"phase": "failed", "created": False, "error": answer["why"]}))
    elif not created and answer["run"] not in ("", spec["run"]):
        why = (
            "job %s in project %s is somebody else's (torchyard/cli-run: %s): delete it, or name the profile otherwise"
        )
        said = why % (job.name, job.project, answer["run"])
        print(json.dumps({"phase": "failed", "created": False, "error": said}))
    else:
        with held(path(job.folder, "told.lock")):
            told = read(job)
            told["submitted"] = told["submitted"] or time.time()
            write(job, told)
        print(json.dumps({"phase": "running", "created": created, "started": told["submitted"]}))


def status(job: Job) -> None:
    last, parent = None, os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        now = entry(view(job), job.pod)
        if now != last:
            print(json.dumps(now), flush=True)
        if now["phase"] in ("exited", "absent"):
            return
        last = now
        time.sleep(0.3)


def follow(job: Job, offset: int) -> None:
    """Asked every other second, and less often of many pods: each question is a program and a request of its own."""
    parent = os.getppid()
    os.makedirs(job.folder, exist_ok=True)
    while os.getppid() == parent:
        phase = entry(view(job), job.pod)["phase"]
        over = phase in ("exited", "absent")
        missed = take(job, over)
        offset = serve(job, offset)
        if over and (not missed or phase == "absent" or view(job)["gone"]):
            return
        time.sleep(0.5 if over else max(EVERY, job.pods / 4))


def serve(job: Job, offset: int) -> int:
    """Print what has been taken from a byte on; the byte behind it."""
    end = size(job)
    if end > offset:
        with open(job.taken, "rb") as file:
            file.seek(offset)
            sys.stdout.buffer.write(file.read(end - offset))
            sys.stdout.buffer.flush()
    return max(end, offset)


def cancel(job: Job) -> None:
    """Delete the job and wait until it is gone; its logs go with it, so that they are taken first."""
    os.makedirs(job.folder, exist_ok=True)
    answer, until = describe(job), time.time() + DELETED
    if answer["found"]:
        take_all(job)
        code, said = ask(job.words("delete"), 30)
        answer = dict(describe(job), why=last(said) if code else "it is still there")
        while answer["found"] and time.time() < until:
            take_all(job)
            time.sleep(0.5)
            answer = dict(describe(job), why=answer["why"])
    left = [] if answer["found"] is False else ["job %s of project %s: %s" % (job.name, job.project, answer["why"])]
    with held(path(job.folder, "told.lock")):
        told = dict(read(job), gone=not left, at=time.time())
        write(job, told)
    print(json.dumps({"phase": "running" if left else "absent", "left": left}))


def take_all(job: Job) -> None:
    """The rest of every pod's log, as far as it can be had."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: take(job.of(index), False), range(job.pods)))


if __name__ == "__main__":
    os.umask(0o077)  # logs are the user's alone
    VERBS = {"submit": submit, "status": status, "cancel": cancel}
    asked = Job(sys.argv[1:9])
    if sys.argv[7] == "follow":
        follow(asked, int(sys.argv[9]))
    else:
        VERBS[sys.argv[7]](asked)
