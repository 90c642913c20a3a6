"""`torchyard logs RUN`: the output of a rank or a node, all of it so far, or until the run is over."""

import gc
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from torchyard.cli.documents import LogsDocument, print_document
from torchyard.cli.find import find_run, is_started_here, report_missing_logs
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.common.local_errors import LocalErrorGuard
from torchyard.model.errors import TorchyardError
from torchyard.model.fabric import FabricVerdict
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.steps.log_reader import read_rank_zero
from torchyard.steps.rank_output import LogSelection, OutputFollower, RankLayout, check_selection, read_output

_POLL_INTERVAL_S = 0.2
_STATE_INTERVAL_S = 1.0  # between two readings whether the run is over
_FOLLOW_HINT = (
    "follow it there, or with `--cluster`, which reads the pods of a run in a cluster; the logs of a run on hosts are "
    "on the machine of its launcher until its job has ended"
)


def show_logs(name: str, selection: LogSelection, *, is_following: bool) -> int:
    """Print the selected lines of a run's last attempt, and on stderr the network that was used.

    is_following: until the run is over, also the lines of later attempts; or until Ctrl-C, which is raised as
        KeyboardInterrupt.

    Returns 0; 1 if the run has no launcher and no lease any more, so that nobody will end it. Errors as in `find_run`;
    SelectionError if the job has no such node or rank.
    """
    local_folder = RunFolder(runs_folder() / name)
    if is_following and is_started_here(local_folder):
        return _follow_folder(local_folder, selection)
    found_run = find_run(name)
    folder = found_run.folder
    record = folder.read_record()
    if is_following and not record.is_over:
        host = record.last_start.get("host", "another machine")
        raise TorchyardError(f"run {name} has its logs on {host}: {_FOLLOW_HINT}")
    report_missing_logs(found_run)
    line_count = print_lines(_read_lines(folder, selection))
    report_missing_rank(name, selection, line_count)
    _report_network(folder)
    return 0


def show_logs_as_json(name: str, selection: LogSelection) -> int:
    """Print the selected lines of a run's last attempt as one document. Errors as in `show_logs`."""
    found_run = find_run(name)
    report_missing_logs(found_run)
    folder = found_run.folder
    attempt = folder.attempts()[-1]
    lines = tuple(_read_lines(folder, selection))
    print_document(LogsDocument(run=folder.name, attempt=attempt, lines=lines, fabric=_read_network(folder)))
    return 0


def _read_lines(folder: RunFolder, selection: LogSelection) -> Iterable[str]:
    """The selected lines of the last attempt. SelectionError if the job has no such node or rank."""
    plan = folder.plans()[-1]
    check_selection(plan.nodes, selection, _get_layout(folder))
    if selection == LogSelection():
        return read_rank_zero(plan)
    return read_output(plan.nodes, _get_layout(folder), selection)


def report_missing_rank(name: str, selection: LogSelection, line_count: int) -> None:
    """Report on stderr that a rank has printed nothing, which may be because the job has no such rank."""
    if not line_count and selection.node is None and selection.rank:
        print(f"no line of rank {selection.rank} is in the logs of {name}", file=sys.stderr)


def print_lines(lines: Iterable[str]) -> int:
    """Print lines, without control codes on a terminal: a file or a pipe gets every byte. Returns how many they are."""
    is_terminal = sys.stdout.isatty()
    count = 0
    for text in lines:
        print(strip_control_codes(text) if is_terminal else text)
        count += 1
    if count:
        sys.stdout.flush()
    return count


class FollowedRun(Protocol):
    """A run whose logs grow.

    name: of the run.
    attempt: the last one that has logs; 0 if none has.
    paths: of the logs of that attempt, by node; more may follow.
    is_final: no more lines follow those that the logs contain after `update` has set it.
    layout: how to find a rank in them.
    update: read the state again, if it is due. Local errors, and TorchyardError if the run cannot be followed.
    """

    name: str
    attempt: int
    paths: Mapping[str, str]
    is_final: bool
    layout: RankLayout

    def update(self) -> None: ...


