"""What a rank does, from two samples of /proc, and for how long it has provably done nothing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes.python_commands import running_python
from tests.support.waiting import wait_until
from torchyard.host.black_box import activity
from torchyard.host.black_box.activity import Activity, ActivityMeter, Sample, ThreadSample, compare_samples

WAITING = "import time; time.sleep(60)"
POLLING = "import time\nwhile True: time.sleep(0.01)"
BESIDE_A_THREAD = f"import threading; threading.Thread(target=exec, args=({POLLING!r}, {{}})).start(); LOCK.acquire()"
LOCKED = f"import threading; LOCK = threading.Lock(); LOCK.acquire(); {BESIDE_A_THREAD}"
COMPUTING = "while True: pass"
READING = "import os\nwhile True: os.pread(os.open('/proc/self/exe', 0), 65536, 0); os.closerange(3, 9)"
READING_SLOWLY = (
    "import os, time\nf = os.open('/proc/self/exe', 0)\nwhile True: os.pread(f, 65536, 0); time.sleep(0.05)"
)
WRITING = "import os\nwhile True: os.write(1, b'x' * 65536)"
FAULTING = "import mmap, time\nwhile True:\n  m = mmap.mmap(-1, 1 << 20); m.write(bytes(1 << 20)); time.sleep(0.05)"
WITH_BUSY_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {COMPUTING!r}]).wait()"
WITH_IDLE_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITING!r}]).wait()"
WITH_SHORT_CHILDREN = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
PID = 7


def take_sample(pid: int, recorder_threads: Sequence[int] = ()) -> Sample:
    return Sample(time.monotonic(), pid, {"recorder_threads": recorder_threads, "trainer": pid, "store_port": 0})


def measure(pid: int, recorder_threads: Sequence[int] = ()) -> Activity:
    before = take_sample(pid, recorder_threads)
    time.sleep(0.5)
    return compare_samples(before, take_sample(pid, recorder_threads))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(COMPUTING, id="computes"),
        pytest.param(WRITING, id="writes"),
        pytest.param(FAULTING, id="touches new memory"),
        pytest.param(WITH_BUSY_CHILD, id="has a child that computes"),
        pytest.param(WITH_SHORT_CHILDREN, id="has children that end between the samples"),
    ],
)
def test_process_that_works_is_active(code: str) -> None:
    with running_python(code) as pid:
        wait_until(lambda: measure(pid).is_active)
        assert measure(pid).is_active


@pytest.mark.parametrize(
    ("code", "is_polling"),
    [
        pytest.param(WAITING, False, id="sleeps"),
        pytest.param(POLLING, True, id="polls 100 times a second"),
        pytest.param(LOCKED, False, id="waits for a lock beside a thread that polls"),
        pytest.param(WITH_IDLE_CHILD, False, id="waits for a child that sleeps"),
    ],
)
def test_process_that_waits_is_idle(code: str, is_polling: bool) -> None:
    """A loop that only looks whether something has happened is idle, like a process that waits."""
    with running_python(code) as pid:
        wait_until(lambda: not measure(pid).is_active)
        assert measure(pid) == Activity(is_active=False, uses_files=False, is_polling=is_polling)


def test_program_with_a_library_name_is_no_library(tmp_path: Path) -> None:
    """The main thread of a program that is called nccl_train.py, and those that it starts, are the rank's."""
    program = tmp_path / "nccl_train"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-S", "-c", COMPUTING])
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "nccl_train\n")
        assert measure(process.pid).is_active
    finally:
        process.kill()
        process.wait()


def test_children_that_the_kernel_does_not_list_may_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without lists of children does not prove that there are none: no rank is idle."""
    monkeypatch.setattr(activity, "_CHILDREN_PATH", "/proc/no-such-file")
    assert compare_samples(build_sample(0.0), build_sample(0.7)).is_active


def test_recorders_in_the_rank_are_no_activity() -> None:
    """What the recorders' own threads read, in a rank without an agent, is not the rank's: also of several threads."""
    code = (
        f"import threading\nfor _ in range(2): threading.Thread(target=exec, args=({READING_SLOWLY!r}, {{}})).start()"
    )
    with running_python(code) as pid:
        wait_until(lambda: len(os.listdir(f"/proc/{pid}/task")) == 3)
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task") if int(thread) != pid]
        wait_until(lambda: not measure(pid, threads).is_active)
        assert measure(pid, threads[:1]).uses_files


def test_process_that_downloads_slowly_is_active() -> None:
    """A process that waits for a slow server, and receives some kilobytes now and then, is active."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nwith socket.create_connection({server.getsockname()}) as c:\n while c.recv(65536): pass"
        with running_python(code) as pid, server.accept()[0] as connection:
            wait_until(lambda: not measure(pid).is_active)
            before = take_sample(pid)
            connection.sendall(bytes(200))
            wait_until(lambda: compare_samples(before, take_sample(pid)).is_active)


