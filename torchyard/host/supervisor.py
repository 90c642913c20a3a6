#!/usr/bin/env python3
"""Supervise processes on a host: start, log, report and stop them. Standard library only, Python 3.8 or newer.

The launcher starts this, on its own machine or through ssh, as `python3 -I -S supervisor.py VERB`, with a JSON object
on stdin that has a request for each process by its name, and reads a JSON object with a response for each:
    submit   {"folder": FOLDER, "spec": {...}}: starts the process that the spec describes (name, argv, env, cwd, label,
             ports) or adopts an existing one; its state. With `lease` and `grace` (seconds) in the spec, a process
             whose lease is not renewed is ended
    status   {"folder": FOLDER}: its state
    cancel   {"folder": FOLDER, "grace": SECONDS, "owner": OWNER}: SIGTERM, SIGKILL after the grace; its state and what
             is left of it, or {"other_owner": NAME} if another living launcher owns the run: then nothing is done
`watch` sends the states and logs of all of them until they have ended: see watch.py. Two verbs have arguments instead:
    enter FOLDER COMMAND...       becomes the command beside the process: see enter.py
    forward FOLDER LOCAL REMOTE   prints that this host's port REMOTE needs no forwarding

Other keys of a spec: `site`, the run's folder on a host behind ssh; `toward`, another host of the job; `meeting`, a
rendezvous file that is deleted with the process; `serves`, how to reach a store; `recorder`, the folder for PYTHONPATH
that starts the black box (torchyard/host/black_box).

The supervisor is a daemon in its own session. It outlives the launcher and keeps all its records in FOLDER:
    spec.json  the JSON that was submitted
    state      JSON, padded to one block at its creation, so that the exit code can be written on a full disk
    log        each line of output, as `2026-11-21T08:00:47.123Z node-0 | text`
    lock       held (flock) while the supervisor lives: no process id has to be trusted
    ranks/     torchrun's own copy of each rank's output, removed once the log holds every line of it
Every process of the job has TORCHYARD_JOB=<label> in its environment, and is found by that even without FOLDER.

Processes. `submit` forks each supervisor and reads the first state from it through a pipe. The supervisor forks the
agent (the submitted program), which has its own session and writes into one pipe. The supervisor has one thread: it
waits for output, for SIGCHLD and heartbeats (SIGHUP, through a wakeup pipe) and for the lease, and ignores SIGINT and
SIGTERM. It is a subreaper, so that the agent's orphans become its children and it can kill them.

Order at the start: `starting` is written to the state and synced; the agent is forked; once it has executed the
program, `running` is written, and `submit` returns.

Order at the end: the agent has exited; every process that is left is killed; the rest of the output is read; what
torchrun had not printed is appended to the log; `exited` is written to the state; the supervisor exits, which releases
the lock. A supervisor that fails kills its process first; only one that was killed leaves its process running
(`unsupervised`).
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
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from torchyard.host.cancel import cancel_process
from torchyard.host.identity import identify_host
from torchyard.host.lease import HEARTBEAT_SIGNAL, ProcessLease, heartbeat_path
from torchyard.host.log import (
    ENDED_PHASES,
    ProcessLog,
    recover_output,
    recover_unsupervised,
)
from torchyard.host.network import LISTEN_URLS_PLACEHOLDER, choose_interface_env, find_listen_urls
from torchyard.host.processes import (
    FLOW_RUN_SOURCE,
    FLOW_RUN_VARIABLE,
    FOLDER_VARIABLE,
    JOB_VARIABLE,
    JobProcesses,
    ProcessId,
    find_labelled,
    identify_process,
)
from torchyard.host.staging import OtherOwnerError, OwnerFile
from torchyard.host.state import (
    FOLDER_REMOVED,
    Json,
    StateCache,
    add_recorder,
    file_path,
    get_process,
    measure_age,
    read_state,
    take_lock,
    view_state,
    write_state,
)
from torchyard.host.watch import Launcher, Renewal, WatchedProcess, read_request, watch_processes

_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT_S = 5.0
_RECORD_TIMEOUT_S = 60.0  # seconds in which the end of a process can be recorded; `cancel` does not wait for it so long
_RECORD_INTERVAL_S = 0.5
_CHECKPOINTS_VARIABLE = "TORCHYARD_CHECKPOINTS"  # names the folder of checkpoints, which exists when the program starts
_MAX_UNENDED = 50  # processes; the state has a fixed size
_FOREIGN_PREFIXES = ("PREFECT_", "PET_", "TORCHELASTIC_", "TORCHYARD_NOFILE")  # secrets; overrides of torchrun's flags


def _submit_process(folder: str, spec: Json) -> Json:
    """Start a supervisor for a spec, unless the process exists.

    Returns its state, whether it is new (`created`), and the age in seconds of one that is not (`age_s`).
    """
    if view_state(folder).get("detail"):
        return _adopt_process(folder)
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(OSError):  # without the file, too, heartbeats reach the supervisor
        OwnerFile(heartbeat_path(folder)).record_heartbeat("")
    lock = take_lock(folder, lambda: not _has_started(folder))  # locked and not started: it may be starting
    if lock is None or _has_started(folder) or find_labelled(spec["label"]):
        if lock is not None:
            os.close(lock)
        return _adopt_process(folder)
    with open(file_path(folder, "spec.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)
        file.flush()
        os.fsync(file.fileno())  # `cancel` needs it after a power cut
    ours, theirs = os.pipe()
    if os.fork() == 0:  # the child inherits the lock and keeps it
        os.close(ours)
        _run_daemon(folder, spec, theirs)
    os.close(theirs)
    os.close(lock)  # the supervisors that are forked after this one must not hold its lock
    with os.fdopen(ours) as result_pipe:
        result = json.loads(result_pipe.read() or '{"phase": "failed", "error": "the supervisor died while starting"}')
    return dict(result, created=True)


def _has_started(folder: str) -> bool:
    """Whether the process has a state that was written after its program was executed."""
    state = read_state(folder)
    return bool(state) and state["phase"] != "starting"


def _adopt_process(folder: str) -> Json:
    state = view_state(folder)
    return dict(state, created=False, age_s=measure_age(state) or 0.0)


def _make_absolute(spec: Json) -> Json:
    """The spec with the run's folder as an absolute path: ssh starts in the home folder, the process elsewhere."""
    if "site" not in spec:
        return spec
    text = json.dumps(spec).replace(json.dumps(spec["site"])[1:-1], json.dumps(os.path.abspath(spec["site"]))[1:-1])
    return json.loads(text)


