"""What the fake pods of a run print: a line every tenth of a second each, and a good end."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from tests.chaos.space import Object, Space
from tests.cluster.api import ApiError

BEAT = 0.1
HELD = "torchyard.test/waiting"  # the annotation of a pod that does not start
LINES = 40  # of a pod that nobody disturbs
LONG = "x" * 10_000


class Program(threading.Thread):
    """The program in the pods of one run, of every attempt; a pod's lines stand in the file that bears its name.

    Pods that are held start, and those that have said enough end, once they may.
    """

    def __init__(self, space: Space, truth: Path, run: str, may_end: Callable[[Object], bool]) -> None:
        super().__init__(daemon=True, name=f"program-{run}")
        self._space, self._truth, self._run, self._may_end = space, truth, run, may_end
        self._over = threading.Event()
        self._silent: set[str] = set()
        self._last_words = 0
        self._talking = threading.Lock()
        self.printed: dict[str, list[str]] = {}

    def run(self) -> None:
        while not self._over.wait(BEAT):
            for pod in self._space.workers(self._run):
                with self._talking:
                    self._step(pod)

    def stop(self) -> None:
        self._over.set()

    def silence(self, pod: Object) -> None:
        """A pod says nothing any more: what it says while it is struck, no log needs to hold."""
        with self._talking:
            self._silent.add(pod["metadata"]["uid"])

    def pour(self, lines: int) -> None:
        """Each pod prints so many long lines at once, and ends: what its log is at the end of a real job."""
        self._last_words = lines

    def _step(self, pod: Object) -> None:
        about = pod["metadata"]
        if about.get("annotations", {}).get(HELD) and self._may_end(pod):
            with contextlib.suppress(ApiError, OSError):
                self._space.annotate(pod, HELD, "")
        if pod.get("status", {}).get("phase") != "Running" or about.get("deletionTimestamp"):
            return
        if about["uid"] in self._silent:
            return
        lines = self.printed.setdefault(about["name"], [])
        if self._last_words and len(lines) < self._last_words:
            self._print(about["name"], [f"{about['name']} end {each} {LONG}" for each in range(self._last_words)])
        if len(lines) >= LINES and self._may_end(pod):
            with contextlib.suppress(ApiError, OSError):  # an API server that is away is asked again
                self._space.annotate(pod, "torchyard.test/end-now", "0")
                self._silent.add(about["uid"])
            return
        self._print(about["name"], [f"{about['name']} step {len(lines)}"])

    def _print(self, pod: str, lines: list[str]) -> None:
        self.printed[pod] += lines
        with (self._truth / pod).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
