"""What the fake pods of a run do: each prints a line every tenth of a second, and then succeeds."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from tests.chaos.space import Object, Space
from tests.cluster.api import ApiError

BEAT = 0.1
HELD = "torchyard.test/waiting"  # the annotation that keeps a pod from starting
LINES = 40  # that a pod prints without a fault
LONG = "x" * 10_000


class Program(threading.Thread):
    """The program in the pods of all attempts of one run; a pod's lines are in the file with its name.

    Once `may_end` allows it, held pods start, and pods that have printed enough end.
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
        """Let a pod print nothing more: no log needs to have the lines that it prints while the fault hits it."""
        with self._talking:
            self._silent.add(pod["metadata"]["uid"])

    def pour(self, lines: int) -> None:
        """Let each pod print this many long lines at once and end, as at the end of a real job."""
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
            with contextlib.suppress(ApiError, OSError):  # tried again while the API server is down
                self._space.annotate(pod, "torchyard.test/end-now", "0")
                self._silent.add(about["uid"])
            return
        self._print(about["name"], [f"{about['name']} step {len(lines)}"])

    def _print(self, pod: str, lines: list[str]) -> None:
        self.printed[pod] += lines
        with (self._truth / pod).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
