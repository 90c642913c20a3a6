"""The exceptions in the lines of a process: Python's tracebacks, also behind the prefix of a logger."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torchyard.diagnosis.hang.stack_locations import find_user_frame
from torchyard.diagnosis.log_line_parts import LogLinePart, is_harmless
from torchyard.model.hang import Frame

_HEADER = "Traceback (most recent call last)"
_CARRIED_HEADER = "Original "  # before the header, in the message of an exception that carries a traceback
_INDENT_CHARS = ("", " ", "\t", "|", "+", "\u2502", "\u2570")  # of the lines of a traceback, also of one in a box
_MAX_FOREIGN_LINES = 50
_MAX_PREFIX_CHARS = 300  # of a logger
_FRAME = re.compile(r'[\s|]{1,200}File "')
_FRAME_LOCATION = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,7}), in (?P<function>\S{1,200})')
_MAX_TRACEBACK_LINES = 500
_MAX_CALL_LINES = 12  # from the innermost frame to the end of its exception
_WORKER_SIGNAL_CODE = "/torch/utils/data/_utils/signal_handling.py"
_DATA_LOADER = "/torch/utils/data/dataloader.py"
_CHILD_CONNECTION = "/multiprocessing/connection.py"
# Functions that print an exception and go on: Python's thread that sends objects to child processes, of which one has
# ended; its removal of temporary files at exit; its process that counts shared memory; xformers' search for triton.
_SURVIVING_FRAME = re.compile(
    r'/multiprocessing/(?:resource_sharer\.py", line \d+, in _serve|util\.py", line \d+, in _run_finalizers'
    r'|resource_tracker\.py", line \d+, in main)\b'
    r'|\bxformers[/\\]__init__\.py", line \d+, in _is_triton_available\b'
)
_MODULE_FRAME = ", in <module>"
_CHAIN_SENTENCES = ("The above exception was the direct cause", "During handling of the above exception")
# A word of small letters alone is a command, or wandb, before its message, one of capitals a level, or a driver.
_EXCEPTION_NAME = r"(?=\w{0,100}[A-Z.])(?=[\w.]{0,200}[a-z])[A-Za-z_][\w.]{0,200}"
# Also as Ray names the exception that a task raised: RayTaskError(ValueError).
_EXCEPTION = re.compile(rf"{_EXCEPTION_NAME}(?:(?<=Error)\([A-Z]\w{{0,80}}\))?(?::(?!\d)|\s*$)")
_BARE_EXCEPTION = re.compile(_EXCEPTION_NAME + r"(?:Error|Exception|Interrupt)(?:\(\w{1,80}\))?(?::|\s*$)")
# These only report that a child has failed.
_WRAPPER_EXCEPTION = re.compile(
    r"\S{0,200}(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SystemExit)\b"
)
# What torch puts between the line of an exception that it raises for another process or thread, and the traceback of
# the exception there. The number is that of the process within its node.
_CARRIED_TRACEBACK = re.compile(
    r"-- Process (?P<local>\d{1,3}) terminated with the following (?:error|exception):"
    r"|" + re.escape(_CARRIED_HEADER + _HEADER) + "|" + re.escape(_HEADER) + r": \(RANK \d{1,6}\)"
)
# Before the frames and the exception of a task of Ray, without a header of their own.
_RAY_TASK_ERROR = re.compile(r"(?:ray\.exceptions\.)?RayTaskError(?:\(\w{1,80}\))?: .{0,40}\bray::")
# This only reports that a command has failed, such as the one by which a launcher has started a rank.
_COMMAND_FAILED = re.compile(r"(?:subprocess\.)?CalledProcessError: Command ")
# torch's distributed checkpoints raise the last of these in every rank, with a traceback for each rank that failed.
_CARRIER = re.compile(r"\S{1,200}: *(?:$|Caught \S{1,200} in |CheckpointException ranks:)")
# Python's logging or loguru could not write a message: it prints a traceback, and the program goes on.
_LOGGING_ERROR = re.compile(r"--- Logging error (?:in Loguru Handler #\d{1,5} )?---")
_LOGGING_ERROR_END = ("Arguments: ", "--- End of logging error ---")
# Python, asyncio and loggers announce by these an exception that does not end the program: one of another thread, of a
# function that they call at exit, of a task that nothing waits for, of the hook that prints exceptions, of a monitor.
_ASIDE = re.compile(
    r"Exception in thread .{1,200}:\s*$|Error in (?:atexit\._run_exitfuncs|sys\.excepthook):"
    r"|(?:Task|Future) exception was never retrieved|Exception in callback "
    r"|.{0,200}\bWARNING\b.{0,200}\b(?:error|exception):\s*$|\[codecarbon ERROR |COMET ERROR: |Thread \w{1,60}:\s*$"
)
_THREAD_FRAME = re.compile(r'/threading\.py", line \d{1,7}, in _bootstrap')  # the first one of another thread
_ASIDE_DETAILS = ("future: ", "handle: ")  # a line between the announcement of asyncio and the traceback
# Before each exception of a group after the first.
_GROUP_SEPARATOR = re.compile(r"\+-{3,40} (?:\d{1,6}|\.\.\.) -{3,40}\s*$")
# Ends the prefix of a line that torch's hook for uncaught exceptions printed, and that another process has logged.
_HOOK_PREFIX = re.compile(r"\[rank\d{1,6}\]: $")
# The lines after an exception's first one that belong to its message, and what ends them.
_MAX_MESSAGE_LINES = 6
_MAX_MESSAGE_DELAY_S = 0.5
_MESSAGE_END = re.compile(
    r"[DIWEF]\d{4} |\[[DIWEF]\d{0,4} |[=-]{5}|\s*$|Exception (?:ignored|in thread)|srun: |slurmstepd: "
    r"|.{0,200}Child process with PID "
)


class RaisedException(NamedTuple):
    """An exception with those that caused it.

    lines: the last line of each traceback of the chain, without a logger's prefix, in the printed order; of an
        exception that carries the traceback of another process or thread, only the last line there.
    message: the further lines of the last one's message.
    start: the index of the chain's first line in the log.
    end: the index of its last line in the log.
    is_harmless: Python ignored it, or reported it and went on, or a logger reported it below the level of an error.
    is_aside: the program could go on after it, as after one of another thread, and may have ended because of it.
    has_traceback: False for a line that only looks like an exception.
    """

    lines: list[LogLinePart]
    message: list[LogLinePart]
    start: int
    end: int
    is_harmless: bool
    has_traceback: bool
    is_aside: bool = False


class ProcessLines(NamedTuple):
    """The lines of a process, apart.

    exceptions: those with a traceback or, if there are none that explain anything, the lines that look like one.
    other: the index of each line that is not part of a traceback, or that only reports there how a child ended.
    """

    exceptions: list[RaisedException]
    other: list[int]


def find_raising_frame(lines: Sequence[LogLinePart], end: int) -> Frame | None:
    """The innermost frame of the program in a traceback; None if all are those of libraries, or there is no traceback.

    `end`: the index of its last line, with the exception. Of a chain, later tracebacks count if this one has no frame
    of the program. An exception that torch's handler of SIGCHLD raises has no place: the program may be anywhere.
    """
    frames: list[Frame] = []
    for line in reversed(lines[max(end - _MAX_TRACEBACK_LINES, 0) : end]):
        if _HEADER in line.text:
            break
        frames += _parse_frame(line)
    else:
        return None
    if any(_WORKER_SIGNAL_CODE in frame.file for frame in frames):
        return None
    return find_user_frame(frames) or find_user_frame(_list_later_frames(lines, end))


def find_raising_call(lines: Sequence[LogLinePart], exception: RaisedException) -> str:
    """The innermost frame of an exception and its source, as they are printed, on one line; "" without a frame."""
    call: list[str] = []
    for line in reversed(lines[exception.start : exception.end]):
        call.insert(0, line.text.strip())
        if _parse_frame(line):
            return " ".join(call)
        if len(call) == _MAX_CALL_LINES:
            break
    return ""


def is_raised_by_data_worker(lines: Sequence[LogLinePart], exception: RaisedException) -> bool:
    """Whether torch's data loader raised it because the connection to one of its processes broke: no rank was lost."""
    frames: list[Frame] = []
    for line in lines[exception.start : exception.end]:
        frames += _parse_frame(line)
    return bool(frames) and _CHILD_CONNECTION in frames[-1].file and any(_DATA_LOADER in frame.file for frame in frames)


