#!/usr/bin/env python3
"""Keep one process on a host: start it, log it, tell how it is, stop it. Standard library only, Python 3.8 or newer.

It is started by the shell door, here or through ssh, as `python3 -I -S keep.py VERB FOLDER`:

    submit   starts what stdin says (JSON: name, argv, env, cwd, label, ports) or adopts what is there; prints its state
    status   prints the state at every change, until the process has ended or stdin is closed; a line on stdin says who
             looks after the process, and the state says who else does (`carrier`)
    follow   prints the log from a byte on (third argument), until all of it is printed or stdin is closed
    cancel   SIGTERM, SIGKILL after the grace (third argument, seconds); prints what is left

Told `lease` (seconds) and `grace`, the keeper ends a process that nobody has looked after for so long.
A host that ssh reaches is told more: `site`, the run's folder there as the plan writes it, made absolute wherever it
stands; `toward`, another host of the job; `meeting`, a file that goes with the process.

The keeper is a daemon of its own session. It outlives whoever asked for it and leaves all it knows in FOLDER:

    state    JSON, padded to one block when it is made, so that a full disk cannot stop the exit code from being written
    log      one line of output a line, as `2026-11-21T08:00:47.123Z node-0 | text`
    lock     held (flock) while the keeper lives: nobody has to trust a process id
    ranks/   torchrun's own copy of each rank's output, gone once the log holds every line of it

Every process of the job carries TORCHYARD_JOB=<label> in its environment: that is how it is found again.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tasks.host.lease import Lease, looked
from tasks.host.log import ENDED, Log, follow, hear, recover
from tasks.host.network import choose
from tasks.host.site import look
from tasks.host.state import (
    Json,
    children,
    hold,
    labelled,
    listening,
    path,
    read_state,
    send,
    view,
    write_state,
)

PR_SET_CHILD_SUBREAPER = 36
# A launcher's secrets, and settings that would stand in for torchrun's flags.
FOREIGN = ("PREFECT_", "PET_", "TORCHELASTIC_")

# --- submit --------------------------------------------------------------------------------------------------------


def submit(folder: str) -> None:
    spec = absolute(json.load(sys.stdin))
    os.makedirs(folder, exist_ok=True)
    look_after(folder, "")
    lock = hold(folder)
    for _ in range(50):  # held without a state: a keeper that starts, or an onlooker's glance
        if lock is not None or read_state(folder):
            break
        time.sleep(0.02)
        lock = hold(folder)
    if lock is None or read_state(folder):
        print(json.dumps(dict(view(folder), created=False)))
        return
    with open(path(folder, "spec.json"), "w") as file:
        json.dump(spec, file)
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        daemon(folder, spec, theirs)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = json.loads(answer.read() or '{"phase": "failed", "error": "the keeper died at its start"}')
    print(json.dumps(dict(said, created=True)))


def absolute(spec: Json) -> Json:
    """The same, with the run's folder written out: ssh begins in the home, the process somewhere else."""
    if "site" not in spec:
        return spec
    text = json.dumps(spec).replace(json.dumps(spec["site"])[1:-1], json.dumps(os.path.abspath(spec["site"]))[1:-1])
    return json.loads(text)


