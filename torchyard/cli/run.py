"""A run without a Prefect server: its log is printed on the terminal, its folder is like that of any other run."""

import contextlib
import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from pydantic import ValidationError

from torchyard.archive.store import open_store
from torchyard.assembly import create_runner
from torchyard.cli.documents import BenchmarkDocument, describe_run, print_document
from torchyard.cli.exit_codes import ExitCode, get_run_code
from torchyard.cli.find import build_no_run_error, fetch_run_to_resume, is_run_name
from torchyard.common.escaping import strip_control_codes
from torchyard.common.log import LOGGER_NAME, SafeText, get_log
from torchyard.common.private_files import make_private_folder, write_private_text
from torchyard.common.project_root import is_utf8
from torchyard.model.errors import DetachedError, FolderError, NoReportError, TorchyardError
from torchyard.model.profile import Profile
from torchyard.model.run import EndedRun, Report
from torchyard.pages.report import render_text
from torchyard.run.control import LocalControl
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.next_attempt import check_resume
from torchyard.run.record import RunRecord
from torchyard.run.runner import Runner
from torchyard.steps.descriptors import raise_file_limit

_PROFILE_FILE = "profile.json"  # what `attach` resumes with
_END_POLL_INTERVAL_S = 0.2
_LEVEL_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}  # yellow, red
_END_OF_COLOUR = "\x1b[0m"


def run_profile(profile: Profile, *, is_following: bool, as_json: bool) -> int:
    """Start a new run and own it to its end; return the exit code. `is_following`: as for `run_new`."""
    _, exit_code = run_new(profile, is_following=is_following, as_json=as_json)
    return exit_code


def run_new(profile: Profile, *, is_following: bool = False, as_json: bool) -> tuple[str, int]:
    """Start a new run and own it to its end; return its name and the exit code.

    `is_following`: each line that rank 0 prints is shown too.
    """
    output = _log_to_terminal(as_json=as_json)
    runner = _start_runner(profile, output if is_following else None)
    ended = _execute(runner)
    return runner.folder.name, _report_end(runner, ended, as_json=as_json)


def _start_runner(profile: Profile, rank_zero_output: TextIO | None = None) -> Runner:
    """A runner of a new run, whose profile is saved for `attach`.

    ProfileError if `resume` cannot be continued, FolderError if the runs cannot be stored in their folder.
    """
    check_resume(profile)
    if not is_utf8(runs_folder()):
        raise FolderError(ascii(str(runs_folder())), "its path is not UTF-8")
    run_id = str(uuid.uuid4())
    folder = RunFolder.of(profile, run_id)
    make_private_folder(folder.path)
    write_private_text(folder.path / _PROFILE_FILE, profile.model_dump_json(exclude_unset=True) + "\n")
    return create_runner(profile, run_id, LocalControl(), rank_zero_output=rank_zero_output)


def run_comparison(name: str, overrides: Mapping[str, Any], fabrics: Sequence[str], *, as_json: bool) -> int:
    """Run a profile over each fabric and compare them. Exit code 0 if every run succeeded and printed bandwidths."""
    from torchyard.benchmark import sequence, table

    def run_one(profile: Profile, _: Mapping[str, Any]) -> Report:
        runner = _start_runner(profile)
        _execute(runner)
        report = runner.folder.report()
        if report is None:
            raise NoReportError(runner.folder.name, f"see {runner.folder.path}")
        return report

    _log_to_terminal(as_json=as_json)
    benchmark = sequence.run_benchmark(name, overrides, fabrics, run_one)
    folder = sequence.save_benchmark(benchmark, f"{benchmark.profile}-{benchmark.curves[0].run.rpartition('-')[2]}")
    failure = sequence.find_failure(benchmark)
    if as_json:
        print_document(BenchmarkDocument(benchmark=benchmark, failure=failure, folder=str(folder)))
    else:
        print(table.render_benchmark_text(benchmark))
        print(f"  {folder}")
    if failure:
        print(failure, file=sys.stderr)
    last_code = get_run_code(benchmark.curves[-1].end)
    if last_code is ExitCode.STOPPED:
        return last_code
    return ExitCode.FAILED if failure else ExitCode.SUCCESS


def attach_run(name: str, *, is_following: bool, as_json: bool) -> int:
    """Resume a run whose launcher was lost; a run that has ended only reports its end again.

    `is_following`: each line that rank 0 prints is shown too, from the first one of the attempt on.

    A run of Prefect is not resumed here, but its end is reported as well.

    NoRunError if there is no such run here, TorchyardError if Prefect owns it, FolderError if its profile cannot be
    read.
    """
    fetch_run_to_resume(name)
    folder, record = _open_run(name)
    try:
        profile = Profile.model_validate_json((folder.path / _PROFILE_FILE).read_bytes())
    except FileNotFoundError as error:
        if _is_over_here(record):
            return _report_recorded_end(folder, record, as_json=as_json)
        command = f"prefect flow-run retry {record.run_id}"
        raise TorchyardError(f"run {name} was started by Prefect, which resumes it: use `{command}`") from error
    except ValidationError as error:
        reason = f"{_PROFILE_FILE} cannot be read ({error.errors()[0]['msg']})"
        raise FolderError(str(folder.path), reason, "end its job by hand, then remove the folder") from error
    count = record.count_starts() + 1
    output = _log_to_terminal(as_json=as_json)
    control = LocalControl(count, is_retry_requested=False)
    runner = create_runner(profile, record.run_id, control, rank_zero_output=output if is_following else None)
    return _report_end(runner, _execute(runner), as_json=as_json)


