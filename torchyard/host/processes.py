"""The processes of a job on this host, found by label alone. Standard library only, Python 3.8 or newer.

A label is `<run>/<attempt>/<process>`; one that ends with a slash stands for all labels that start with it.

Only /proc is read. A process that ends meanwhile, or belongs to another user, counts as one without the label. Other
errors, such as too few descriptors, are raised: a failed read does not prove that a process has ended. A program may
overwrite its environment (setproctitle), and has no label then: its supervisor's descendants are the job's.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from typing import Any, Callable, Iterable, NamedTuple

Json = Any
JOB_VARIABLE = "TORCHYARD_JOB"  # the label, in the environment of every process of a job
FOLDER_VARIABLE = "TORCHYARD_SUPERVISED"  # the folder that its supervisor writes
FLOW_RUN_VARIABLE = "TORCHYARD_FLOW_RUN"  # the id of the flow run that has started it; absent without an orchestrator
FLOW_RUN_SOURCE = "PREFECT__FLOW_RUN_ID"  # the same in the flow's process and in supervisors, set by Prefect's worker
_UNREADABLE = (FileNotFoundError, ProcessLookupError, PermissionError)  # it has ended, or is another user's
_KILL_TIMEOUT_S = 5.0
_EXEC_TIMEOUT_S = 5.0  # a program may have to be read from a slow disk first
# Of /proc/PID/stat, counted from the state (man 5 proc).
_FLAGS_FIELD = 6
_ENV_END_FIELD = 48
_KERNEL_THREAD_FLAG = 0x00200000
_PROCESS_FOLDER = re.compile(r"/([^/]+)(?:/attempt-|-)(\d+)/([^/]+)$")


def parse_label(folder: str) -> str:
    """The label of a process, derived from its folder's path; empty if the path is not of that form."""
    match = _PROCESS_FOLDER.search(os.path.abspath(folder))
    return "/".join(match.groups()) if match else ""


def find_labelled(label: str) -> list[int]:
    """The ids of the living processes with the label."""
    end = "" if label.endswith("/") else "\0"
    variable = ("%s=%s%s" % (JOB_VARIABLE, label, end)).encode()
    return [pid for pid in _list_pids() if has_variable(str(pid), variable)]


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_variable(pid: str, variable: bytes) -> bool:
    """Whether a variable of the process's environment starts with `variable` (`NAME=value`)."""
    return b"\0" + variable in b"\0" + _read_environ(pid) + b"\0"


def _read_environ(pid: object) -> bytes:
    """The environment of a process; empty if it has none, has ended, or is another user's.

    While a process starts another program it has none, usually for less than a millisecond: then it is read again, for
    up to `_EXEC_TIMEOUT_S`. Otherwise a process of a job could be passed over, and "nothing is left" be untrue.
    """
    deadline = time.monotonic() + _EXEC_TIMEOUT_S
    address: int | None = 0
    while True:
        try:
            with open("/proc/%s/environ" % pid, "rb") as file:
                environ = file.read()
        except _UNREADABLE:
            return b""
        if environ:
            return environ
        previous_address = address
        address = _locate_environ(pid)
        is_same_program = address == previous_address and address != 0
        if address is None or is_same_program or time.monotonic() >= deadline:
            return b""
        if address == 0:
            time.sleep(0.0005)


def _locate_environ(pid: object) -> int | None:
    """The address at which a process's environment ends: each program that it starts has another one.

    0 while it starts a program, inside execve; None if it has no memory: it has ended, or is a thread of the kernel.
    """
    fields = _read_proc_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) <= _ENV_END_FIELD or fields[0] in (b"Z", b"X"):
        return None
    is_kernel_thread = int(fields[_FLAGS_FIELD]) & _KERNEL_THREAD_FLAG
    return None if is_kernel_thread else int(fields[_ENV_END_FIELD])


def _read_proc_file(pid: object, name: str) -> bytes:
    """A file in /proc/PID; empty if the process has ended (or is a zombie), or is another user's."""
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except _UNREADABLE:
        return b""


class _Stat(NamedTuple):
    """Fields of /proc/PID/stat; zeros if the process has ended or is a zombie.

    start_time: in clock ticks since the host's boot.
    """

    parent_pid: int
    start_time: int


