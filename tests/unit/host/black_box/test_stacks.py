"""TrainingThread: which thread of a rank shows what it does, and where that thread is."""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torchyard.common.project_root import ROOT
from torchyard.host.black_box.stacks import TrainingThread

PRINT_STACK = """
import threading, time
from torchyard.host.black_box.stacks import TrainingThread
training_thread = TrainingThread()
def report():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        training_thread.locate()
        stack = training_thread.read(lambda frames: None)
        if stack.is_exiting or any(frame["function"] == AWAITED for frame in stack.frames):
            break
        time.sleep(0.05)
    lines = [frame["line"] for frame in stack.frames if "prog" in frame["file"]]
    print(stack.is_exiting, stack.frames[0]["function"], *lines, flush=True)
    import os
    os._exit(0)
AWAITED = "nothing"
threading.Thread(target=report, daemon=True).start()
"""


def find_nothing(frames: object) -> Any:
    return None


def call_in_recorder(function: Callable[..., Any], *args: object) -> Any:
    """The result of a function that the recorder's thread calls, while this one waits."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args).result()


@pytest.fixture
def training_thread() -> TrainingThread:
    return TrainingThread()


def run_program(folder: Path, code: str) -> str:
    """What a program prints whose recorder's thread reports the stack once."""
    path = folder / "prog.py"
    path.write_text(PRINT_STACK + code)
    argv = [sys.executable, str(path)]
    completed = subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": str(ROOT)}
    )
    return completed.stdout.strip()


def find_line(code: str, text: str) -> int:
    return (PRINT_STACK + code).splitlines().index(text) + 1


def test_exception_beside_a_thread_is_the_place(tmp_path: Path) -> None:
    """A main thread that has failed, and waits for another thread, is where its exception was raised."""
    code = """
threading.Thread(target=threading.Event().wait).start()
def load():
    raise OSError("no shard")
load()
"""
    lines = [find_line(code, '    raise OSError("no shard")'), find_line(code, "load()")]
    assert run_program(tmp_path, code) == f"True load {lines[0]} {lines[1]}"


def test_thread_that_the_exit_waits_for_is_the_place(tmp_path: Path) -> None:
    """A main thread that has come to its end, and waits for another thread, is where that thread is."""
    code = """
def serve():
    time.sleep(60)
threading.Thread(target=serve).start()
"""
    assert run_program(tmp_path, code) == f"True serve {find_line(code, '    time.sleep(60)')}"


def test_training_in_a_thread_is_the_place(tmp_path: Path) -> None:
    """If the main thread waits for a thread that was seen in a collective, that thread shows what the rank does."""
    (tmp_path / "distributed_c10d.py").write_text("import time\ndef all_reduce():\n    time.sleep(1)\n")
    code = """
AWAITED = "stuck"
import distributed_c10d
def stuck():
    time.sleep(60)
def train():
    distributed_c10d.all_reduce()
    stuck()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
    lines = [find_line(code, "    time.sleep(60)"), find_line(code, "    stuck()")]
    assert run_program(tmp_path, code) == f"False stuck {lines[0]} {lines[1]}"


def test_hook_in_the_thread_of_a_backward_pass_is_the_place(tmp_path: Path) -> None:
    """With a GPU, torch runs hooks in a thread of its own, which Python does not list, while the main thread waits."""
    folder = tmp_path / "torch" / "autograd"
    folder.mkdir(parents=True)
    (folder / "graph.py").write_text("import time\ndef _engine_run_backward():\n    time.sleep(60)\n")
    code = f"""
AWAITED = "scale_gradient"
import _thread, sys
sys.path.insert(0, {str(folder)!r})
import graph
def scale_gradient():
    time.sleep(60)
