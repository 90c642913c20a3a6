"""The program of a run's fake pods: each prints a line every tenth of a second, and then succeeds."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from tests.chaos.namespace import ChaosNamespace, Object
from tests.cluster.api import ApiError

INTERVAL_S = 0.1
WAITING_ANNOTATION = "torchyard.test/waiting"  # the annotation that keeps a pod from starting
LINE_COUNT = 40  # that a pod prints without a fault
LONG_TEXT = "x" * 10_000


class Program(threading.Thread):
    """The program in the pods of all attempts of one run; a pod's lines are in the file with its name.

    Once `may_end` allows it, held pods start, and pods that have printed LINE_COUNT lines end. The thread runs until
    `stop`; `_lock` guards the set of silent pods against a step at the same time.
    """

    def __init__(
        self, namespace: ChaosNamespace, truth_folder: Path, run: str, may_end: Callable[[Object], bool]
    ) -> None:
        super().__init__(daemon=True, name=f"program-{run}")
        self._namespace = namespace
        self._truth_folder = truth_folder
        self._run = run
        self._may_end = may_end
        self._stop_event = threading.Event()
        self._silent: set[str] = set()
        self._final_line_count = 0
        self._lock = threading.Lock()
        self.printed: dict[str, list[str]] = {}

    def run(self) -> None:
        while not self._stop_event.wait(INTERVAL_S):
            for pod in self._namespace.list_worker_pods(self._run):
                with self._lock:
                    self._step(pod)

    def stop(self) -> None:
        self._stop_event.set()

    def silence(self, pod: Object) -> None:
        """Stop a pod's output, because no log must contain the lines that it prints while the fault hits it."""
        with self._lock:
            self._silent.add(pod["metadata"]["uid"])

    def print_at_once(self, lines: int) -> None:
        """Let each pod print `lines` long lines at once and end, as at the end of a real job."""
        self._final_line_count = lines

    def _step(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if metadata.get("annotations", {}).get(WAITING_ANNOTATION) and self._may_end(pod):
            with contextlib.suppress(ApiError, OSError):
                self._namespace.annotate(pod, WAITING_ANNOTATION, "")
        if pod.get("status", {}).get("phase") != "Running" or metadata.get("deletionTimestamp"):
            return
        if metadata["uid"] in self._silent:
            return
        lines = self.printed.setdefault(metadata["name"], [])
        if self._final_line_count and len(lines) < self._final_line_count:
            self._print(
                metadata["name"],
                [f"{metadata['name']} end {number} {LONG_TEXT}" for number in range(self._final_line_count)],
            )
        if len(lines) >= LINE_COUNT and self._may_end(pod):
            with contextlib.suppress(ApiError, OSError):  # tried again while the API server is down
                self._namespace.annotate(pod, "torchyard.test/end-now", "0")
                self._silent.add(metadata["uid"])
            return
        self._print(metadata["name"], [f"{metadata['name']} step {len(lines)}"])

    def _print(self, pod: str, lines: list[str]) -> None:
        self.printed[pod] += lines
        with (self._truth_folder / pod).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