def _read_stat(pid: int) -> _Stat:
    fields = _read_proc_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return _Stat(0, 0)
    return _Stat(int(fields[1]), int(fields[19]))


class ProcessId(NamedTuple):
    """A process of this host beyond doubt: after its end its number may be another's, with another start time.

    start_time: in clock ticks since the host's boot; 0 if the process had ended when it was identified.
    """

    pid: int
    start_time: int

    @property
    def is_alive(self) -> bool:
        return self.start_time > 0 and _read_stat(self.pid).start_time == self.start_time

    def __str__(self) -> str:
        """`process 123`, with its user if that is another one, who alone may end it."""
        uid = _read_owner_uid(self.pid)
        if uid in (-1, os.geteuid()):
            return "process %d" % self.pid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        return "process %d of another user (%s)" % (self.pid, user)


NO_PROCESS = ProcessId(0, 0)


def identify_process(pid: int) -> ProcessId:
    """The process that has the number now."""
    return ProcessId(pid, _read_stat(pid).start_time)


def list_descendants(ancestors: Iterable[int]) -> list[int]:
    """The living descendants of processes, whatever their label; a parent precedes its children."""
    children: dict[int, list[int]] = {}
    for pid in _list_pids():
        parent_pid = _read_stat(pid).parent_pid
        if parent_pid:
            children.setdefault(parent_pid, []).append(pid)
    descendants: list[int] = []
    parents = list(ancestors)
    while parents:
        pids = children.pop(parents.pop(), [])
        descendants += pids
        parents += pids
    return descendants


class JobProcesses:
    """The processes of a job on this host: those with its label, and the descendants of its supervisors.

    A process stays known once it was found: if its parent ends and it has no label, a later search does not find it.
    """

    def __init__(self, label: str, supervisors: Iterable[ProcessId], processes: Iterable[ProcessId] = ()) -> None:
        """`processes`: those that are known already. The supervisors are not processes of the job."""
        self._label = label
        self._supervisors = list(supervisors)
        self._processes = set(processes)

    def find(self) -> list[ProcessId]:
        """The living ones, oldest first: a parent that outlives its child may go on, as if the child had ended."""
        ancestors = [process.pid for process in {*self._supervisors, *self._processes} if process.is_alive]
        pids = list_descendants(ancestors) + find_labelled(self._label)
        self._processes.update(map(identify_process, pids))
        living = [process for process in self._processes if process.is_alive]
        return sorted(living, key=lambda process: (process.start_time, process.pid))

    def send_signal(self, signal_number: int) -> None:
        """Send a signal to all of them, a parent before its children."""
        send_signal([process.pid for process in self.find()], signal_number)


def send_signal(pids: Iterable[int], signal_number: int) -> None:
    """Send a signal to each process that exists. One of another user is passed over: it is reported as left over."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except (ProcessLookupError, PermissionError):
            pass


# --- their supervisors


def _is_supervisor(pid: int) -> bool:
    """Whether the process was started as `supervisor.py submit`."""
    argv = _read_proc_file(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
    return len(argv) >= 2 and os.path.basename(argv[-2]) == "supervisor.py" and argv[-1] == "submit"


def _find_supervisors(label: str) -> list[int]:
    """The process numbers of the supervisors of the processes with a label, in ascending order.

    A supervisor has no label itself: it is the parent of a process with the label, or holds the lock of a folder that
    the label is of. The empty label is that of a path without one, and has no supervisors.
    """
    if not label:
        return []
    supervisors = {_read_stat(pid).parent_pid for pid in find_labelled(label)}
    for pid, folder in _list_supervisor_folders().items():
        if _is_part_of(parse_label(folder), label) and not _has_other_label(pid, label):
            supervisors.add(pid)
    return sorted(filter(_is_supervisor, supervisors))


def _is_part_of(process_label: str, label: str) -> bool:
    return process_label == label or (label.endswith("/") and process_label.startswith(label))


def _has_other_label(supervisor_pid: int, label: str) -> bool:
    """Whether the processes of a supervisor are another job's: a folder of another path may have the same name."""
    labels = {_read_environment(pid).get(JOB_VARIABLE, "") for pid in list_descendants([supervisor_pid])} - {""}
    return bool(labels) and not any(_is_part_of(process_label, label) for process_label in labels)