class _OpenedRun(NamedTuple):
    """A run of this machine, and its journal."""

    folder: RunFolder
    record: RunRecord


def _open_run(name: str) -> _OpenedRun:
    """The run of this name; NoRunError if there is no such run here."""
    folder = RunFolder(runs_folder() / name)
    record = folder.read_record() if is_run_name(name) and folder.path.is_dir() else RunRecord(())
    if not record.last_start:
        raise build_no_run_error(name, open_store())
    return _OpenedRun(folder, record)


def _is_over_here(record: RunRecord) -> bool:
    """Whether a run has ended, and nothing of it goes on, here or on another machine."""
    return record.is_over and record.end != "moved"


def _execute(runner: Runner) -> EndedRun:
    """Own a run to its end. The errors of `Runner.run`, with the command that resumes the run as a note."""
    gc.enable()  # disabled for the short verbs (console.py)
    raise_file_limit()
    get_log().info("run %s", runner.folder.name)  # the first steps in a cluster take seconds
    try:
        return runner.run()
    except DetachedError as error:
        error.add_note(f"to resume it: torchyard attach {runner.folder.name}")
        raise


def _report_end(runner: Runner, ended: EndedRun, *, as_json: bool) -> int:
    """Print how a run ended, if the log on the terminal has not done it; return the exit code."""
    if as_json:
        folder = runner.folder
        report = ended.report or folder.report()
        print_document(describe_run(folder.name, runner.profile.name, str(folder.path), ended, report))
    return get_run_code(ended.end)


def stop_run(name: str, *, as_json: bool) -> int:
    """End a run that a process of this machine owns, as Ctrl-C in its terminal does; return 0 once it has ended.

    NoRunError if there is no such run here, TorchyardError if Prefect owns it, or no process is found that does.
    """
    folder, record = _open_run(name)
    if folder.is_owned():
        flow_run = record.last_start.get("flow_run")
        if flow_run:
            raise TorchyardError(f"run {name} belongs to Prefect: use `prefect flow-run cancel {flow_run}`")
        _signal_owner(folder)
        print(f"{name} is asked to stop, and may save its work; waiting for its end", file=sys.stderr, flush=True)
        while folder.is_owned():
            time.sleep(_END_POLL_INTERVAL_S)
        record = folder.read_record()
    if record.end == "moved":
        raise TorchyardError(f"run {name} was taken over by another machine, where it runs now: stop it there")
    if not _is_over_here(record):
        raise TorchyardError(f"no process owns run {name}: `torchyard attach {name}` continues it; then stop that one")
    _report_recorded_end(folder, record, as_json=as_json)
    return ExitCode.SUCCESS


def _signal_owner(folder: RunFolder) -> None:
    """Send SIGTERM to the process that owns a run. TorchyardError if it cannot get it."""
    try:
        is_sent = folder.signal_owner(signal.SIGTERM)
    except PermissionError as error:
        raise TorchyardError(f"the process that owns run {folder.name} is another user's") from error
    if not is_sent and folder.is_owned():
        reason = "another machine or container may own it: stop it there, with Ctrl-C or SIGTERM"
        raise TorchyardError(f"the process that owns run {folder.name} is not found here: {reason}")


def _report_recorded_end(folder: RunFolder, record: RunRecord, *, as_json: bool) -> int:
    """Print how a run has ended, by its folder; return the exit code of a command that has taken it to this end."""
    end = record.find_last("end")
    report = folder.report()
    if as_json:
        profile_name = record.last_start.get("profile") or folder.name.rpartition("-")[0]
        ended = EndedRun(end["end"], end["sentence"], report)
        print_document(describe_run(folder.name, profile_name, str(folder.path), ended, report))
    else:
        print(strip_control_codes(render_text(report) if report else end["sentence"]))
    return get_run_code(end["end"])


class _TerminalFormatter(logging.Formatter):
    """A line with its time and its level, which has a colour if the output is a terminal and NO_COLOR is not set."""

    def __init__(self, output: TextIO) -> None:
        super().__init__("%(asctime)s | %(levelname)-7s | %(message)s", "%H:%M:%S")
        self._has_colours = output.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = _LEVEL_COLOURS.get(record.levelno)
        if not self._has_colours or not colour:
            return text
        return text.replace(record.levelname, f"{colour}{record.levelname}{_END_OF_COLOUR}", 1)


class _TerminalHandler(logging.StreamHandler[TextIO]):
    """Prints the log of a run, which continues if its output fails (a closed pipe, a full disk): stderr reports it."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            with contextlib.suppress(OSError):
                print(f"cannot print the log of the run: {error.strerror}; the run continues", file=sys.stderr)


def _log_to_terminal(*, as_json: bool) -> TextIO:
    """Print the log of runs, on stderr if stdout is for a document; return the output."""
    output = sys.stderr if as_json else sys.stdout
    handler = _TerminalHandler(output)
    handler.setFormatter(_TerminalFormatter(output))
    handler.addFilter(SafeText())
    log = logging.getLogger(LOGGER_NAME)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return output
