"""An event loop on a thread of its own: what it runs, and a thread that cannot be started."""

import threading
from collections.abc import Callable

import pytest

from torchyard.common.event_loop import LoopThread


def test_calls_and_tasks_run_in_order_on_one_thread() -> None:
    """Functions and coroutines run on the loop's own thread, in the order of the calls."""
    loop_thread = LoopThread("test-loop")
    names: list[str] = []
    done = threading.Event()

    def note() -> None:
        names.append(threading.current_thread().name)

    async def note_later() -> None:
        note()
        done.set()

    loop_thread.call(note)
    loop_thread.start_task(note_later())
    assert done.wait(10)
    assert names == ["test-loop", "test-loop"]


def test_thread_that_cannot_start_is_started_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the error is raised and nothing is scheduled; the next call tries again."""
    loop_thread = LoopThread("test-loop")
    done = threading.Event()

    async def finish() -> None:
        done.set()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    original_start: Callable[[threading.Thread], None] = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        loop_thread.start_task(finish())
    with pytest.raises(RuntimeError):
        loop_thread.call(done.set)
    assert not done.is_set()
    monkeypatch.setattr(threading.Thread, "start", original_start)
    loop_thread.start_task(finish())
    assert done.wait(10)