def _run_daemon(folder: str, spec: Json, result_fd: int) -> None:
    """Run the supervisor; never returns. It writes the first state to `result_fd` and closes it."""
    exit_code = 1
    try:
        os.setsid()
        for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_IGN)
        null_fd = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null_fd, fd)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _supervise_process(folder, spec, result_fd)
        exit_code = 0
    finally:
        os._exit(exit_code)


def _supervise_process(folder: str, spec: Json, result_fd: int) -> None:
    log = ProcessLog(folder, spec["name"])
    try:
        _run_process(folder, spec, log, result_fd)
    except BaseException:
        _kill_leftovers(spec["label"])  # nothing would end a process without its supervisor
        raise


def _run_process(folder: str, spec: Json, log: ProcessLog, result_fd: int) -> None:
    """Run the process from its start to its end, and record how it ended."""
    wakeup_fd = _open_wakeup_pipe()
    process_fields: dict[str, Json] = {
        "name": spec["name"],
        "supervisor": os.getpid(),
        "supervisor_start": identify_process(os.getpid()).start_time,
    }
    process_fields.update(identify_host())
    # The program's start may hang, on a name server or a share: whoever cancels it must find its supervisor.
    write_state(folder, phase="starting", **process_fields)
    agent = _start_process(dict(spec, folder=os.path.abspath(folder)))
    process_fields["agent"] = agent.pid
    process_fields["agent_start"] = identify_process(agent.pid).start_time
    process_fields["started"] = time.time()
    state = write_state(folder, phase="running", lost=0, error="", lines=0, ended=None, exit=None, **process_fields)
    with contextlib.suppress(BrokenPipeError):  # the caller was killed meanwhile
        os.write(result_fd, json.dumps(state).encode())
    os.close(result_fd)
    if agent.error:
        log.write_lines([agent.error])
    lease = ProcessLease(folder, spec)
    exit_code = _log_until_exit(log, agent, wakeup_fd, lease)
    ended_at = time.time()
    process_fields["unended"] = _kill_leftovers(spec["label"])[:_MAX_UNENDED]
    log.write_pipe(agent.output_fd)
    log.finish()
    with contextlib.suppress(OSError):
        recover_output(folder, log)
    if not lease.has_expired and "site" not in spec:  # its end must be recorded even if its folder was removed
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
    if log.lost_count:
        process_fields["lost"] = log.lost_count
        process_fields["error"] = log.error
    _record_end(folder, exit=exit_code, ended=ended_at, lines=log.line_count, **process_fields)


def _record_end(folder: str, **changes: Json) -> None:
    """Write the state of an ended process, with its exit code. A failed write is repeated for a minute."""
    deadline = time.monotonic() + _RECORD_TIMEOUT_S
    while True:
        try:
            write_state(folder, phase="exited", **changes)
            return
        except FileNotFoundError:  # the folder was removed
            return
        except OSError:
            if time.monotonic() >= deadline:
                return
        time.sleep(_RECORD_INTERVAL_S)