@pytest.mark.parametrize(
    ("path", "function", "is_active"),
    [
        ("/opt/venv/lib/python3.12/site-packages/torch/cuda/streams.py", "synchronize", True),
        ("/usr/lib/python3/dist-packages/torch/cuda/__init__.py", "synchronize", True),
        ("/usr/lib/python3/dist-packages/torch/cuda/__init__.py", "_lazy_init", False),
        ("/home/me/torch/train.py", "synchronize", False),
        ("/usr/lib/python3.12/threading.py", "wait", False),
    ],
)
def test_process_that_waits_for_its_gpu_is_active(path: str, function: str, is_active: bool) -> None:
    """A blocking wait for a GPU uses no processor, and nothing here shows whether the GPU works."""
    record = {"recorder_threads": [], "store_port": 0, "stack": [{"function": function, "file": path, "line": 231}]}
    with running_python(WAITING) as pid:
        wait_until(lambda: not measure(pid).is_active)
        before, after = (Sample(taken_at, pid, record | {"trainer": pid}) for taken_at in (1.0, 1.5))
        assert compare_samples(before, after).is_active == is_active


def test_thread_that_waits_for_a_gpu_is_activity() -> None:
    """The GPU may work for another thread, for which the one that trains waits."""
    before, after = (build_sample(taken_at, has_device_thread=True) for taken_at in (1.0, 1.5))
    activity = compare_samples(before, after)
    assert (activity.is_active, activity.waits_for_device) == (True, False)


def build_sample(taken_at: float, **fields: object) -> Sample:
    """A sample of a process that does not exist, with these counters."""
    sample = Sample(taken_at, 2**22 + 1, {"recorder_threads": [], "trainer": 0, "store_port": 0})
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def thread(processor_s: float, queued_s: float, runs: int = 1, is_runnable: bool = False) -> dict[str, object]:
    return {"threads": {(PID, PID): ThreadSample(processor_s, queued_s, runs, is_runnable)}}


@pytest.mark.parametrize(
    ("before", "after", "is_active"),
    [
        pytest.param(thread(1.0, 1.0), thread(1.03, 1.65), True, id="gets 4 % of a processor, and waits for it else"),
        pytest.param(thread(1.0, 1.0), thread(1.0, 1.69), True, id="waits for a processor all the time"),
        pytest.param(thread(1.0, 1.0, 5, True), thread(1.0, 1.0, 5, True), True, id="has been waiting and never ran"),
        pytest.param(thread(1.0, 1.0), thread(1.003, 1.4), False, id="polls, and waits for a processor each time"),
        pytest.param(thread(1.0, 1.0), thread(1.03, 1.0), False, id="uses 4 % of a free processor"),
        pytest.param({}, {"minor_faults": {PID: 60}}, False, id="touches some pages"),
        pytest.param({}, {"minor_faults": {PID: 100}}, True, id="touches much memory"),
        pytest.param({}, {"major_faults": {PID: 1}}, True, id="waits for a page of a file"),
        pytest.param({}, {"file_bytes": {PID: 30_000}}, True, id="reads a file slowly"),
        pytest.param({}, {"disk_bytes": {PID: 30_000}}, True, id="reads a file by io_uring"),
        pytest.param({}, {"socket_bytes": {1: 500}}, False, id="has a library's heartbeat"),
        pytest.param({}, {"socket_bytes": {1: 500}, "wakes": 1}, True, id="asks another machine"),
        pytest.param({"processor_s": {PID: 1.0}}, {"processor_s": {PID: 1.1}}, True, id="had a child that has ended"),
        pytest.param({}, {"is_complete": False}, True, id="has a child that hides its counters"),
    ],
)
def test_activity_by_counters(before: dict[str, object], after: dict[str, object], is_active: bool) -> None:
    """A loaded machine does not make a rank idle: what it used counts as a share of the time that it was given."""
    assert compare_samples(build_sample(0.0, **before), build_sample(0.7, **after)).is_active is is_active


