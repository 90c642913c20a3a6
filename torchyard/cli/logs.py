"""`torchyard logs RUN`: the output of a rank or a node, all of it so far, or until the run is over."""

import gc
import sys
import time
from collections.abc import Iterable

from torchyard.archive.store import open_store
from torchyard.cli.find import build_no_run_error, find_run, is_started_here
from torchyard.common.escaping import single_line, strip_control_codes
from torchyard.common.local_errors import LocalErrorGuard
from torchyard.model.errors import NoRunError, TorchyardError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.steps.log_reader import read_rank_zero
from torchyard.steps.rank_output import LogSelection, OutputFollower, RankLayout, check_selection, read_output

_POLL_INTERVAL_S = 0.2
_STATE_INTERVAL_S = 1.0  # between two readings whether the run is over
_ELSEWHERE_HINT = (
    "`--cluster` reads the pods of a run that another machine started; the logs of a run on hosts are on the machine "
    "of its launcher until its job has ended"
)


def show_logs(name: str, selection: LogSelection, *, is_following: bool) -> int:
    """Print the selected lines of a run's last attempt, and on stderr the network that was used.

    is_following: until the run is over, also the lines of later attempts; or until Ctrl-C, which is raised as
        KeyboardInterrupt.

    Returns 0; 1 if the run has no launcher and no lease any more, so that nobody will end it. Errors as in `find_run`;
    TorchyardError if the job has no such node.
    """
    local_folder = RunFolder(runs_folder() / name)
    if is_following and is_started_here(local_folder):
        return _follow(local_folder, selection)
    try:
        folder = find_run(name)
    except NoRunError as error:
        raise build_no_run_error(name, open_store(), _ELSEWHERE_HINT) from error
    record = folder.read_record()
    if is_following and not record.is_over:
        host = record.last_start.get("host", "another machine")
        raise TorchyardError(f"run {name} has its logs on {host}: follow it there. {_ELSEWHERE_HINT}")
    plan = folder.plans()[-1]
    check_selection(plan.nodes, selection)
    lines = read_output(plan.nodes, _get_layout(folder), selection)
    line_count = print_lines(read_rank_zero(plan) if selection == LogSelection() else lines)
    if not line_count and selection.node is None and selection.rank:
        print(f"no line of rank {selection.rank} is in the logs of {name}", file=sys.stderr)
    _report_network(folder)
    return 0


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


def _get_layout(folder: RunFolder) -> RankLayout:
    """How to find a rank in the logs of the last attempt."""
    processes = folder.read_record().last_start.get("processes")
    return RankLayout(folder.plans()[-1].ranks, processes if isinstance(processes, int) else None)


def _follow(folder: RunFolder, selection: LogSelection) -> int:
    """Print the selected lines of the last attempt, and of those that follow, until the run is over.

    A journal or a log that cannot be read now does not end it: that is reported, and read again.
    """
    gc.enable()  # disabled for the short verbs (console.py)
    local_errors = LocalErrorGuard()
    state = _RunState(folder, local_errors)
    follower: OutputFollower | None = None
    number = 0
    while True:
        state.update()
        has_news = False
        with local_errors.tolerate("read the logs"):
            has_news = bool(print_lines(follower.read())) if follower else False
            numbers = folder.attempts()
            if numbers and numbers[-1] != number:
                follower = _start_follower(folder, selection)
                number = numbers[-1]
                has_news = True  # read its logs before the end
                if number > 1:
                    print(f"{folder.name}: attempt {number}", file=sys.stderr)
        if state.is_final and not has_news:
            break
        time.sleep(_POLL_INTERVAL_S)
    if state.is_abandoned:
        print(f"{folder.name}: no process owns this run, and its lease has ended", file=sys.stderr)
        return 1
    _report_network(folder)
    end = folder.read_record().find_last("end")
    print(single_line(f"{folder.name}: {end.get('end')}: {end.get('sentence')}"), file=sys.stderr)
    return 0


class _RunState:
    """Whether more lines of a run can follow, read again every `_STATE_INTERVAL_S` seconds.

    is_abandoned: no process owns the run, and its job has lost its lease: nobody records an end any more.
    is_final: the run is over, or abandoned. It is read before the logs, so that they are read completely after it.
    """

    def __init__(self, folder: RunFolder, local_errors: LocalErrorGuard) -> None:
        self.is_final = False
        self.is_abandoned = False
        self._folder = folder
        self._local_errors = local_errors
        self._next_update_at = 0.0  # monotonic seconds

    def update(self) -> None:
        if time.monotonic() < self._next_update_at:
            return
        self._next_update_at = time.monotonic() + _STATE_INTERVAL_S
        with self._local_errors.tolerate("read the state of the run"):
            is_over = self._folder.read_record().is_over
            self.is_abandoned = not is_over and self._folder.remaining_lease_s() < 0 and not self._folder.is_owned()
            self.is_final = is_over or self.is_abandoned


def _start_follower(folder: RunFolder, selection: LogSelection) -> OutputFollower:
    """A follower of the last attempt's logs. TorchyardError if it has no such node."""
    plan = folder.plans()[-1]
    check_selection(plan.nodes, selection)
    follower = OutputFollower(selection, _get_layout(folder))
    for index, (node, path) in enumerate(plan.nodes.items()):
        follower.add_node(node, path, index)
    return follower


def _report_network(folder: RunFolder) -> None:
    """Print the verdict on the network of the last attempt, if there is one, on stderr: stdout may be a pipe."""
    numbers = folder.attempts()
    ended = folder.ended(numbers[-1]) if numbers else None
    fabric = ended.collected.fabric if ended else None
    if fabric:
        print(f"fabric: {fabric.verdict}: {single_line(fabric.sentence)}", file=sys.stderr)
