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
    read_boot_id,
    read_state,
    take_lock,
    try_write_state,
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
    with os.fdopen(ours) as result_pipe:
        result = json.loads(result_pipe.read() or '{"phase": "failed", "error": "the supervisor died while starting"}')
    print(json.dumps(dict(result, created=True)))


def _make_absolute(spec: Json) -> Json:
    """The spec with the run's folder as an absolute path: ssh starts in the home folder, the process elsewhere."""
    if "site" not in spec:
        return spec
    text = json.dumps(spec).replace(json.dumps(spec["site"])[1:-1], json.dumps(os.path.abspath(spec["site"]))[1:-1])
    return json.loads(text)


def _run_daemon(folder: str, spec: Json, result_fd: int) -> None:
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
        _supervise_process(folder, spec, result_fd)
        code = 0
    finally:
        os._exit(code)


def _supervise_process(folder: str, spec: Json, result_fd: int) -> None:
    log = ProcessLog(folder, spec["name"])
    try:
        _run_process(folder, spec, log, result_fd)
    except BaseException:
        _kill_leftovers(spec["label"])  # a supervisor that ends also ends its process, unless it is killed
        raise


def _run_process(folder: str, spec: Json, log: ProcessLog, result_fd: int) -> None:
    """Run the process from its start to its end, and record how it ended."""
    wakeup_pipe = os.pipe()
    for fd in wakeup_pipe:
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_pipe[1])
    agent_pid, output, error = _start_process(dict(spec, folder=os.path.abspath(folder)))
    process_fields = {"name": spec["name"], "keeper": os.getpid(), "agent": agent_pid, "started": time.time()}
    process_fields["boot"] = read_boot_id()
    state = write_state(folder, phase="running", lost=0, error="", lines=0, ended=None, exit=None, **process_fields)
    with contextlib.suppress(BrokenPipeError):  # the caller was killed meanwhile
        os.write(result_fd, json.dumps(state).encode())
    os.close(result_fd)
    if error:
        log.write_lines([error])
    lease = ProcessLease(folder, spec)
    exit_code = _log_until_exit(log, agent_pid, (output, wakeup_pipe[0]), lease)
    ended = time.time()
    _kill_leftovers(spec["label"])
    _drain_output(log, output)
    log.close()
    with contextlib.suppress(OSError):
        recover_output(folder, log)
    if not lease.ended_at and "site" not in spec:  # its end must be recorded even if its folder was removed
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
    loss_fields = {"lost": log.lost_count, "error": log.error} if log.lost_count else {}
    try_write_state(
        folder, phase="exited", exit=exit_code, ended=ended, lines=log.line_count, **process_fields, **loss_fields
    )


def _start_process(spec: Json) -> tuple[int, int, bytes]:
    """Start the process in its own session. Returns its id, its output, and the error if it could not be executed."""
    output_fd, child_output_fd = os.pipe()
    error_fd, child_error_fd = os.pipe()
    agent_pid = os.fork()
    if agent_pid == 0:
        os.setsid()
        os.dup2(child_output_fd, 1)
        os.dup2(child_output_fd, 2)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _execute_program(spec, child_error_fd)
    os.close(child_output_fd)
    os.close(child_error_fd)
    with os.fdopen(error_fd, "rb") as error_pipe:
        return agent_pid, output_fd, error_pipe.read()


def _execute_program(spec: Json, error_fd: int) -> None:
    try:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN_PREFIXES)}
        environment = dict(choose_interface_env(spec["toward"]) if "toward" in spec else {}, **environment)
        job_variables = {JOB_VARIABLE: spec["label"], FOLDER_VARIABLE: spec["folder"]}
        _restore_file_limit()
        os.chdir(spec["cwd"])
        os.umask(spec["umask"])
        urls = find_listen_urls(spec["serves"]) if "serves" in spec else ""
        argv = [arg.replace(LISTEN_URLS_PLACEHOLDER, urls) for arg in spec["argv"]] if urls else spec["argv"]
        os.execvpe(argv[0], argv, add_recorder(dict(environment, **spec["env"], **job_variables), spec))
    except (OSError, ValueError) as error:  # ValueError: an argument that this host's locale cannot encode
        os.write(error_fd, ("cannot start %s in %s: %s" % (spec["argv"][0], spec["cwd"], error)).encode())
    finally:
        os._exit(127)


def _restore_file_limit() -> None:
    """Restore the limit from before the launcher raised its own: select() cannot take descriptors above 1,024."""
    original_limit, hard_limit = os.environ.get("TORCHYARD_NOFILE", ""), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if original_limit.isdigit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(int(original_limit), hard_limit), hard_limit))


def _log_until_exit(log: ProcessLog, agent_pid: int, streams: tuple[int, int], lease: ProcessLease) -> int:
    """Log until the agent has ended, by itself or with its lease. Returns its exit code, negative for a signal."""
    (output_fd, wakeup_fd), open_fds = streams, [*streams]
    while True:
        ready = select.select(open_fds, [], [], lease.check_interval_s)[0]
        if wakeup_fd in ready:
            os.read(wakeup_fd, 512)
        if output_fd in ready:
            data = os.read(output_fd, 1 << 16)
            log.write_output(data)
            if not data:
                open_fds.remove(output_fd)
        lease.enforce(agent_pid, log)
        code = _reap_children(agent_pid)
        if code is not None:
            return code


def _reap_children(agent_pid: int) -> int | None:
    """Reap every child that has ended; returns the agent's exit code once it is among them."""
    exit_code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exit_code
        if pid == 0:
            return exit_code
        if pid == agent_pid:
            exit_code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_leftovers(label: str) -> None:
    """Kill what the agent left behind: workers have their own sessions and survive a killed agent."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pids = list_descendants(os.getpid()) + find_labelled(label)
        if not pids:
            return
        send_signal(pids, signal.SIGKILL)
        time.sleep(0.01)
        _reap_children(0)


def _drain_output(log: ProcessLog, output_fd: int) -> None:
    while select.select([output_fd], [], [], 0)[0]:
        data = os.read(output_fd, 1 << 16)
        if not data:
            return
        log.write_output(data)


def _stream_status(folder: str) -> None:
    printed_state, unfinished_line, other_owner, state_cache, log_size = (
        None,
        b"",
        "",
        StateCache(folder),
        _read_log_size(folder),
    )
    while True:
        if state_cache.view()["phase"] == "unkept":
            recover_unsupervised(folder)
        state = dict(state_cache.view(), log_size=log_size, **({"carrier": other_owner} if other_owner else {}))
        if state != printed_state:
            print(json.dumps(state), flush=True)
        data = read_caller()
        if state["phase"] in ENDED_PHASES or data is None:
            return
        *heartbeats, unfinished_line = (unfinished_line + data).split(b"\n")
        if heartbeats:
            if "detail" in state:  # its folder was removed: the heartbeat file needs one
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(heartbeat_path(folder)), exist_ok=True)
            other_owner = _renew_lease(folder, heartbeats[-1].decode(errors="replace"))
        printed_state = state


def _read_log_size(folder: str) -> int:
    """The size of the log when the caller starts to ask: a copy that is shorter is still being transferred."""
    try:
        return os.stat(file_path(folder, "log")).st_size
    except OSError:
        return 0


def _renew_lease(folder: str, owner: str) -> str:
    """Record a heartbeat of `who`; returns the run's owner if that is another one."""
    try:
        return record_heartbeat(heartbeat_path(folder), owner)
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