def _open_wakeup_pipe() -> int:
    """The reading end of a pipe to which each signal that the supervisor waits for is written."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    for signal_number in (signal.SIGCHLD, HEARTBEAT_SIGNAL):
        signal.signal(signal_number, lambda *_: None)  # without a handler, a signal is not written to the pipe
    signal.set_wakeup_fd(write_fd)
    return read_fd


class _Agent(NamedTuple):
    """The process as it was started.

    pid: its process id, which is also its session's.
    output_fd: the reading end of its stdout and stderr.
    error: why the program could not be executed; empty if it was.
    """

    pid: int
    output_fd: int
    error: bytes


def _start_process(spec: Json) -> _Agent:
    """Start the process in its own session. If the program cannot be executed, it exits with 127 and `error` is set."""
    output_fd, child_output_fd = os.pipe()
    error_fd, child_error_fd = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(child_output_fd, 1)
        os.dup2(child_output_fd, 2)
        for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL)
        _execute_program(spec, child_error_fd)
    os.close(child_output_fd)
    os.close(child_error_fd)
    with os.fdopen(error_fd, "rb") as error_pipe:
        return _Agent(pid, output_fd, error_pipe.read())


def _execute_program(spec: Json, error_fd: int) -> None:
    """Replace this process by the program; never returns. An error is written to `error_fd`."""
    try:
        environment = _build_environment(spec)
        _restore_file_limit()
        os.chdir(spec["cwd"])
        os.umask(spec["umask"])
        if _CHECKPOINTS_VARIABLE in environment:
            os.makedirs(environment[_CHECKPOINTS_VARIABLE], exist_ok=True)
        argv = spec["argv"]
        if "serves" in spec:
            urls = find_listen_urls(spec["serves"])
            if urls:
                argv = [arg.replace(LISTEN_URLS_PLACEHOLDER, urls) for arg in argv]
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:  # ValueError: an argument that this host's locale cannot encode
        os.write(error_fd, ("cannot start %s in %s: %s" % (spec["argv"][0], spec["cwd"], error)).encode())
    finally:
        os._exit(127)


def _build_environment(spec: Json) -> dict[str, str]:
    """The host's environment without the launcher's own variables, with the spec's and the job's over it."""
    environment = choose_interface_env(spec["toward"]) if "toward" in spec else {}
    for name, value in os.environ.items():
        if not name.startswith(_FOREIGN_PREFIXES):
            environment[name] = value
    environment.update(spec["env"])
    environment[JOB_VARIABLE] = spec["label"]
    environment[FOLDER_VARIABLE] = spec["folder"]
    if FLOW_RUN_SOURCE in os.environ:
        environment[FLOW_RUN_VARIABLE] = os.environ[FLOW_RUN_SOURCE]
    return add_recorder(environment, spec)


def _restore_file_limit() -> None:
    """Restore the limit from before the launcher raised its own: select() cannot take descriptors above 1,024."""
    original_limit = os.environ.get("TORCHYARD_NOFILE", "")
    if original_limit.isdigit():
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(int(original_limit), hard_limit), hard_limit))


def _log_until_exit(log: ProcessLog, agent: _Agent, wakeup_fd: int, lease: ProcessLease) -> int:
    """Log until the agent has exited, by itself or with its lease. Returns its exit code, negative for a signal."""
    open_fds = [agent.output_fd, wakeup_fd]
    while True:
        ready = select.select(open_fds, [], [], lease.check_interval_s)[0]
        if wakeup_fd in ready and HEARTBEAT_SIGNAL in os.read(wakeup_fd, 512):
            lease.renew()
        if agent.output_fd in ready:
            data = os.read(agent.output_fd, 1 << 16)
            log.write_output(data)
            if not data:
                open_fds.remove(agent.output_fd)
        lease.enforce(agent.pid, log)
        exit_code = _reap_children(agent.pid)
        if exit_code is not None:
            return exit_code


def _reap_children(agent_pid: int) -> int | None:
    """Reap every child that has exited; returns the agent's exit code if it is among them, else None."""
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


def _kill_leftovers(label: str) -> list[ProcessId]:
    """Kill what the agent left behind: workers have their own sessions and survive a killed agent.

    Returns what still lives after 5 s: processes of other users (sudo), or ones that a disk or a driver holds. What has
    died is reaped: in a container nobody else may do it.
    """
    job = JobProcesses(label, [identify_process(os.getpid())])
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while True:
        leftovers = job.find()
        _reap_children(0)  # after the look: what was found dead has exited, and can be reaped
        if not leftovers or time.monotonic() >= deadline:
            return leftovers
        job.send_signal(signal.SIGKILL)
        time.sleep(0.01)