def feed(meter: ActivityMeter, *activities: bool, interval_s: float = 1.0) -> None:
    """Add a first sample, and one after each second in which the rank was active or not."""
    faults = 0
    meter.add(build_sample(0.0, minor_faults={PID: faults}))
    for number, is_active in enumerate(activities, start=1):
        faults += 100_000 if is_active else 0
        meter.add(build_sample(number * interval_s, minor_faults={PID: faults}))


def test_idle_time_starts_again_after_each_activity() -> None:
    """The longest idle time that ended with activity is remembered until the rank makes progress."""
    meter = ActivityMeter(PID)
    feed(meter, False, False, False, True, False)
    assert (meter.idle_s, meter.longest_idle_s) == (1.0, 3.0)
    meter.reset()
    assert (meter.idle_s, meter.longest_idle_s) == (0.0, 0.0)


@pytest.mark.parametrize(("code", "writes_files"), [(WRITING, True), (READING, False)], ids=["writes", "reads"])
def test_process_that_reads_does_not_write(code: str, *, writes_files: bool) -> None:
    """Bytes that were read do not count as written."""
    with running_python(code) as pid:
        wait_until(lambda: measure(pid).uses_files)
        assert measure(pid).writes_files is writes_files


def test_writes_are_remembered_for_seconds() -> None:
    """A program that tries to save each second has written recently also while it pauses, until it stops trying."""
    meter = ActivityMeter(PID)
    meter.add(build_sample(0.0, written_bytes={PID: 0}))
    recently = []
    for second, written in enumerate((0, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20), start=1):
        meter.add(build_sample(float(second), written_bytes={PID: written}))
        recently.append(meter.has_written_recently)
    assert recently == [False, True, True, True, True, True, False]


def feed_polling(meter: ActivityMeter, wakes: list[int], received: list[int], inode: int) -> None:
    """Add a sample each second, in which the training thread was woken so often, and so many bytes have arrived.

    Connection 1 receives 52 bytes in every second, and `inode` those of `received`.
    """
    counts = {1: 0, inode: 0}
    meter.add(build_sample(0.0, wakes=0, socket_bytes=dict(counts)))
    for number, bytes_ in enumerate(received, start=1):
        counts[1] += 52
        counts[inode] += bytes_
        meter.add(build_sample(float(number), wakes=sum(wakes[:number]), socket_bytes=dict(counts)))


def test_heartbeats_of_another_thread_are_no_activity_of_a_rank_that_wakes_up() -> None:
    """NCCL's heartbeats arrive every second; a data loader's queue wakes its rank every five seconds."""
    meter = ActivityMeter(PID)
    feed_polling(meter, [0, 0, 0, 0, 1] * 4, [0] * 20, inode=2)
    assert meter.idle_s == 20.0


def test_requests_beside_heartbeats_are_activity() -> None:
    """A loop that asks another machine every five seconds works, also beside heartbeats, and with few bytes."""
    meter = ActivityMeter(PID)
    feed_polling(meter, [0, 0, 0, 0, 1] * 4, [0, 0, 0, 0, 5] * 4, inode=2)
    assert meter.idle_s == 0.0


def test_connection_of_a_loop_that_always_polls_is_its_own() -> None:
    """Without a sample in which the rank sleeps on, nothing shows whose bytes they are: they count as activity."""
    meter = ActivityMeter(PID)
    feed_polling(meter, [20] * 10, [0] * 10, inode=2)
    assert meter.idle_s == 0.0


@pytest.mark.parametrize(
    ("wakes", "is_polling"),
    [
        pytest.param([1, 0, 0, 0, 0, 0], False, id="goes to sleep for good"),
        pytest.param([0, 0, 0, 0, 1, 0, 0], True, id="was woken some seconds ago"),
        pytest.param([0, 0, 0, 0, 1], True, id="was woken just now"),
    ],
)
def test_thread_that_was_woken_while_it_was_idle_polls(wakes: list[int], is_polling: bool) -> None:
    """A loop that sleeps for seconds polls also between its wakes, for as long as the rank is idle."""
    meter = ActivityMeter(PID)
    for second in range(len(wakes) + 1):
        meter.add(build_sample(float(second), wakes=sum(wakes[:second])))
    assert (meter.is_polling, meter.idle_s) == (is_polling, len(wakes))
    meter.add(build_sample(len(wakes) + 1.0, wakes=sum(wakes), minor_faults={PID: 100_000}))
    assert meter.is_polling is False


def test_time_without_samples_is_not_idle() -> None:
    """A recorder that could not run for many seconds has not observed the rank."""
    meter = ActivityMeter(PID)
    feed(meter, False, False, interval_s=6.0)
    assert meter.idle_s == 0.0
