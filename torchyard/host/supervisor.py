#!/usr/bin/env python3
"""Supervise one process on a host: start, log, report and stop it. Standard library only, Python 3.8 or newer.

The launcher starts this, on its own machine or through ssh, as `python3 -I -S supervisor.py VERB FOLDER`:
    submit   starts what stdin says (JSON: name, argv, env, cwd, label, ports) or adopts an existing process; prints its
             state. With `lease` and `grace` (seconds), a process whose lease is not renewed is ended
    status   prints the state at every change, until the process has ended or stdin is closed; each line on stdin names
             the run's owner and renews the lease, and the state names any other owner (`carrier`)
    follow   prints the log from a byte (third argument), until all of it is printed or stdin is closed
    cancel   SIGTERM, SIGKILL after the grace (third argument, seconds); prints what is left

Other keys of the JSON: `site`, the run's folder on a host behind ssh; `toward`, another host of the job; `meeting`, a
rendezvous file that is deleted with the process; `serves`, how to reach a store; `recorder`, the folder for PYTHONPATH
that starts the black box (torchyard/host/black_box).

The supervisor is a daemon in its own session. It outlives the launcher and keeps all it knows in FOLDER:
    state    JSON, padded to one block at its creation, so that a full disk cannot stop the exit code from being written
    log      each line of output, as `2026-11-21T08:00:47.123Z node-0 | text`
    lock     held (flock) while the supervisor lives: no process id has to be trusted
    ranks/   torchrun's own copy of each rank's output, removed once the log holds every line of it
Every process of the job has TORCHYARD_JOB=<label> in its environment, and is found by that even without FOLDER.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.cancel import cancel_process
from torchyard.host.lease import ProcessLease, heartbeat_path
from torchyard.host.log import (
    ENDED_PHASES,
    ProcessLog,
    follow_process_log,
    read_caller,
    recover_output,
    recover_unsupervised,
)
from torchyard.host.network import LISTEN_URLS_PLACEHOLDER, choose_interface_env, find_listen_urls
from torchyard.host.processes import FOLDER_VARIABLE, JOB_VARIABLE, find_labelled, list_descendants, send_signal
from torchyard.host.staging import record_heartbeat
from torchyard.host.state import (
    Json,
    StateCache,
    add_recorder,
    file_path,
    note_state,
    read_boot_id,
    read_state,
    take_lock,
    view_state,
    write_state,
)

_PR_SET_CHILD_SUBREAPER = 36
_FOREIGN_PREFIXES = ("PREFECT_", "PET_", "TORCHELASTIC_", "TORCHYARD_NOFILE")  # secrets; overrides of torchrun's flags


def _submit_process(folder: str) -> None:
    # Only the user may read logs and environments; what the program writes follows the user's umask.
    spec = dict(_make_absolute(json.load(sys.stdin)), umask=os.umask(0o077))
    if view_state(folder).get("detail"):
        print(json.dumps(dict(view_state(folder), created=False)))
        return
    os.makedirs(folder, exist_ok=True)
    _renew_lease(folder, "")
    lock = take_lock(folder, lambda: not read_state(folder))  # locked without a state: a supervisor may be starting
    if lock is None or read_state(folder):
        print(json.dumps(dict(view_state(folder), created=False)))
        return
    with open(file_path(folder, "spec.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)
        file.flush()
        os.fsync(file.fileno())  # `cancel` needs it after a power cut
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        _run_daemon(folder, spec, theirs)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = json.loads(answer.read() or '{"phase": "failed", "error": "the supervisor died while starting"}')
    print(json.dumps(dict(said, created=True)))


def _make_absolute(spec: Json) -> Json:
    """The spec with the run's folder as an absolute path: ssh starts in the home folder, the process elsewhere."""
    if "site" not in spec:
        return spec
    text = json.dumps(spec).replace(json.dumps(spec["site"])[1:-1], json.dumps(os.path.abspath(spec["site"]))[1:-1])
    return json.loads(text)