def _watch(folders: dict[str, str], offsets: dict[str, int | None], launcher: Launcher) -> bool:
    """Send the states and logs of the processes with these folders; see host/watch.py."""
    readers = {name: _StateReader(folder) for name, folder in folders.items()}
    owner_files = [OwnerFile(path) for path in sorted(set(map(heartbeat_path, folders.values())))]
    processes: dict[str, WatchedProcess] = {}
    for name, reader in readers.items():
        log_path = file_path(reader.folder, "log")
        processes[name] = WatchedProcess(log_path, reader.read, _has_ended, measure_age)
    for name, offset in offsets.items():
        processes[name].request_log(offset)

    def renew_leases(owner: str) -> Renewal:
        for reader in readers.values():
            if reader.is_folder_removed:  # and possibly the heartbeat file's with it
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(heartbeat_path(reader.folder)), exist_ok=True)
        other_owner = ""
        problem = ""
        for owner_file in owner_files:
            try:
                other_owner = owner_file.record_heartbeat(owner) or other_owner
            except OSError as error:  # the folder is being removed, or the file system cannot be written
                expiring_names = [name for name, reader in readers.items() if not reader.signal_heartbeat()]
                problem = _describe_unrecorded(expiring_names, error)
        return Renewal(other_owner, problem)

    return watch_processes(launcher, processes, renew_leases)


class _StateReader:
    """Reads the state of a process for the launcher, and recovers the output of a killed supervisor once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.is_folder_removed = False
        self._cache = StateCache(folder)
        self._state: Json = {}
        self._log_size = _read_log_size(folder)
        self._has_recovered = False

    def read(self) -> Json:
        state = self._cache.view()
        if state["phase"] == "unsupervised" and not self._has_recovered:
            self._has_recovered = True
            recover_unsupervised(self.folder)
            state = self._cache.view()
        self._state = state
        self.is_folder_removed = state.get("detail") == FOLDER_REMOVED
        return dict(state, log_size=self._log_size)

    def signal_heartbeat(self) -> bool:
        """Renew the lease by a signal to the supervisor; False if it may run and cannot be identified or signalled."""
        state = self._state
        if _has_ended(state):
            return True
        supervisor = get_process(state, "supervisor")
        try:
            if "elsewhere" in state or not supervisor.is_alive:
                return False
            os.kill(supervisor.pid, HEARTBEAT_SIGNAL)
        except OSError:
            return False
        return True


def _describe_unrecorded(expiring_names: list[str], error: OSError) -> str:
    """Why a heartbeat is not recorded, with the processes whose lease it does not renew."""
    if not expiring_names:
        return "the owner of the run cannot be recorded: %s" % error
    return "the lease of %s is not renewed: %s" % (", ".join(expiring_names), error)


def _has_ended(state: Json) -> bool:
    return state.get("phase") in ENDED_PHASES


def _read_log_size(folder: str) -> int:
    """The size of the log when the launcher starts to watch: a shorter copy is still being transferred."""
    try:
        return os.stat(file_path(folder, "log")).st_size
    except OSError:
        return 0


def _cancel(request: Json) -> Json:
    """Cancel a process; an error counts as a leftover."""
    try:
        return cancel_process(request["folder"], request.get("owner", ""), grace_s=request["grace"])
    except OtherOwnerError as error:
        return {"other_owner": str(error)}
    except Exception as error:  # the others are cancelled all the same
        return {"left": ["%s: %s" % (request["folder"], error)]}


def main(verb: str, *args: str) -> int:
    if verb == "enter":
        from torchyard.host.enter import enter_process

        folder, *command = args
        enter_process(folder, command)
    if verb == "forward":
        folder, _, port = args
        print("%s runs on this machine: its port %s is localhost:%s" % (os.path.basename(folder), port, port))
        return 0
    if verb == "watch":
        launcher = Launcher()
        folders, offsets = read_request(launcher)
        return 0 if _watch(folders, offsets, launcher) else 1
    requests: dict[str, Json] = json.load(sys.stdin)
    responses: dict[str, Json] = {}
    if verb == "cancel":
        from concurrent.futures import ThreadPoolExecutor  # 15 ms, which the start of a process need not wait for

        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            cancellations = {name: pool.submit(_cancel, request) for name, request in requests.items()}
        responses = {name: cancellation.result() for name, cancellation in cancellations.items()}
    elif verb == "submit":
        # Only the user may read logs and environments; what the program writes follows the user's umask.
        umask = os.umask(0o077)
        for name, request in requests.items():
            responses[name] = _submit_process(request["folder"], dict(_make_absolute(request["spec"]), umask=umask))
    else:
        responses = {name: view_state(request["folder"]) for name, request in requests.items()}
    print(json.dumps(responses))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