_thread.start_new_thread(scale_gradient, ())
graph._engine_run_backward()
"""
    lines = [find_line(code, "    time.sleep(60)"), find_line(code, "graph._engine_run_backward()")]
    assert run_program(tmp_path, code) == f"False scale_gradient {lines[0]} {lines[1]}"


@pytest.mark.parametrize(
    ("file", "function", "has_device_thread"),
    [
        ("torch/cuda/streams.py", "synchronize", True),
        ("torch/cuda/__init__.py", "_lazy_init", False),
        ("torch/utils/data/dataloader.py", "synchronize", False),
    ],
)
def test_other_thread_that_waits_for_a_device(
    training_thread: TrainingThread, file: str, function: str, *, has_device_thread: bool
) -> None:
    """A thread beside the one that trains may wait for the GPU; the first use of the device is no such wait."""
    scope: dict[str, Any] = {}
    exec(compile(f"def {function}(wait):\n    wait.acquire()", f"/site-packages/{file}", "exec"), scope)
    wait = threading.Lock()
    wait.acquire()
    thread = threading.Thread(target=scope[function], args=(wait,))
    thread.start()
    try:
        stack = call_in_recorder(training_thread.read, find_nothing)
    finally:
        wait.release()
        thread.join()
    assert stack.has_device_thread is has_device_thread


@pytest.fixture
def waiting_thread() -> Iterator[threading.Thread]:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    yield thread
    event.set()
    thread.join()


def test_other_threads_are_not_the_place(training_thread: TrainingThread, waiting_thread: threading.Thread) -> None:
    """The main thread shows what a rank does, whatever its other threads do."""
    position = call_in_recorder(training_thread.locate)
    assert position.thread == threading.main_thread().native_id
    assert waiting_thread.is_alive()


def test_no_frame_is_kept(training_thread: TrainingThread) -> None:
    """The local variables of the program are freed when it frees them, although its stack was read."""

    class Weights:
        pass

    freed: list[int] = []

    def step() -> None:
        weights = Weights()
        weakref.finalize(weights, freed.append, 1)
        call_in_recorder(training_thread.locate)
        call_in_recorder(training_thread.read, find_nothing)

    gc.disable()
    try:
        step()
        assert freed == [1]
    finally:
        gc.enable()


PRINT_END = """
import sys, threading, time
from torchyard.host.black_box.stacks import TrainingThread
training_thread = TrainingThread()
def report():
    while not (training_thread.has_ended_by_exception() or is_over.is_set()):
        time.sleep(0.01)
    print(training_thread.has_ended_by_exception(), flush=True)
is_over = threading.Event()
recorder = threading.Thread(target=report, daemon=True)
recorder.start()
"""
WAIT_AT_EXIT = """
import atexit
atexit.register(recorder.join, 20)
"""
STORE_LAST_TRACEBACK = """
def fail():
    raise ValueError("bad sample")
try:
    {call}
except ValueError as error:
    sys.last_traceback = error.__traceback__{suffix}
"""


def run_to_end(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A program with a thread that prints whether an exception has ended the program, as soon as one has."""
    path = folder / "prog.py"
    path.write_text(PRINT_END + code)
    argv = [sys.executable, *options] if options else [sys.executable, str(path)]
    env = {"PYTHONPATH": f"{ROOT}:{folder}"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.mark.parametrize("options", [(), ("-m", "prog")])
@pytest.mark.parametrize("code", ["raise ValueError('bad sample')", "import a_module_that_does_not_exist"])
def test_uncaught_exception_is_seen_before_the_process_ends(
    tmp_path: Path, code: str, options: tuple[str, ...]
) -> None:
    """The recorder sees an exception that has ended the program while its exit functions run; the hook is Python's."""
    check_hook = "assert sys.excepthook is sys.__excepthook__\n"
    completed = run_to_end(tmp_path, WAIT_AT_EXIT + check_hook + code, *options)
    assert (completed.stdout, completed.returncode) == ("True\n", 1)


def test_uncaught_exception_is_seen_beside_a_hook_of_the_program(tmp_path: Path) -> None:
    """A program's own hook runs alone, and the exception is seen already while it runs."""
    code = "sys.excepthook = lambda *args: recorder.join(20) or print('reported')\nraise ValueError('bad sample')"
    completed = run_to_end(tmp_path, code)
    assert (completed.stdout, completed.stderr) == ("True\nreported\n", "")


@pytest.mark.parametrize(
    "code",
    [
        STORE_LAST_TRACEBACK.format(call="fail()", suffix=""),
        STORE_LAST_TRACEBACK.format(call="fail()", suffix=".tb_next"),
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())",
        "import ctypes\nctypes.pythonapi.PyRun_SimpleString(b'1 / 0')\nassert sys.last_traceback",
    ],
)
def test_caught_exception_does_not_end_the_program(tmp_path: Path, code: str) -> None:
    """An exception that the program has caught, and printed or stored as Python does, is not its end."""
    completed = run_to_end(tmp_path, code + "\nis_over.set()\nrecorder.join()\n")
    assert (completed.stdout, completed.returncode) == ("False\n", 0)


@pytest.mark.parametrize("code", ["", "sys.exit(1)", "sys.exit('no data')"])
def test_exit_is_not_an_exception(tmp_path: Path, code: str) -> None:
    """A program that reaches its end, or calls sys.exit, has no exception that nothing catches."""
    completed = run_to_end(tmp_path, WAIT_AT_EXIT + "atexit.register(is_over.set)\n" + code)
    assert completed.stdout == "False\n"


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collector_stays_as_it_was(training_thread: TrainingThread, enabled: bool) -> None:
    """Reading the stacks leaves the garbage collector enabled or disabled, as it was."""
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        call_in_recorder(training_thread.locate)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