def follow_output(run: FollowedRun, selection: LogSelection) -> None:
    """Print the selected lines of the last attempt, and of those that follow, until no more lines follow.

    What cannot be read now does not end it: that is reported, and read again.
    """
    gc.enable()  # disabled for the short verbs (console.py)
    local_errors = LocalErrorGuard()
    follower: OutputFollower | None = None
    attempt = 0
    while True:
        with local_errors.tolerate("read the state of the run"):
            run.update()
        has_news = False
        with local_errors.tolerate("read the logs"):
            has_news = bool(print_lines(follower.read())) if follower else False
            if run.attempt != attempt:
                attempt = run.attempt
                follower = OutputFollower(selection, run.layout)
                has_news = True  # its logs are read before the end
                if attempt > 1:
                    print(f"{run.name}: attempt {attempt}", file=sys.stderr)
            for index, (node, path) in enumerate(run.paths.items()):
                if follower:
                    follower.add_node(node, path, index)
        if run.is_final and not has_news:
            return
        time.sleep(_POLL_INTERVAL_S)


def _follow_folder(folder: RunFolder, selection: LogSelection) -> int:
    """Follow a run of this machine; returns the exit code."""
    run = _FolderRun(folder, selection)
    follow_output(run, selection)
    if run.is_abandoned:
        print(f"{folder.name}: no process owns this run, and its lease has ended", file=sys.stderr)
        return 1
    _report_network(folder)
    end = folder.read_record().find_last("end")
    print(single_line(f"{folder.name}: {end.get('end')}: {end.get('sentence')}"), file=sys.stderr)
    return 0


class _FolderRun:
    """A run of this machine, as `FollowedRun`.

    is_abandoned: no process owns the run, and its job has lost its lease: nobody records an end any more.
    """

    def __init__(self, folder: RunFolder, selection: LogSelection) -> None:
        self.name = folder.name
        self.attempt = 0
        self.paths: Mapping[str, str] = {}
        self.is_final = False
        self.layout = RankLayout("teed")
        self.is_abandoned = False
        self._folder = folder
        self._selection = selection
        self._next_update_at = 0.0  # monotonic seconds

    def update(self) -> None:
        """Errors: FolderError, and SelectionError if the last attempt has no such node or rank."""
        if time.monotonic() < self._next_update_at:
            return
        self._next_update_at = time.monotonic() + _STATE_INTERVAL_S
        is_over = self._folder.read_record().is_over
        self.is_abandoned = not is_over and self._folder.remaining_lease_s() < 0 and not self._folder.is_owned()
        attempts = self._folder.attempts()
        if attempts and attempts[-1] != self.attempt:
            nodes = self._folder.plans()[-1].nodes
            check_selection(nodes, self._selection, _get_layout(self._folder))
            self.layout = _get_layout(self._folder)
            self.paths = nodes
            self.attempt = attempts[-1]
        self.is_final = is_over or self.is_abandoned


def _get_layout(folder: RunFolder) -> RankLayout:
    """How to find a rank in the logs of the last attempt."""
    processes = folder.read_record().last_start.get("processes")
    return RankLayout(folder.plans()[-1].ranks, processes if isinstance(processes, int) else None)


def _read_network(folder: RunFolder) -> FabricVerdict | None:
    """The network of the last attempt; None if it is not known."""
    numbers = folder.attempts()
    ended = folder.ended(numbers[-1]) if numbers else None
    return ended.collected.fabric if ended else None


def _report_network(folder: RunFolder) -> None:
    """Print the verdict on the network of the last attempt, if there is one, on stderr: stdout may be a pipe."""
    fabric = _read_network(folder)
    if fabric:
        print(f"fabric: {fabric.verdict}: {single_line(fabric.sentence)}", file=sys.stderr)
