"""An asyncio event loop on a thread of its own, for code that waits for hundreds of connections at once."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_MAX_WORKERS = 4  # threads for what blocks, such as reloading credentials


class LoopThread:
    """One event loop, on a daemon thread that starts with the first call and lives as long as the process.

    Threads. Any thread may call the methods; what they schedule runs on the loop's thread, in the order of the calls.
    Coroutines must not block: `asyncio.to_thread` has `_MAX_WORKERS` threads for what does.

    Errors. RuntimeError if the thread cannot be started now: nothing is scheduled then, and the next call tries again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # guards `_loop`
        self._tasks: set[asyncio.Task[None]] = set()  # the loop holds only weak references; used by its thread alone

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop's thread, soon."""
        self._start().call_soon_threadsafe(function)

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end on the loop's thread. It is closed if the thread cannot be started."""
        try:
            loop = self._start()
        except RuntimeError:
            coroutine.close()
            raise
        loop.call_soon_threadsafe(self._add_task, coroutine)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                loop.set_default_executor(ThreadPoolExecutor(_MAX_WORKERS, f"{self._name}-worker"))
                try:
                    threading.Thread(target=loop.run_forever, daemon=True, name=self._name).start()
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop
            return self._loop

    def _add_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