def daemon(folder: str, spec: Json, answer: int) -> None:
    """The keeper: never returns."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        keep(folder, spec, answer)
        code = 0
    finally:
        os._exit(code)


def keep(folder: str, spec: Json, answer: int) -> None:
    wake = os.pipe()
    for fd in wake:
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake[1])
    log = Log(folder, spec["name"])
    agent, output, error = start(spec)
    facts = {"name": spec["name"], "keeper": os.getpid(), "agent": agent, "started": time.time(), "exit": None}
    state = write_state(folder, phase="running", lost=0, error="", lines=0, ended=None, **facts)
    os.write(answer, json.dumps(state).encode())
    os.close(answer)
    if error:
        log.write([error])
    exit_code = pump(log, agent, (output, wake[0]), Lease(folder, spec))
    ended = time.time()
    clear(spec["label"])
    drain(log, output)
    log.close()
    recover(folder, log)
    write_state(folder, phase="exited", exit=exit_code, ended=ended, lines=log.lines, lost=log.lost)


def start(spec: Json) -> tuple[int, int, bytes]:
    """Start the process in a session of its own: its id, its output, and why it could not be executed."""
    output, child_output = os.pipe()
    failed, child_failed = os.pipe()
    agent = os.fork()
    if agent == 0:
        os.setsid()
        os.dup2(child_output, 1)
        os.dup2(child_output, 2)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        execute(spec, child_failed)
    os.close(child_output)
    os.close(child_failed)
    with os.fdopen(failed, "rb") as answer:
        return agent, output, answer.read()


def execute(spec: Json, failed: int) -> None:
    try:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        kept = dict(choose(spec["toward"]) if "toward" in spec else {}, **kept)
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], dict(kept, **spec["env"], TORCHYARD_JOB=spec["label"]))
    except OSError as error:
        os.write(failed, ("cannot start %s in %s: %s" % (spec["argv"][0], spec["cwd"], error)).encode())
    finally:
        os._exit(127)


def pump(log: Log, agent: int, ends: tuple[int, int], lease: Lease) -> int:
    """Log until the agent has ended, by itself or with its lease: its exit code, negative for a signal."""
    (output, wake), watched = ends, [*ends]
    while True:
        ready = select.select(watched, [], [], lease.pause)[0]
        if wake in ready:
            os.read(wake, 512)
        if output in ready:
            data = os.read(output, 1 << 16)
            log.feed(data)
            if not data:
                watched.remove(output)
        lease.enforce(agent, log)
        code = reap(agent)
        if code is not None:
            return code


def reap(agent: int) -> int | None:
    """Collect every child that has ended; the agent's exit code once it is among them."""
    found: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == agent:
            found = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def clear(label: str) -> None:
    """Kill what the agent left behind: workers have sessions of their own, and survive a killed agent."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        rest = children(os.getpid()) + labelled(label)
        if not rest:
            return
        send(rest, signal.SIGKILL)
        time.sleep(0.01)
        reap(0)


def drain(log: Log, output: int) -> None:
    while select.select([output], [], [], 0)[0]:
        data = os.read(output, 1 << 16)
        if not data:
            return
        log.feed(data)


# --- status, follow and cancel -------------------------------------------------------------------------------------


def status(folder: str) -> None:
    last, rest, other = None, b"", ""
    while True:
        now = dict(view(folder), **({"carrier": other} if other else {}))
        if now != last:
            print(json.dumps(now), flush=True)
        said = hear()
        if now["phase"] in ENDED or said is None:
            return
        *lines, rest = (rest + said).split(b"\n")
        if lines:
            other = look_after(folder, lines[-1].decode())
        last = now


def look_after(folder: str, who: str) -> str:
    """Say that somebody looks after the process: who else does."""
    try:
        return look(looked(folder), who)
    except OSError:  # the folder is going away, or the disk cannot be written
        return ""


def cancel(folder: str, grace: str) -> None:
    try:
        with open(path(folder, "spec.json")) as file:
            spec = json.load(file)
    except FileNotFoundError:
        print(json.dumps({"phase": "absent", "left": []}))
        return
    state = read_state(folder) or {}
    if state.get("phase") == "running":
        send([state["agent"]] if state["agent"] in labelled(spec["label"]) else [], signal.SIGTERM)
        settle(folder, spec["label"], float(grace))
    send(labelled(spec["label"]), signal.SIGKILL)
    if settle(folder, spec["label"], 5.0):
        kill_keeper(folder)
    if os.path.exists(spec.get("meeting", "")):
        os.unlink(spec["meeting"])
    print(json.dumps(dict(view(folder), left=left(spec))))


def kill_keeper(folder: str) -> None:
    """A keeper that does not end by itself; its lock proves that the process id is still its own."""
    state = view(folder)
    if state["phase"] == "running":
        send([state["keeper"]], signal.SIGKILL)


def settle(folder: str, label: str, seconds: float) -> bool:
    """Wait until the keeper has told the end and no process is left; True where it did not come to that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if view(folder)["phase"] != "running" and not labelled(label):
            return False
        time.sleep(0.02)
    return True


def left(spec: Json) -> list[str]:
    found = ["process %d" % pid for pid in labelled(spec["label"])]
    return found + ["port %d" % port for port in spec["ports"] if port in listening()]


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        submit(sys.argv[2])
    elif sys.argv[1] == "status":
        status(sys.argv[2])
    elif sys.argv[1] == "follow":
        follow(sys.argv[2], int(sys.argv[3]))
    else:
        cancel(sys.argv[2], sys.argv[3])