def is_label_alive(label: str) -> bool:
    """Whether a process with the label, or a supervisor of one, lives."""
    return bool(find_labelled(label) or _find_supervisors(label))


def _list_supervisor_folders() -> dict[int, str]:
    """The folder of each supervisor, which has its lock open, also after the folder was removed."""
    folders: dict[int, str] = {}
    for pid in filter(_is_supervisor, _list_pids()):
        try:
            for fd in os.listdir("/proc/%d/fd" % pid):
                folder, name = os.path.split(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
                if name in ("lock", "lock (deleted)"):
                    folders[pid] = folder
        except _UNREADABLE:
            continue
    return folders


def list_local_jobs() -> dict[str, Json]:
    """This user's jobs in this PID namespace, by label: the `folder`, the `flow_run`, the `pids` and the `supervisors`.

    The processes of a container are passed over: the paths in their environment are those of its own filesystem.
    """
    jobs: dict[str, Json] = {}

    def get_job(label: str, folder: str) -> Json:
        job = jobs.setdefault(label, {"folder": "", "flow_run": "", "pids": [], "supervisors": []})
        job["folder"] = job["folder"] or folder
        return job

    supervisor_folders = _list_supervisor_folders()
    for pid in _list_pids():
        if _read_owner_uid(pid) != os.geteuid() or not _is_in_own_namespace(pid):
            continue
        environment = _read_environment(pid)
        folder = supervisor_folders.get(pid, "")
        if parse_label(folder):
            job = get_job(parse_label(folder), folder)
            job["supervisors"].append(pid)
            job["flow_run"] = environment.get(FLOW_RUN_SOURCE, "")
            job["pids"] += [child for child in list_descendants([pid]) if child not in job["pids"]]
        elif environment.get(JOB_VARIABLE):
            job = get_job(environment[JOB_VARIABLE], environment.get(FOLDER_VARIABLE, ""))
            job["flow_run"] = job["flow_run"] or environment.get(FLOW_RUN_VARIABLE, "")
            if pid not in job["pids"]:
                job["pids"].append(pid)
    return jobs


def _is_in_own_namespace(pid: int) -> bool:
    try:
        return os.readlink("/proc/%d/ns/pid" % pid) == os.readlink("/proc/self/ns/pid")
    except _UNREADABLE:
        return False


def _read_environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty if it cannot be read."""
    environment: dict[str, str] = {}
    for variable in _read_environ(pid).decode(errors="replace").split("\0"):
        name, _, value = variable.partition("=")
        environment[name] = value
    return environment


def _read_owner_uid(pid: int) -> int:
    """The id of a process's user; -1 if the process has ended."""
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except _UNREADABLE:
        return -1


# --- ending them


def end_processes(label: str, *, grace_s: float, check: Callable[[], object] | None = None) -> list[str]:
    """End the processes with the label and their supervisors, by SIGTERM, and by SIGKILL after `grace_s` seconds.

    Returns what is left, as `process 123`. Signals go to the topmost processes: an agent stops its own workers.
    `check` is called before each signal, and raises an error if they must not be ended (any more).
    """

    def send(pids: Iterable[int], signal_number: int) -> None:
        if check is not None:
            check()
        send_signal(pids, signal_number)

    supervisors = [identify_process(pid) for pid in _find_supervisors(label)]
    job = JobProcesses(label, supervisors)
    pids = [process.pid for process in job.find()]
    send([pid for pid in pids if _read_stat(pid).parent_pid not in pids], signal.SIGTERM)
    if (pids or supervisors) and not _wait_until_gone(job, supervisors, timeout_s=grace_s):
        send([process.pid for process in job.find()], signal.SIGKILL)
        if not _wait_until_gone(job, supervisors, timeout_s=_KILL_TIMEOUT_S) and not job.find():
            send([supervisor.pid for supervisor in supervisors if supervisor.is_alive], signal.SIGKILL)
            _wait_until_gone(job, supervisors, timeout_s=_KILL_TIMEOUT_S)
    return [str(process) for process in job.find() + supervisors if process.is_alive]


def _wait_until_gone(job: JobProcesses, supervisors: list[ProcessId], *, timeout_s: float) -> bool:
    """Wait until the job's processes and its supervisors have exited; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while any(supervisor.is_alive for supervisor in supervisors) or job.find():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
