"""Find the thread of a rank that trains, its Python stack, and the line of the user's code in which it is.

No function returns a frame, because it would keep the program's local variables alive.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

Json = Any
CodeLine = Tuple[str, int]  # the file and the line
_MAX_FRAMES = 24
_MAX_SEARCHED_FRAMES = 100
_COLLECTIVE_FILE = "distributed_c10d.py"
_BACKWARD_CODE = "/torch/autograd/"
# Code that waits for a GPU or another accelerator.
_DEVICE_CODE = re.compile(
    r"/torch/(?:cuda|xpu|mps|mtia|accelerator)/|/(?:torch_npu|torch_xla|habana_frameworks|cupy|jax)/|/numba/cuda/"
)
_DEVICE_SETUP = "_lazy_init"  # the first use of the device: nothing works there yet
_THREADING_FILE = threading.__file__
_MAIN_MODULES = ("__main__", "runpy")  # with the outermost frame of a program: as a file, and with `-m`
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/", os.path.dirname(os.__file__) + "/", "<frozen", "<string>")


class Position(NamedTuple):
    """The thread that trains, by its number in the kernel, and the innermost line of the user's code in its stack."""

    thread: int
    line: CodeLine


class Stack(NamedTuple):
    """The stack of the thread that trains.

    frames: as JSON, the innermost first; of the exception, if one has ended the program.
    call: what `find_call` has found in its frames.
    is_exiting: whether the main thread has ended, and waits for the other threads.
    has_device_thread: whether another thread is in a call that waits for a GPU or another accelerator.
    """

    frames: List[Json]
    call: Json
    is_exiting: bool
    has_device_thread: bool


class TrainingThread:
    """Read the thread that shows what a rank does: the main thread, or the one that it has started to train.

    Another thread counts only if it was seen in a collective while the main thread waited for its end; therefore
    `locate` is called at each tick. Both methods are called by the recorder's own thread.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread()
        self._seen_in_collective: Optional[int] = None

    def locate(self) -> Position:
        """Where the thread that trains is now."""
        frames = _list_threads()
        thread = self._choose(frames)
        return Position(thread.native_id or 0, _find_code_line(frames.get(thread.ident or 0)))

    def read(self, find_call: Callable[[Iterable[Any]], Json]) -> Stack:
        """The stack of the thread that trains. `find_call` reads a call of torch.distributed from its frames."""
        frames = _list_threads()
        trainer = self._choose(frames).ident or 0
        frame = frames.get(trainer)
        is_exiting = _is_waiting_in("_shutdown", frames.get(self._main.ident or 0))
        chain = [*_iterate_frames(_find_backward_frame(frame, frames)), *_iterate_frames(frame)]
        failed_frames = _list_failed_frames() if is_exiting else []
        running_frames = [_describe_frame(outer_frame, outer_frame.f_lineno) for outer_frame in chain]
        stack = failed_frames or running_frames
        frames.pop(trainer, None)
        has_device_thread = any(map(_is_in_device_code, frames.values()))
        return Stack(stack[:_MAX_FRAMES], find_call(chain), is_exiting, has_device_thread)

    def has_ended_by_exception(self) -> bool:
        """Whether an exception has left the program's main module, which then does not run any more: Python prints it.

        Python keeps it in `sys.last_traceback`, as it does one that a library's C code prints although the program
        goes on: only that of the program starts in its outermost frame. A hook in `sys.excepthook` would be seen
        by libraries that check whether it is Python's own.
        """
        traceback = getattr(sys, "last_traceback", None)
        if traceback is None:
            return False
        program_frame = traceback.tb_frame
        if program_frame.f_back is not None or program_frame.f_globals.get("__name__") not in _MAIN_MODULES:
            return False
        frame = _list_threads().get(self._main.ident or 0)
        while frame is not None:
            if frame is program_frame:
                return False
            frame = frame.f_back
        return True

    def _choose(self, frames: Dict[int, Any]) -> threading.Thread:
        main_frame = frames.get(self._main.ident or 0)
        if _is_waiting_in("_shutdown", main_frame):
            for thread in threading.enumerate():
                is_awaited = not thread.daemon and thread is not self._main
                if is_awaited and _has_user_code(frames.get(thread.ident or 0)):
                    return thread
        elif _is_waiting_in("join", main_frame):
            for ident, frame in frames.items():
                if ident != self._main.ident and _is_in_collective(frame):
                    self._seen_in_collective = ident
            for thread in threading.enumerate():
                if thread.ident == self._seen_in_collective:
                    return thread
        return self._main


def _list_threads() -> Dict[int, Any]:
    """The innermost frame of each other thread: that of this one would refer to the dict, and live until a collection.

    Before 3.12 a collection inside this call could run Python code while the interpreter's list of threads is locked,
    and the next thread to end would lock up the process (CPython issue 106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
    frames.pop(threading.get_ident(), None)
    return frames


def _find_backward_frame(frame: Any, frames: Dict[int, Any]) -> Any:
    """The innermost frame of torch's own thread that runs a backward pass on a GPU, if `frame` waits for that pass.

    The thread has Python frames only while a hook or a function of Python runs in it; None if there is none.
    """
    if frame is None or _BACKWARD_CODE not in frame.f_code.co_filename:
        return None
    # Python has a dummy for a thread of C++ that has asked for its name, as logging does.
    python_threads = {thread.ident for thread in threading.enumerate() if type(thread).__name__ != "_DummyThread"}
    for ident, other_frame in frames.items():
        if ident not in python_threads:
            return other_frame
    return None


def is_device_wait(file: str, function: str) -> bool:
    """Whether the innermost frame of a thread, by its file and its function, waits for a device that may work."""
    return function != _DEVICE_SETUP and _DEVICE_CODE.search(file) is not None


def _is_in_device_code(frame: Any) -> bool:
    return is_device_wait(frame.f_code.co_filename, frame.f_code.co_name)


def _list_failed_frames() -> List[Json]:
    """Where the exception was raised that has ended the program, the innermost frame first; [] if none has."""
    frames: List[Json] = []
    traceback = getattr(sys, "last_traceback", None)
    while traceback is not None:
        frames.insert(0, _describe_frame(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def _find_code_line(frame: Any) -> CodeLine:
    """The innermost line of the user's code, or else of any code."""
    for outer_frame in _iterate_frames(frame):
        if _is_user_code(outer_frame):
            return outer_frame.f_code.co_filename, outer_frame.f_lineno or 0
    return (frame.f_code.co_filename, frame.f_lineno or 0) if frame is not None else ("", 0)


def _is_waiting_in(function: str, frame: Any) -> bool:
    """Whether a thread is in this function of Python's `threading`, and not in code that it has called."""
    for outer_frame in _iterate_frames(frame):
        if outer_frame.f_code.co_filename != _THREADING_FILE:
            return False
        if outer_frame.f_code.co_name == function:
            return True
    return False


def _is_in_collective(frame: Any) -> bool:
    return any(outer_frame.f_code.co_filename.endswith(_COLLECTIVE_FILE) for outer_frame in _iterate_frames(frame))


def _has_user_code(frame: Any) -> bool:
    return any(map(_is_user_code, _iterate_frames(frame)))


def _is_user_code(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return not any(folder in file for folder in _LIBRARY_FOLDERS)


def _iterate_frames(frame: Any) -> Iterator[Any]:
    """A frame and those that have called it."""
    for _ in range(_MAX_SEARCHED_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _describe_frame(frame: Any, line: Optional[int]) -> Json:
    return {"function": frame.f_code.co_name, "file": frame.f_code.co_filename[-120:], "line": line or 0}