def _run_daemon(folder: str, spec: Json, answer: int) -> None:
    """Run the supervisor; never returns."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _supervise_process(folder, spec, answer)
        code = 0
    finally:
        os._exit(code)


def _supervise_process(folder: str, spec: Json, answer: int) -> None:
    log = ProcessLog(folder, spec["name"])
    try:
        _run_process(folder, spec, log, answer)
    except BaseException:
        _kill_leftovers(spec["label"])  # a supervisor that ends also ends its process, unless it is killed
        raise


def _run_process(folder: str, spec: Json, log: ProcessLog, answer: int) -> None:
    """Run the process from its start to its end, and record how it ended."""
    wake = os.pipe()
    for fd in wake:
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake[1])
    agent, output, error = _start_process(dict(spec, folder=os.path.abspath(folder)))
    facts = {"name": spec["name"], "keeper": os.getpid(), "agent": agent, "started": time.time()}
    facts["boot"] = read_boot_id()
    state = write_state(folder, phase="running", lost=0, error="", lines=0, ended=None, exit=None, **facts)
    with contextlib.suppress(BrokenPipeError):  # the caller was killed meanwhile
        os.write(answer, json.dumps(state).encode())
    os.close(answer)
    if error:
        log.write([error])
    lease = ProcessLease(folder, spec)
    exit_code = _pump_output(log, agent, (output, wake[0]), lease)
    ended = time.time()
    _kill_leftovers(spec["label"])
    _drain_output(log, output)
    log.close()
    with contextlib.suppress(OSError):
        recover_output(folder, log)
    if not lease.ended and "site" not in spec:  # its end must be recorded even if its folder was removed
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
    lost = {"lost": log.lost, "error": log.error} if log.lost else {}
    note_state(folder, phase="exited", exit=exit_code, ended=ended, lines=log.lines, **facts, **lost)


def _start_process(spec: Json) -> tuple[int, int, bytes]:
    """Start the process in its own session. Returns its id, its output, and the error if it could not be executed."""
    output, child_output = os.pipe()
    failed, child_failed = os.pipe()
    agent = os.fork()
    if agent == 0:
        os.setsid()
        os.dup2(child_output, 1)
        os.dup2(child_output, 2)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _execute_program(spec, child_failed)
    os.close(child_output)
    os.close(child_failed)
    with os.fdopen(failed, "rb") as answer:
        return agent, output, answer.read()


def _execute_program(spec: Json, failed: int) -> None:
    try:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN_PREFIXES)}
        kept = dict(choose_interface_env(spec["toward"]) if "toward" in spec else {}, **kept)
        marks = {JOB_VARIABLE: spec["label"], FOLDER_VARIABLE: spec["folder"]}
        _restore_file_limit()
        os.chdir(spec["cwd"])
        os.umask(spec["umask"])
        urls = find_listen_urls(spec["serves"]) if "serves" in spec else ""
        argv = [word.replace(LISTEN_URLS_PLACEHOLDER, urls) for word in spec["argv"]] if urls else spec["argv"]
        os.execvpe(argv[0], argv, add_recorder(dict(kept, **spec["env"], **marks), spec))
    except (OSError, ValueError) as error:  # ValueError: an argument that this host's locale cannot encode
        os.write(failed, ("cannot start %s in %s: %s" % (spec["argv"][0], spec["cwd"], error)).encode())
    finally:
        os._exit(127)


def _restore_file_limit() -> None:
    """Restore the limit from before the launcher raised its own: select() cannot take descriptors above 1,024."""
    before, hard = os.environ.get("TORCHYARD_NOFILE", ""), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if before.isdigit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(int(before), hard), hard))


def _pump_output(log: ProcessLog, agent: int, ends: tuple[int, int], lease: ProcessLease) -> int:
    """Log until the agent has ended, by itself or with its lease. Returns its exit code, negative for a signal."""
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
        code = _reap_children(agent)
        if code is not None:
            return code


def _reap_children(agent: int) -> int | None:
    """Reap every child that has ended; returns the agent's exit code once it is among them."""
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


def _kill_leftovers(label: str) -> None:
    """Kill what the agent left behind: workers have their own sessions and survive a killed agent."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        rest = list_descendants(os.getpid()) + find_labelled(label)
        if not rest:
            return
        send_signal(rest, signal.SIGKILL)
        time.sleep(0.01)
        _reap_children(0)


def _drain_output(log: ProcessLog, output: int) -> None:
    while select.select([output], [], [], 0)[0]:
        data = os.read(output, 1 << 16)
        if not data:
            return
        log.feed(data)


def _stream_status(folder: str) -> None:
    last, rest, other, glance, size = None, b"", "", StateCache(folder), _read_log_size(folder)
    while True:
        if glance.view()["phase"] == "unkept":
            recover_unsupervised(folder)
        now = dict(glance.view(), log_size=size, **({"carrier": other} if other else {}))
        if now != last:
            print(json.dumps(now), flush=True)
        said = read_caller()
        if now["phase"] in ENDED_PHASES or said is None:
            return
        *lines, rest = (rest + said).split(b"\n")
        if lines:
            if "detail" in now:  # its folder was removed: the heartbeat file needs one
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(heartbeat_path(folder)), exist_ok=True)
            other = _renew_lease(folder, lines[-1].decode(errors="replace"))
        last = now


def _read_log_size(folder: str) -> int:
    """The size of the log when the caller starts to ask: a copy that is shorter is still being transferred."""
    try:
        return os.stat(file_path(folder, "log")).st_size
    except OSError:
        return 0


def _renew_lease(folder: str, who: str) -> str:
    """Record a heartbeat of `who`; returns the run's owner if that is another one."""
    try:
        return record_heartbeat(heartbeat_path(folder), who)
    except OSError:  # the folder is being removed, or the disk cannot be written
        return ""


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        _submit_process(sys.argv[2])
    elif sys.argv[1] == "status":
        _stream_status(sys.argv[2])
    elif sys.argv[1] == "follow":
        follow_process_log(sys.argv[2], int(sys.argv[3]))
    else:
        cancel_process(sys.argv[2], sys.argv[3])