def _list_later_frames(lines: Sequence[LogLinePart], end: int) -> list[Frame]:
    """The frames of the next traceback in the chain of an exception, the innermost first; [] if it is the last one."""
    frames: list[Frame] = []
    is_chained = False
    for line in lines[end + 1 : end + 1 + _MAX_TRACEBACK_LINES]:
        if not is_chained:
            if line.text.startswith(_CHAIN_SENTENCES):
                is_chained = True
            elif line.text.strip():
                break
        elif _parse_frame(line):
            frames = [*_parse_frame(line), *frames]
        elif frames and _EXCEPTION.match(line.text):
            break
    return frames


def _parse_frame(line: LogLinePart) -> list[Frame]:
    """The frame in a line of a traceback; [] if it has none."""
    match = _FRAME_LOCATION.search(line.text)
    return [Frame(file=match["file"], line=int(match["line"]), function=match["function"])] if match else []


class _Chain:
    """The tracebacks of one exception, while they are read.

    is_ignored: Python has announced that it ignores this exception.
    is_before_ignored: the announcement follows this exception, which may be another one.
    """

    def __init__(self, start: int, *, is_harmless: bool, is_ignored: bool, is_aside: bool) -> None:
        self.lines: list[LogLinePart] = []
        self.message: list[LogLinePart] = []
        self.start = start
        self.end = 0
        self.is_harmless = is_harmless
        self.is_ignored = is_ignored
        self.is_aside = is_aside
        self.is_before_ignored = False
        self.has_header = False
        self.has_frame = False
        self.has_module_frame = False
        self.is_carried = False
        self._is_carrier = False
        self._local_rank: int | None = None

    @property
    def may_be_ignored(self) -> bool:
        """Whether another process may have printed that Python ignores an exception: this one reached the program.

        Python ignores exceptions of destructors and callbacks, whose tracebacks do not reach the main module.
        """
        return self.is_ignored and (self.has_module_frame or not self.has_frame)

    def start_carried(self, local_rank: int | None) -> None:
        """The last exception carries the traceback that follows, of the process `local_rank` if that is known."""
        self._is_carrier = True
        self.is_carried = True
        self.has_header = True
        self._local_rank = local_rank

    def add(self, line: LogLinePart) -> None:
        """Add the last line of a traceback, in place of that of the exception that only carries it."""
        if self._is_carrier:
            self.lines.pop()
            self._is_carrier = False
        if line.local_rank is None:
            line = line._replace(local_rank=self._local_rank)
        self.lines.append(line)

    def build(self, *, is_only_one: bool) -> RaisedException | None:
        """The exception; None if it only reports that a child has failed, or if its last line is missing.

        `is_only_one`: no other exception can be the failure.
        """
        lines = [line for line in self.lines if not _WRAPPER_EXCEPTION.match(line.text)]
        if not lines:
            return None
        is_harmless = self.is_harmless or (self.is_ignored and not (self.may_be_ignored and is_only_one))
        return RaisedException(
            lines, self.message, self.start, self.end, is_harmless, has_traceback=True, is_aside=self.is_aside
        )


