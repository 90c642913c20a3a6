"""Measure from /proc whether a rank does anything: the processor, the run queue, connections, files and page faults.

A rank is idle only as long as every sample proves it, without a gap: what was not observed counts as activity.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import Any, Collection, Dict, FrozenSet, List, NamedTuple, Set, Tuple

from . import processes, socket_bytes
from .stacks import is_device_wait

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SAMPLE_INTERVAL_S = 0.45  # at each poll of the node's recorder
_LATER_INTERVAL_S = 0.95  # of a rank that has been idle for longer than `_LONG_IDLE_S`
_LONG_IDLE_S = 10.0
_MAX_GAP_S = 5.0  # between two samples: a recorder that could not run for longer has not observed the rank
_MIN_PROCESSOR_SHARE = 0.05  # of the time in which the scheduler let a thread run, or sleep
_MAX_QUEUED_SHARE = 0.95  # of the time: a thread that could hardly run proves nothing
_MIN_FILE_BYTES_PER_S = 32768
_RECENT_WRITE_S = 5.0  # a program that tries again and again to save writes now and then
_MIN_SOCKET_BYTES_PER_S = 8192  # heartbeats of libraries need less
_MIN_FAULTS_PER_S = 100.0
# Of an idle time: before, the thread that trains may still be on its way into the call that waits. Later a single wake
# shows a loop, because a loop may sleep for longer than a job is given to prove that it works.
_SETTLED_S = 3.0
# A connection is another thread's if bytes arrive on it while the thread that trains sleeps on: in so many samples, and
# in such a share of those. NCCL's thread for diagnosis (RAS) exchanges some bytes with its peers every second.
_MIN_BACKGROUND_SAMPLES = 3
_MIN_BACKGROUND_SHARE = 0.25
# Threads of libraries, which run whatever the program does. /proc cuts names after 15 characters.
_LIBRARY_THREADS = re.compile(r"gloo|pt_gloo|pt_nccl|nccl|cuda|pt_tcpstore|pt_elastic|rdma|jemalloc", re.IGNORECASE)
# The kernel's functions that wait for a GPU or another accelerator. What the device does meanwhile is not visible from
# here: a wait that blocks uses no processor, however long the device works.
_DEVICE_WCHAN = re.compile(r"kfd_|amdgpu|nvidia|habana|dma_fence")
_MAX_WAITS = 12  # with different functions
_CHILDREN_PATH = "/proc/self/task/%d/children" % os.getpid()  # a kernel may be built without it
_ThreadKey = Tuple[int, int]  # the process and the thread


class ThreadSample(NamedTuple):
    """One thread: seconds on a processor and in the run queue, how often it ran, and whether it is runnable now."""

    processor_s: float
    queued_s: float
    runs: int
    is_runnable: bool


class Activity(NamedTuple):
    """What a rank and its children did between two samples.

    is_active: they computed, waited for a processor or, in any thread, a GPU, exchanged data, or touched files or new
    memory; or nobody knows.
    uses_files: they read or wrote files, or waited for pages of files.
    is_polling: the thread that trains was woken, as by a loop that sleeps and checks again.
    waits_for_device: the thread that trains is in a call that waits for a GPU.
    writes_files: they wrote files.
    """

    is_active: bool
    uses_files: bool
    is_polling: bool
    waits_for_device: bool = False
    writes_files: bool = False


class _IoBytes(NamedTuple):
    """Bytes that a process or thread has read and written, with those of pipes.

    disk: those that reached or left a disk, also by calls that the others do not count (io_uring, libaio).
    """

    read: int
    written: int
    disk: int


class Sample:
    """What a rank and its descendants have used so far, read from /proc when the sample is made.

    `record`: the rank's, with the numbers of the recorders' threads and of the thread that trains, and the port of its
    store: what those of torch and of the recorder use is not counted. What has ended, or a kernel does not count, is 0;
    `is_complete` is False if a process of another user hides its counters, or the kernel does not list children.
    `waits_for_device`: the thread that trains is in a call that waits for a GPU, by its stack in `record` or by the
    kernel; `has_device_thread`: another one is. `kernel_waits`: the states of the threads that do not run, each with
    the kernel function: `D folio_wait_bit_common`.
    """

    def __init__(self, taken_at: float, pid: int, record: dict[str, Any]) -> None:
        self.taken_at = taken_at
        self.is_complete = os.path.exists(_CHILDREN_PATH)  # else the children are not known
        self.threads: Dict[_ThreadKey, ThreadSample] = {}
        self.processor_s: Dict[int, float] = {}  # by process, with those of its threads and children that have ended
        self.library_processor_s: Dict[_ThreadKey, float] = {}  # of the threads that are not counted
        self.minor_faults: Dict[int, int] = {}
        self.major_faults: Dict[int, int] = {}
        self.file_bytes: Dict[int, int] = {}  # read and written
        self.disk_bytes: Dict[int, int] = {}
        self.written_bytes: Dict[int, int] = {}
        self.kernel_waits: Set[str] = set()
        self.wakes = _read_wakes(pid, record["trainer"])
        self.waits_for_device = _waits_for_device(record, processes.read_wchan(pid, record["trainer"]))
        self.has_device_thread = bool(record.get("device_thread"))
        recorder_threads = record["recorder_threads"]
        pids = [pid, *list_descendants(pid)]
        for process in pids:
            self._add_process(process)
            self._add_threads(process, recorder_threads if process == pid else (), record["trainer"])
        for thread in recorder_threads:
            recorder_io = self._read_io("/proc/%d/task/%d/io" % (pid, thread))
            self.file_bytes[pid] -= recorder_io.read + recorder_io.written
            self.disk_bytes[pid] -= recorder_io.disk
            self.written_bytes[pid] -= recorder_io.written
        self.socket_bytes = socket_bytes.count_bytes(pids, record["store_port"])

    def _add_process(self, pid: int) -> None:
        process_io = self._read_io("/proc/%d/io" % pid)
        self.file_bytes[pid] = process_io.read + process_io.written
        self.disk_bytes[pid] = process_io.disk
        self.written_bytes[pid] = process_io.written
        with contextlib.suppress(OSError, IndexError, ValueError):
            _, fields = _read_stat("/proc/%d/stat" % pid)
            self.minor_faults[pid] = int(fields[7]) + int(fields[8])
            self.major_faults[pid] = int(fields[9]) + int(fields[10])
            self.processor_s[pid] = sum(map(int, fields[11:15])) / _TICKS_PER_S

    def _add_threads(self, pid: int, recorder_threads: Collection[int], training_thread: int) -> None:
        """A thread that has the name of its process runs the program, also if that is the name of a library."""
        process_name = ""
        with contextlib.suppress(OSError):
            process_name, _ = _read_stat("/proc/%d/stat" % pid)
        for thread in map(int, _list_folder("/proc/%d/task" % pid)):
            with contextlib.suppress(OSError, IndexError, ValueError):
                name, fields = _read_stat("/proc/%d/task/%d/stat" % (pid, thread))
                processor_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                is_library = _LIBRARY_THREADS.match(name) and name != process_name
                if thread in recorder_threads or (is_library and thread not in (pid, training_thread)):
                    self.library_processor_s[pid, thread] = processor_s
                    self.minor_faults[pid] -= int(fields[7])
                    self.major_faults[pid] -= int(fields[9])
                    continue
                queued_s = 0.0
                runs = 0
                with contextlib.suppress(OSError, IndexError, ValueError):  # a kernel without these counters
                    counters = _read_text("/proc/%d/task/%d/schedstat" % (pid, thread)).split()
                    processor_s = int(counters[0]) / 1e9
                    queued_s = int(counters[1]) / 1e9
                    runs = int(counters[2])
                self.threads[pid, thread] = ThreadSample(processor_s, queued_s, runs, fields[0] == "R")
                if fields[0] != "R":
                    self.kernel_waits.add("%s %s" % (fields[0], processes.read_wchan(pid, thread)))

    def _read_io(self, path: str) -> _IoBytes:
        """What a process or thread has read and written; 0 if that cannot be read."""
        try:
            counters = dict(line.split(": ") for line in _read_text(path).splitlines())
            disk = int(counters["read_bytes"]) + int(counters["write_bytes"])
            return _IoBytes(int(counters["rchar"]), int(counters["wchar"]), disk)
        except PermissionError:
            self.is_complete = False
        except (OSError, ValueError, KeyError):
            pass
        return _IoBytes(0, 0, 0)


def compare_samples(before: Sample, after: Sample, background: FrozenSet[int] = frozenset()) -> Activity:
    """What happened between two samples of one rank. `background`: the connections of threads that do not train."""
    elapsed_s = max(after.taken_at - before.taken_at, 0.001)
    file_bytes = max(_sum_growth(before.file_bytes, after.file_bytes), _sum_growth(before.disk_bytes, after.disk_bytes))
    has_waited_for_pages = _sum_growth(before.major_faults, after.major_faults) > 0
    uses_files = has_waited_for_pages or file_bytes / elapsed_s > _MIN_FILE_BYTES_PER_S
    is_polling = after.wakes > before.wakes
    received_bytes = _sum_growth(before.socket_bytes, after.socket_bytes)
    # A loop that asks another machine again and again needs few bytes; a library's heartbeat wakes another thread.
    has_asked = is_polling and bool(_list_grown(before.socket_bytes, after.socket_bytes) - background)
    faults = _sum_growth(before.minor_faults, after.minor_faults)
    is_active = (
        not (before.is_complete and after.is_complete)
        or after.waits_for_device
        or after.has_device_thread
        or uses_files
        or has_asked
        or received_bytes > _MIN_SOCKET_BYTES_PER_S * elapsed_s
        or faults / elapsed_s > _MIN_FAULTS_PER_S
        or _computes(before, after, elapsed_s)
    )
    return Activity(
        is_active=is_active,
        uses_files=uses_files,
        is_polling=is_polling,
        waits_for_device=after.waits_for_device,
        writes_files=_sum_growth(before.written_bytes, after.written_bytes) / elapsed_s > _MIN_FILE_BYTES_PER_S,
    )


def _waits_for_device(record: Dict[str, Any], wchan: str) -> bool:
    """Whether the thread that trains waits for a device that may work. `wchan`: the kernel function it sleeps in."""
    if _DEVICE_WCHAN.search(wchan):
        return True
    stack = record.get("stack")
    if not stack:
        return False
    return is_device_wait(stack[0]["file"], stack[0]["function"])


def _computes(before: Sample, after: Sample, elapsed_s: float) -> bool:
    """Whether a thread computes, or waits for a processor, or all threads together have computed between two samples.

    The last one counts threads and processes that have ended meanwhile, but none of torch or the recorder.
    """
    used_s = 0.0
    for key, thread in after.threads.items():
        previous = before.threads.get(key, ThreadSample(0.0, 0.0, 0, is_runnable=False))
        processor_s = thread.processor_s - previous.processor_s
        queued_s = thread.queued_s - previous.queued_s
        scheduled_s = elapsed_s - queued_s  # in which it ran or slept
        was_never_run = thread.is_runnable and previous.is_runnable and thread.runs == previous.runs
        if was_never_run or queued_s > _MAX_QUEUED_SHARE * elapsed_s:
            return True
        if processor_s > _MIN_PROCESSOR_SHARE * scheduled_s:
            return True
        used_s += processor_s
    total_s: float = _sum_growth(before.processor_s, after.processor_s)
    library_s: float = _sum_growth(before.library_processor_s, after.library_processor_s)
    return max(used_s, total_s - library_s) > _MIN_PROCESSOR_SHARE * elapsed_s


def _sum_growth(before: dict[Any, Any], after: dict[Any, Any]) -> Any:
    """By how much the counters have grown; a new one counts from 0, one that is gone not at all."""
    return sum(max(value - before.get(key, 0), 0) for key, value in after.items())


def _list_grown(before: Dict[int, int], after: Dict[int, int]) -> Set[int]:
    """The keys of the counters that have grown, or are new."""
    return {key for key, value in after.items() if value > before.get(key, 0)}


class _BackgroundTraffic:
    """Learn which connections are those of threads that do not train, from samples in which the training one slept."""

    def __init__(self) -> None:
        self._samples = 0
        self._counts: Dict[int, int] = {}  # of samples with bytes, by the inode of the connection

    def add(self, before: Sample, after: Sample) -> None:
        """Count the connections that had bytes between two samples, if the training thread was not woken."""
        if after.wakes > before.wakes:
            return
        self._samples += 1
        for inode in _list_grown(before.socket_bytes, after.socket_bytes):
            self._counts[inode] = self._counts.get(inode, 0) + 1

    def list_connections(self) -> FrozenSet[int]:
        """Their inodes."""
        min_count = max(_MIN_BACKGROUND_SAMPLES, _MIN_BACKGROUND_SHARE * self._samples)
        return frozenset(inode for inode, count in self._counts.items() if count >= min_count)


class ActivityMeter:
    """Measure for how long a rank has been idle in its current stall.

    Call `measure` at each poll of a rank that has stalled, and `reset` when it makes progress. Times are monotonic
    seconds.

    idle_s: until the last sample; 0 until two samples prove it, and after each activity.
    longest_idle_s: the longest idle time of this stall that ended with activity.
    activity: between the last two samples; None until there are two.
    is_polling: whether the thread that trains was woken between the last two samples, or since it has settled in the
    current idle time.
    kernel_waits: those of the last sample, at most `_MAX_WAITS`, the waits for devices first.
    has_written_recently: whether files were written in the last seconds of this stall.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.reset()

    def reset(self) -> None:
        """Forget the stall, because the rank makes progress."""
        self._last_sample: Sample | None = None
        self._background = _BackgroundTraffic()
        self._idle_since = 0.0
        self.activity: Activity | None = None
        self.longest_idle_s = 0.0
        self.idle_s = 0.0
        self.is_polling = False
        self.kernel_waits: List[str] = []
        self._has_polled = False  # in the current idle time
        self.has_written_recently = False
        self._written_at = -math.inf

    def measure(self, now: float, record: dict[str, Any]) -> None:
        """Take the next sample if it is due."""
        previous = self._last_sample
        interval_s = _SAMPLE_INTERVAL_S if self.idle_s < _LONG_IDLE_S else _LATER_INTERVAL_S
        if previous is not None and now - previous.taken_at < interval_s:
            return
        self.add(Sample(now, self._pid, record))

    def add(self, sample: Sample) -> None:
        """Add a sample, and compare it with the one before."""
        previous = self._last_sample
        self._last_sample = sample
        self.kernel_waits = sorted(sample.kernel_waits)[:_MAX_WAITS]
        if previous is None or sample.taken_at - previous.taken_at > _MAX_GAP_S:
            self._idle_since = sample.taken_at
            self.idle_s = 0.0
            self._has_polled = False
            return
        self.activity = compare_samples(previous, sample, self._background.list_connections())
        self._background.add(previous, sample)
        if self.activity.writes_files:
            self._written_at = sample.taken_at
        self.has_written_recently = sample.taken_at - self._written_at < _RECENT_WRITE_S
        if self.activity.is_active:
            self.longest_idle_s = max(self.longest_idle_s, self.idle_s)
            self._idle_since = sample.taken_at
            self._has_polled = False
        elif self.activity.is_polling and self.idle_s >= _SETTLED_S:
            self._has_polled = True
        self.is_polling = self.activity.is_polling or self._has_polled
        self.idle_s = sample.taken_at - self._idle_since


def list_descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on; empty if it has none or has ended."""
    descendants: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        for thread in _list_folder("/proc/%d/task" % parent):
            with contextlib.suppress(OSError, ValueError):
                children = [int(child) for child in _read_text("/proc/%d/task/%s/children" % (parent, thread)).split()]
                descendants += children
                pending += children
    return descendants


def _read_wakes(pid: int, thread: int) -> int:
    """How often a thread has gone to sleep by itself; 0 if that cannot be read."""
    try:
        status = _read_text("/proc/%d/task/%d/status" % (pid, thread))
        return int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def _read_stat(path: str) -> tuple[str, list[str]]:
    """The name of a process or thread, and the fields after it: the first one is its state."""
    name, _, tail = _read_text(path).partition("(")[2].rpartition(")")
    return name, tail.split()


def _list_folder(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
