"""Parse the lines that a process printed: strip escapes and prefixes, and tell noise from what may show a failure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torchyard.common.log_lines import split_after_progress_bar, split_teed_line
from torchyard.model.run import LogLine

_MAX_END_CHARS = 1000  # kept of each end of a long line
_MAX_LINE_PARTS = 20  # kept of a line of many, joined or with carriage returns: a progress bar may write thousands
# A colour code may lack its first character, or have it in the notation of cat -v, rsyslog or JSON.
_COLOUR_CODE = (
    r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]|\[(?:[01]|22|[39]\d)(?:;\d{1,3}){0,8}m"
    r"|(?:\^\[|#033|\\(?:x1[bB]|033|u001[bB]))\[[\d;]{0,20}m"
)
_ESCAPE = re.compile(_COLOUR_CODE + r"|\x1b\][^\x07]{0,200}\x07|[\x00-\x08\x0b-\x1f\x7f]")
# Prefixes of a process's lines: kubectl, Determined, launchers that print what a process wrote, mpirun, also that of
# SageMaker, Ray and vLLM, docker compose, the journal, torch's hook, torchrun's tee. Open MPI's own messages begin with
# `[host:pid] `, and those of Lightning's main process about the end of another rank with that rank.
_PREFIX = (
    r"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d):? ?|\[pod/\S{1,200}\] ?"
    r"|(?:<\S{0,40}>\s{1,12})?\[\d{4}-\d\d-\d\d[T ][\d:.]{8,20}Z?\] [\da-f]{8} \|\| ?"
    r"|std(?:out|err): ?"
    r"|(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"\[\d{1,5},(?:mpirank:)?(?P<mpi>\d{1,6})(?:,[\w.-]{1,80})?\]<std(?:out|err)>: ?"
    r"|\((?:raylet|\w{1,60}(?:\[[^\]]{0,60}\])?(?:,? [\w.-]{1,30}=[^\s,)]{1,60}){0,4},? pid=\d{1,9})[^)]{0,100}\) ?"
    r"|[A-Za-z][\w.-]{0,60}-\d{1,4} {1,20}\| ?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} [\w./-]{1,60}\[\d{1,9}\]: ?"
    r"|\[[Rr]ank:? ?(?P<rank>\d{1,6})\](?! Child process):? ?"
    r"|\[(?![^\s\]]{0,80}\.(?:py|cc|cpp|cu|h):)(?:(?:[\w.-]{1,80}:|[A-Za-z_][\w.-]{0,80}?)(?P<local>\d{1,3})\]:"
    r"|[A-Za-z][\w.-]{0,80}:(?P<bare>\d{1,3})\](?! \S))"
)
_TASK_PREFIX = r" {0,4}(?P<task>\d{1,5}): "  # of srun -l
_LINE_PREFIX = re.compile(rf"{_TASK_PREFIX}(?=\S)|{_PREFIX}")
# What a process prints that has started the ranks of a node: torchrun and its tee, torch.multiprocessing, Lightning.
_STARTER_LINE = re.compile(
    r"torch[./]distributed[./](?:elastic|launcher|run)\b|\[default\d{1,6}\]:"
    r"|-- Process \d{1,6} terminated with|Child process with PID"
)
# What pdsh, stern or a logger has put before each line of a traceback.
_WORD_START = re.compile(r"(?<![\w.-])(?=\S)")
_MAX_WRAPPER_CHARS = 120
_MAX_TRACEBACK_GAP = 10  # lines between two of a traceback, as several processes may write at the same time
_MAX_WRAPPERS = 20
_MIN_SHARE_WITH_LEVEL = 0.9
_MIN_SHARE_WITH_TASK = 0.5
_SHARE_LINES = 1000
# Information, warnings, what a program tries again, and what it does without. Kubernetes prints `Warning` before events
# and NCCL before errors.
_INFORMATION = re.compile(
    r"^[DIWV]\d{4} |^\[[DIWV](?:\d{4})? |[Ww]arning: | NCCL INFO |(?<!NCCL )(?<!=)\bWARN(?:ING)?\b"
    r"|(?:^|[\s\[|:-])(?:INFO|DEBUG|TRACE)\b(?=[\s\]|:-])|\blevel=(?:info|warn|debug)"
    r"|\"(?:log_?)?(?:level(?:_?name)?|severity)\": ?\"(?i:info|notice|debug|trace|warn)|\[NeMo [DIW] "
    r"|NCCL WARN.{0,80}\bRAS\b|\bRAS\b.{0,80}\bbind|\bras/|Retrying \(Retry\(|thrown while requesting"
    r"|\b[Rr]etrying(?: (?:\w{1,30} )?(?:in|after|with)\b|\.$)|^wandb: |Exception ignored (?:in|while|on)\b"
    r"|(?i:\bfall(?:s|ing)?[ -]?back\b|\busing [^.;]{1,60} instead\b"
    r"|[;,:-] (?:using|skipping(?!: failed)|ignoring|continuing|resuming|retrying|reducing|lowering|halving)\b"
    r"|\(ignored\)"
    r"|[.,;] us(?:e|ing) (?:the )?CPU\b|\bwill retry\b"
    r"|\bskipp(?:ing|ed) (?:(?:the|this|a|bad|corrupt) )?(?:batch|sample|step|shard|file|image|update)\b"
    r"|\bskip to the next\b|\bignored error\b|\bwill ignore (?:the )?error\b)"
)
# Lines that read like an error: of tools that go on after them, and with words about errors that have not happened.
_BENIGN = re.compile(
    "|".join(
        (
            r"NCCL WARN Failed to open lib",  # NCCL then uses sockets
            r"\bUCX +ERROR (?:exceeded transports/devices limit|scandir\(/sys/class/net\) failed)",
            # What TensorFlow and XLA print without a GPU, and before they allocate less.
            r"^\d{4}-\d\d-\d\d [\d:.]{8,20}: [IW] (?:tensorflow|external|xla)/|failed call to cuInit",
            r"\bcuda_driver\.cc:\d{1,5}\] failed to allocate ",
            # Setting up a container or a shell: hooks of pyxis, ldconfig, profiles, sudo, git's own files.
            r"\bpyxis: +\d{1,9} (?:Segmentation fault|Aborted|Killed)\b",
            r"ldconfig(?:\.real)?: Can't create temporary cache file|cannot remove '/usr/local/cuda/compat|^sysctl: ",
            r"(?:/etc/profile\.d/\S{1,100}|/\.cargo/env|/lmod/\S{1,100}): .{0,80}No such file|\bgetcwd\(\) failed: ",
            r"/oom_score_adj: |\bsystemd-journald\[\d{1,9}\]: |\bmetrics server: ",
            r"\bUnable to create TMPDIR\b|\bsudo: unable to resolve host |^hostname: ",
            r"\bcould not lock config file \S{1,200}\.gitconfig: |/proc/sys/vm/drop_caches: ",
            r"mkdir -p failed for path \S{1,200}matplotlib",
            # Tools that read on, or whose reader has enough.
            r"^(?:find|du|ping|nc|nslookup|getent): |\binotify cannot be used|\bto directory watch: ",
            r"\b\w{1,20}: write error: Broken pipe",
            # Probes and retries of downloads.
            r"^404 Client Error\. |^'\((?:MaxRetryError|ProtocolError|ReadTimeoutError|SSLError)\(|^\[nltk_data\] ",
            r"^Error while downloading from https?://.{1,900}Read timed out",
            r"failed to sync (?:configmap|secret) cache: ",  # the kubelet tries again
            r"/_inductor/select_algorithm\.py:\d{1,5}\]",  # a choice that is not taken
            # What a shell executes (set -x), help texts, tables of signals, definitions of metrics, results of tests.
            r"^\++ |^(?:if \[|grep |echo |trap )|^\s{1,40}--?[A-Za-z][\w-]{0,60}(?:[ ,=]|$)|\(default:? .{1,40}\)\s*$",
            r"\d\) SIG[A-Z]{3,6}\b|^# (?:HELP|TYPE) |\b(?:PASSED|SKIPPED|XFAIL)\b|^\[ +(?:OK|RUN) +\] ",
        )
    )
)
# torchrun and Ray log these as warnings, and Lightning as information; a monitor of the node logs what the kernel
# reports at any level. torchrun stops its workers by another signal than SIGTERM only if it has received that itself.
_SERIOUS_WARNING = re.compile(
    r"death signal|closing signal SIG(?:HUP|INT|QUIT)|Child process with PID|worker (?:process has )?died|\bXid\b"
    r"|\bmarked dead\b"
    r"|fallen off the bus"
)
# A traceback in a string of JSON, or as Python represents one.
_HEADER = "Traceback (most recent call last):"
_FRAME = '  File "'
_TRACEBACK_LINE = re.compile(rf'{re.escape(_HEADER)}\s*$|{_FRAME}[^"]+", line \d')
_ESCAPED_NEWLINE = "\\n"
_ESCAPED_QUOTE = '\\"'
_QUOTE = re.compile(r'(?<!\\)"')
LOST_WORKER_MARKER = "failed (exitcode: "
_LOST_WORKER = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) ")


class LogLinePart(NamedTuple):
    """One part of a log line: the whole line, or what was printed between two of its carriage returns.

    timestamp: of the line, in seconds since the epoch.
    text: without escapes and prefixes, and without a progress bar that precedes another text.
    line: without escapes, with its prefixes.
    local_rank, rank: of the process that printed it, as its prefixes name them, or that raised the exception which
        another process printed; None if that is not known.
    task: the number that srun or mpirun gave to the process that started the one which printed it; None unless the log
        has lines of several such processes.
    """

    timestamp: float
    text: str
    line: str
    local_rank: int | None = None
    rank: int | None = None
    task: int | None = None


class LostWorker(NamedTuple):
    """A worker that torchrun has lost; a negative exit code is a signal."""

    local_rank: int
    exit_code: int


def parse_lines(lines: Iterable[LogLine]) -> list[LogLinePart]:
    """The parts of a log's lines, in their order; see `parse_line`.

    A prefix that precedes each line of a traceback, such as that of pdsh, stern or a logger, is stripped from all lines
    that have it.
    """
    lines = list(lines)
    prefix_pattern = _find_prefix_pattern(lines)
    parts: list[LogLinePart] = []
    for line in lines:
        parts += _parse_joined_lines(line, prefix_pattern)
    if not any(_STARTER_LINE.search(part.line) for part in parts if part.task is not None):
        return [_turn_task_into_rank(part) for part in parts]
    # Each task has started the ranks of a node, and its number is that of the node.
    has_several_tasks = len({part.task for part in parts if part.task is not None}) > 1
    return parts if has_several_tasks else [part._replace(task=None) for part in parts]


def parse_line(line: LogLine) -> Iterator[LogLinePart]:
    """Yield the first and the last parts of a line whose parts overwrite each other; a long part loses its middle.

    A part without a rank in its own prefixes has that of the part before it. Lines that torchrun has joined are apart.
    """
    for part in _parse_joined_lines(line, _LINE_PREFIX):
        yield _turn_task_into_rank(part)


def _turn_task_into_rank(part: LogLinePart) -> LogLinePart:
    """The part without its task, whose number is its rank if no other prefix names one."""
    if part.task is None:
        return part
    if part.rank is None and part.local_rank is None:
        return part._replace(rank=part.task, task=None)
    return part._replace(task=None)


def _parse_joined_lines(line: LogLine, prefix_pattern: re.Pattern[str]) -> Iterator[LogLinePart]:
    lines = split_teed_line(line.text)
    if len(lines) > 1 and not _strip_prefixes(lines[0], prefix_pattern):
        lines[:2] = ["".join(lines[:2])]  # Ray and kubectl write their prefix before that of torchrun
    for text in _select_ends(lines):
        yield from _parse_one_line(line._replace(text=text), prefix_pattern)


def _strip_prefixes(text: str, prefix_pattern: re.Pattern[str] = _LINE_PREFIX) -> str:
    while prefix := prefix_pattern.match(text):
        text = text[prefix.end() :]
    return text


def _find_prefix_pattern(lines: Sequence[LogLine]) -> re.Pattern[str]:
    """The pattern of a log's prefixes: the known ones, and those that two neighbouring lines of tracebacks have.

    A logger's prefix of information or a warning counts only if nearly all lines have it, and its level means nothing.
    A number is srun's prefix of an indented line only if most lines have one: a program may print numbered lines.
    """
    has_tasks = _measure_share(lines, _TASK_PREFIX) > _MIN_SHARE_WITH_TASK
    patterns: dict[str, bool] = {}  # whether the prefix is one of the log's
    for index, line in enumerate(lines):
        prefix = _find_wrapper_prefix(line.text)
        pattern = re.sub(r"\d+", r"\\d{1,20}", re.escape(prefix))
        if not prefix or pattern in patterns or len(patterns) == _MAX_WRAPPERS:
            continue
        next_lines = lines[index + 1 : index + 1 + _MAX_TRACEBACK_GAP]
        if any(re.fullmatch(pattern, _find_wrapper_prefix(next_line.text)) for next_line in next_lines):
            patterns[pattern] = not is_harmless(prefix) or _measure_share(lines, pattern) > _MIN_SHARE_WITH_LEVEL
    wrapper_patterns = [pattern for pattern, is_wrapper in patterns.items() if is_wrapper]
    if not wrapper_patterns and not has_tasks:
        return _LINE_PREFIX
    known_pattern = f"{_TASK_PREFIX}|{_PREFIX}" if has_tasks else _LINE_PREFIX.pattern
    return re.compile("|".join([known_pattern, *wrapper_patterns]))


def _find_wrapper_prefix(text: str) -> str:
    """What precedes the header or a frame of a traceback in its line, except for known prefixes.

    Empty if the line is not one of a traceback, or if only indentation or a long text precedes it.
    """
    if _HEADER not in text and _FRAME not in text:
        return ""
    text = _strip_prefixes(_ESCAPE.sub("", text))
    traceback_line = _TRACEBACK_LINE.search(text)
    prefix = text[: traceback_line.start()] if traceback_line else ""
    if len(prefix) > _MAX_WRAPPER_CHARS or not any(char.isalnum() for char in prefix):
        return ""
    for match in _WORD_START.finditer(prefix):
        if not _strip_prefixes(prefix[match.start() :]):
            prefix = prefix[: match.start()]
            break
    return prefix


def _measure_share(lines: Sequence[LogLine], prefix_pattern: str) -> float:
    """The share of the lines that have the prefix, from 0 to 1; of a long log, lines at equal distances are read."""
    pattern = re.compile(prefix_pattern)
    sample = lines[:: len(lines) // _SHARE_LINES + 1]
    count = sum(bool(pattern.match(line.text) or pattern.match(_strip_prefixes(line.text))) for line in sample)
    return count / max(len(sample), 1)


def _select_ends(parts: list[str]) -> list[str]:
    """The first and the last parts of a line."""
    return [*parts[:1], *parts[1:][-_MAX_LINE_PARTS:]]


def _parse_one_line(line: LogLine, prefix_pattern: re.Pattern[str]) -> Iterator[LogLinePart]:
    """The parts of a line that was not joined with others."""
    local_rank: str | None = None
    rank: str | None = None
    task: str | None = None
    text = _expand_traceback(line.text) if _HEADER + _ESCAPED_NEWLINE in line.text else line.text
    parts = [part for part in re.split(r"[\r\n]+", text) if part] or [""]
    for part in _select_ends(parts):
        excerpt = part
        if len(part) > 2 * _MAX_END_CHARS:
            excerpt = f"{part[:_MAX_END_CHARS]} ... {part[-_MAX_END_CHARS:]}"
        clean_line = _ESCAPE.sub("", excerpt)
        text = split_after_progress_bar(clean_line)[-1]
        while prefix := prefix_pattern.match(text):
            text = text[prefix.end() :]
            local_rank = prefix["local"] or prefix["bare"] or local_rank
            rank = prefix["rank"] or rank
            task = prefix["mpi"] or prefix["task"] or task
        yield LogLinePart(
            line.timestamp,
            text,
            clean_line,
            int(local_rank) if local_rank else None,
            int(rank) if rank else None,
            int(task) if task else None,
        )


def _expand_traceback(text: str) -> str:
    """A line that contains a whole traceback with escaped newlines as several lines, the first with all of the rest."""
    before, _, escaped = text.partition(_HEADER + _ESCAPED_NEWLINE)
    after = ""
    if _ESCAPED_QUOTE in escaped:  # in a string of JSON, which ends at the first quote that is not escaped
        end = _QUOTE.search(escaped)
        if end:
            after = escaped[end.end() :]
            escaped = escaped[: end.start()]
    lines = escaped.replace(_ESCAPED_QUOTE, '"').split(_ESCAPED_NEWLINE)
    return "\n".join([f"{before}{after} {_HEADER}", *lines])


def is_harmless(text: str) -> bool:
    """Whether a line is information, a warning, or about something that the program tries again or does without."""
    is_information = bool(_INFORMATION.search(text)) and not _SERIOUS_WARNING.search(text)
    return is_information or bool(_BENIGN.search(text))


def parse_lost_worker(text: str) -> LostWorker | None:
    """The worker that torchrun has just lost, as it logs it; None if the line is not about a lost worker."""
    match = _LOST_WORKER.search(text)
    return LostWorker(local_rank=int(match[2]), exit_code=int(match[1])) if match else None