class _TracebackReader:
    """Read the lines of a process one by one; `chains` then has its exceptions and `other` all other lines."""

    def __init__(self) -> None:
        self.chains: list[_Chain] = []
        self.other: list[int] = []
        self._prefix: re.Pattern[str] | None = None  # of the logger that prints the current traceback
        self._chain: _Chain | None = None
        self._in_traceback = False
        self._foreign_lines = 0  # in the current traceback, printed by other processes
        self._in_message = False
        self._is_chained = False  # a sentence has announced that the next traceback belongs to this chain
        self._is_ignored = False  # Python has announced that the next traceback is of an exception that it ignores
        self._is_aside = False  # the next traceback is announced as one after which the program can go on
        self._is_relayed = False  # the header of the current traceback was logged with the prefix of torch's hook
        self._in_logging_error = False

    def process(self, index: int, line: LogLinePart) -> None:
        """Read the next line of the process."""
        text = self._strip_prefix(line.text)
        if self._in_logging_error or _LOGGING_ERROR.search(text):
            self._in_logging_error = not text.startswith(_LOGGING_ERROR_END)
        elif carried := _CARRIED_TRACEBACK.match(text):
            self._start_carried(index, line, carried)
        elif _HEADER in text or _FRAME.match(text):
            self._process_frame(index, line)
        elif text.startswith(_CHAIN_SENTENCES) or _GROUP_SEPARATOR.search(text):
            self._is_chained = True
        elif self._in_traceback:
            self._process_traceback_line(index, line, text)
        else:
            self.other.append(index)
            self._process_message_line(index, line, text)

    def _strip_prefix(self, text: str) -> str:
        """The line without the prefix of a logger: what precedes the traceback's header, with other digits."""
        header = text.find(_HEADER)
        if 0 <= header <= _MAX_PREFIX_CHARS:
            prefix = text[:header].removesuffix(_CARRIED_HEADER)
            escaped = re.sub(r"\d+", r"\\d+", re.escape(prefix.rstrip()))
            indent = re.escape(prefix[len(prefix.rstrip()) :])
            self._prefix = re.compile(f"{escaped}{indent}") if prefix else None
        match = self._prefix.match(text) if self._prefix else None
        return text[match.end() :] if match else text

    def _start_carried(self, index: int, line: LogLinePart, match: re.Match[str]) -> None:
        """Read the line that announces the traceback that the last exception carries, or its header."""
        chain = self._chain
        if chain and chain.lines and not self._in_traceback:
            if _CARRIER.match(chain.lines[-1].text):
                chain.start_carried(int(match["local"]) if match["local"] else None)
                self._is_chained = True
            elif chain.is_carried:  # the traceback of the next rank
                self._is_chained = True
        if match["local"] is None:
            self._process_frame(index, line)

    def _process_frame(self, index: int, line: LogLinePart) -> None:
        """Read a traceback's header, or one of its frames."""
        prefix, header, _ = line.text.partition(_HEADER)
        if self._chain is None or not (self._in_traceback or self._is_chained):
            is_logged_below_error = bool(header) and is_harmless(prefix)
            self._chain = _Chain(
                index, is_harmless=is_logged_below_error, is_ignored=self._is_ignored, is_aside=self._is_aside
            )
            self._is_relayed = bool(_HOOK_PREFIX.search(prefix))
            self.chains.append(self._chain)
        assert self._chain
        self._chain.has_header = self._chain.has_header or bool(header)
        if not header and not self._chain.has_frame:
            self._chain.has_frame = True
            if self._is_relayed and self._prefix and self._prefix.match(line.text):
                # A logger that prints each line of the hook: the exception ended the process that raised it.
                self._chain.is_harmless = False
            self._chain.is_harmless = self._chain.is_harmless or bool(_SURVIVING_FRAME.search(line.text))
            self._chain.is_aside = self._chain.is_aside or bool(_THREAD_FRAME.search(line.text))
        self._chain.has_module_frame = self._chain.has_module_frame or line.text.rstrip().endswith(_MODULE_FRAME)
        self._in_traceback = True
        self._foreign_lines = 0
        self._is_chained = False
        self._is_ignored = False
        self._is_aside = False

    def _process_traceback_line(self, index: int, line: LogLinePart, text: str) -> None:
        """Read a line after a frame: its source, the exception itself, or a line of another process."""
        assert self._chain
        # A stack without a header may be printed by a warning, so that no exception follows.
        exception_pattern = _EXCEPTION if self._chain.has_header else _BARE_EXCEPTION
        if exception_pattern.match(text):
            if _WRAPPER_EXCEPTION.match(text):
                self.other.append(index)  # it may name the signal that ended the child
            self._chain.add(line._replace(text=text))
            self._chain.message = []
            self._chain.end = index
            self._in_traceback = False
            self._in_message = True
            if _RAY_TASK_ERROR.match(text):
                self._chain.start_carried(None)
                self._is_chained = True
        elif text[:1] not in _INDENT_CHARS:
            self.other.append(index)
            self._foreign_lines += 1
            self._in_traceback = self._foreign_lines <= _MAX_FOREIGN_LINES

    def _process_message_line(self, index: int, line: LogLinePart, text: str) -> None:
        """Read a line outside of tracebacks: it may continue the message of the exception before it."""
        if text.strip():
            self._is_ignored = text.startswith("Exception ignored")
            is_detail = self._is_aside and text.startswith(_ASIDE_DETAILS)
            self._is_aside = is_detail or bool(_ASIDE.match(text))
        chain = self._chain
        if not self._in_message or chain is None:
            return
        chain.is_before_ignored = chain.is_before_ignored or self._is_ignored
        is_late = line.timestamp - chain.lines[-1].timestamp > _MAX_MESSAGE_DELAY_S
        if is_late or _MESSAGE_END.match(text) or len(chain.message) >= _MAX_MESSAGE_LINES:
            self._in_message = False
        else:
            chain.message.append(line._replace(text=text))
            chain.end = index


def split_lines(lines: Sequence[LogLinePart]) -> ProcessLines:
    """The exceptions of a process, and its other lines."""
    reader = _TracebackReader()
    for index, line in enumerate(lines):
        reader.process(index, line)
    for chain, next_chain in pairwise(reader.chains):
        # Cython prints the traceback of an exception that is ignored before the announcement, and again after it.
        is_same = bool(chain.lines) and [line.text for line in chain.lines] == [line.text for line in next_chain.lines]
        chain.is_ignored = chain.is_ignored or (chain.is_before_ignored and next_chain.is_ignored and is_same)
    exceptions: list[RaisedException] = []
    if any(chain.lines for chain in reader.chains):
        is_only_one = all(chain.is_ignored or not chain.build(is_only_one=False) for chain in reader.chains)
        built = [chain.build(is_only_one=is_only_one) for chain in reader.chains]
        exceptions = [exception for exception in built if exception]
        may_be_others = (
            exception.is_aside or exception.is_harmless or _COMMAND_FAILED.match(exception.lines[-1].text)
            for exception in exceptions
        )
        if not exceptions or not all(may_be_others):
            return ProcessLines(exceptions, reader.other)
    bare_exceptions = []
    for index in reader.other:
        text = lines[index].text
        if _BARE_EXCEPTION.match(text) and not _WRAPPER_EXCEPTION.match(text):
            message = list(lines[index + 1 : index + 2]) if text.rstrip().endswith(":") else []
            end = index + len(message)
            exception = RaisedException([lines[index]], message, index, end, is_harmless(text), has_traceback=False)
            bare_exceptions.append(exception)
    return ProcessLines([*bare_exceptions, *exceptions], reader.other)
