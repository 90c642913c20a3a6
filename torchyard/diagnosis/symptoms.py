"""What the log of a process shows about its failure: exceptions and lines after which the process did not go on.

A line proves a cause only if something failed there. A process that makes progress after it has survived it, and so has
one that goes on to print other things, that takes part in collectives, or that ends much later.
"""

import re
import signal
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torchyard.diagnosis.failure_words import DIGITS, has_failure_word
from torchyard.diagnosis.log_line_parts import LogLinePart, is_harmless
from torchyard.diagnosis.tracebacks import (
    RaisedException,
    find_raising_call,
    is_raised_by_data_worker,
    split_lines,
)
from torchyard.model.causes.cause import Distance, LogRule, list_exit_code_patterns
from torchyard.model.causes.gpu import GpuCause
from torchyard.model.causes.memory import HOST_MEMORY_NOT_PINNED, MOUNT_LOST, NO_SEMAPHORE
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.program import (
    CHILD_EXITED,
    DATA_WORKER_LOST,
    PARENT_LOST,
    PROCESS_NOT_STARTED,
    PROGRAM_ERROR,
    ProgramCause,
)
from torchyard.model.causes.registry import LOG_RULES

# Metrics and progress bars: a number after the name of one, which is not a part of another name (`job-lr-5e-6-worker`).
_PROGRESS = re.compile(
    r"(?i:(?:(?<!\w-)|(?<=train-)|(?<=valid-)|(?<=val-)|(?<=test-)|(?<=eval-))"
    r"\b(?:loss|epochs?|iter(?:ation)?s?|(?:global_)?steps?|batch(?:es)?|samples|tokens|accuracy|acc|perplexity|ppl"
    r"|lr|throughput|learning rate|(?:total_)?timesteps|ep_\w{1,12}_mean|fps|kimg|rewards?|rmse|auc|\w{0,10}logloss"
    r"|images/sec|words/s|eval\w{0,20}|validation|train\w{0,20}_\w{1,20})\b(?!-[\w.]{1,20}[/-])[^.;]{0,40}?\d)"
    r"|\d{1,3}%\||(?<![A-Za-z])(?:it/s|s/it)\b"
    # Rows of ultralytics, of boosted trees, of Marian, and of numbers alone.
    r"|^\s*\d{1,6}/\d{1,6}\s+[\d.]{1,8}G\s|^\[\d{1,7}\]\s+(?:train|valid|test|eval)|^\d{1,7}:\s+learn: |\bEp\. \d"
    r"|^\s*\d{1,9}(?=[\d\s:e+-]{0,200}\.\d)(?:\s+\d[\d.:e+-]{0,20}){3,20}\s*$"
)
# A number after the name of a metric, in what is printed once or at the end: banners, settings, command lines, advice,
# and checkpoints that are saved because something failed.
_NO_PROGRESS = re.compile(
    r"^\s*(?:Num|Total|Instantaneous|Gradient|Number of)\b.{1,80} = |\(default: |^usage: |Namespace\("
    r"|(?:^|\s)--[a-z][\w-]{1,60}[ =]|^(?:[\w.=-]{0,100}/){2,30}\S{1,300}$"
    r"|(?i:\bemergency\b|\bstopped at\b|\btry \w{3,8}ing\b)"
    r"|^\s*[\"']?(?:epochs|lr|max_\w{1,40}|MAX_\w{1,40}|\w{1,40}_steps|STEPS|\w{1,40}_per_gpu|steps_per_\w{1,40})"
    r"[\"']?\s?[:=][^:=]{0,60}$"
)
# What glog prints at the level of information is neither progress nor ordinary output, unless it has a metric.
_GLOG_INFORMATION = re.compile(r"I\d{4} ")
# The count of a progress bar. tqdm prints a bar again when the program ends: the same count twice is no progress.
_BAR_COUNT = re.compile(r"\| {0,12}(\d{1,12}/(?:\d{1,12}|\?)) \[")
_FIRST_COUNT = re.compile(r"0/")
# What programs print while they fail, and what prints it for them, also the summaries of trackers at the end: neither
# progress nor ordinary output.
_DIAGNOSTIC = re.compile(
    r"^(?:wandb|COMET [A-Z]{1,10}): "
    r"|^[DIWEF]\d{4} |^\[[DIWEF]\d{0,4} | NCCL (?:INFO|WARN)|^frame #|^[=*-]{4}|^\s+at |what\(\):|^<omitting python"
    r"|(?i:error|exception|fail|fatal|abort|traceback|terminat|kill|signal|cancel|warn|core dumped|backtrace|died|crash"
    r"|\bsrun\b|slurm|raylet|\bUCX\b|NET/OFI|mpirun|\bexit)"
)
_PYTHON_WARNING = re.compile(r"\.py:\d{1,6}: \w{0,40}Warning: ")
# srun reports the end of a task, and cancels the step itself if that was a failure.
_TASK_ENDED = re.compile(r"srun: error: .{1,200}: tasks? [\d,-]{1,200}: (?!Terminated)")
# A launcher reports by this that one of its processes ended by a signal, and may then print what the others printed.
_REPORTED_SIGNAL = re.compile(r"\bcode(?: =|:)? -\d{1,2}\b")
# By this PALS reports the end of a rank; it then kills the others.
_DIED = re.compile(r"\bdied from signal \d")
# How a launcher reports the end of a process that it has stopped.
_STOPPED_BY_LAUNCHER = re.compile("|".join(list_exit_code_patterns(signal.SIGTERM)))
# What a process raises once the helpers to which it writes have gone.
_BROKEN_PIPE = re.compile(r"\b(?:BrokenPipeError|ConnectionResetError|EOFError)\b")
# What follows these is not the rest of their message.
_ONE_LINE_EXCEPTION = re.compile(
    r"(?:KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ZeroDivisionError)\b"
)
# Exceptions whose words do not show the cause, which the call that raised them does: EAGAIN without a file, which
# flock reports too; memory of CUDA that is not the GPU's; a lost mount in the words of a socket; a semaphore, which
# is a file in /dev/shm; data that the process which starts another one has not sent.
_CALL_RULES = (
    (
        re.compile(r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable$"),
        re.compile(r"\bos\.fork(?:pty)?\(|\bfork_exec\(|/popen_fork\.py\"|in (?:_execute_child|spawnv_passfds)\b"),
        PROCESS_NOT_STARTED,
    ),
    (
        re.compile(r"\S{1,200}: (?:CUDA|HIP) error: out of memory"),
        re.compile(r"\bin pin_memory\b|\.pin_memory\(|\bpin_memory=True"),
        HOST_MEMORY_NOT_PINNED,
    ),
    (
        re.compile(r"OSError: \[Errno 107\] Transport endpoint is not connected$"),
        re.compile(r"\b(?:open|read|write|flush|seek|stat|listdir|scandir|mkdir|makedirs|rename|replace|remove)\("),
        MOUNT_LOST,
    ),
    (
        re.compile(r"OSError: \[Errno 28\] No space left on device$"),
        re.compile(r"\bSemLock\("),
        NO_SEMAPHORE,
    ),
    (
        re.compile(r"_pickle\.UnpicklingError: pickle data was truncated|EOFError: Ran out of input"),
        re.compile(r"/multiprocessing/spawn\.py\""),
        PARENT_LOST,
    ),
)
# That a process is told to end, and may go on until it is killed.
_STOP_CAUSES = frozenset({PlatformCause.TIME_LIMIT, PlatformCause.CANCELLED, PlatformCause.TERMINATED})
_ENDS_BY_LAUNCHER = frozenset({ProgramCause.KILLED, PlatformCause.WORKER_LOST})  # if it ends the others after one
_SCHEDULER_CAUSES = frozenset({PlatformCause.TIME_LIMIT, PlatformCause.CANCELLED})
RULES_BY_DISTANCE = tuple(sorted(LOG_RULES, key=lambda rule: rule.distance))  # the first that matches explains most
_RULE_ORDER = {rule: index for index, rule in enumerate(RULES_BY_DISTANCE)}
_MIN_DELAY_S = 0.5  # torchrun tees a process's two streams independently: what was printed first may be logged later
_PROGRESS_PERIOD_S = 60.0  # after so much progress, the process has survived anything
_MAX_GRACE_S = 300.0  # that a process may go on after it is told to end
_MAX_OTHER_LINES = 4  # after the last words of a process, printed while it ends
_MAX_LAST_WORDS_S = 300.0  # between the last words of a process and its end
_MAX_WORDS_BEFORE_WAIT_S = 30.0  # the same for a process that then waited until it timed out
_SHARED_PROGRESS_LINES = 3  # of other processes, before they notice that one failed
_OTHERS_PROGRESS_S = 20.0  # for which other processes of a node may go on: torchrun looks after them every 5 s
# For which the collectives of a process may go on after a line that shows its end, and after an exception: one that was
# called before may be completed while the process ends.
_COLLECTIVES_AFTER_LINE_S = 1.0
_COLLECTIVES_AFTER_EXCEPTION_S = 5.0


class Symptom(NamedTuple):
    """An exception or a line that shows a cause.

    rule: what it shows.
    evidence: the line that a rule matches, or the last line of the exception.
    end: the index of its last line in the process's log.
    has_traceback: it is an exception that was printed with its traceback.
    is_aside: it is an exception after which the program could go on, as after one of another thread.
    """

    rule: LogRule
    evidence: LogLinePart
    end: int
    has_traceback: bool = False
    is_aside: bool = False


class ProcessTimes(NamedTuple):
    """When something happened to a process, in seconds since the epoch by its node's clock; 0.0 if that is not known.

    started: of its last start; lines before are of an earlier one.
    ended: its end.
    last_collective: when it last called or completed a collective.
    others_progress: of an agent: when the workers that it supervises last made progress.
    peers_progress: of a worker: when the other workers of its node last made progress.
    """

    started: float = 0.0
    ended: float = 0.0
    last_collective: float = 0.0
    others_progress: float = 0.0
    peers_progress: float = 0.0


class ProcessSymptoms:
    """The symptoms in the lines of one process, or of several that share a log.

    `exceptions` and `lines` are those that may be the cause of its end, in order; `survived` are the others.

    `warnings` are those below the level of an error: they prove nothing, and may explain an error.

    is_shared: other processes have printed some of the lines.
    """

    def __init__(self, lines: Sequence[LogLinePart], times: ProcessTimes, *, is_shared: bool) -> None:
        self._lines = lines
        self._is_shared = is_shared
        self._times = times
        self._early_until = max(times.started, times.others_progress - _OTHERS_PROGRESS_S)
        self._ended_at = max(times.ended, lines[-1].timestamp if lines else 0.0)
        self._has_times = bool(lines) and lines[0].timestamp != lines[-1].timestamp
        self._progress: list[int] = []
        self._ordinary: list[int] = []
        self.exceptions: list[Symptom] = []
        self.survived: list[Symptom] = []
        self.warnings: list[Symptom] = []

        parts = split_lines(lines)
        line_symptoms = self._read_lines(parts.other)
        waits = [symptom.evidence.timestamp for symptom in line_symptoms if symptom.rule.distance == Distance.WAIT]
        self._waited_until = min(waits, default=None)
        for exception in parts.exceptions:
            symptom = self._match_exception(exception)._replace(is_aside=exception.is_aside)
            is_over = exception.is_harmless or self._is_early(symptom) or self._has_survived(symptom)
            (self.survived if is_over else self.exceptions).append(symptom)
        current_symptoms: list[Symptom] = []
        for symptom in line_symptoms:
            is_over = self._is_early(symptom) or self._has_survived(symptom)
            (self.survived if is_over else current_symptoms).append(symptom)
        self.lines = self._drop_acts_of_launchers(current_symptoms)
        self.exceptions = self._drop_broken_pipes(self.exceptions)
        node_lost_at = max((line.end for line in self.lines if line.rule.cause is PlatformCause.NODE_LOST), default=0)
        self.lines = _drop_errors_of_lost_node(self.lines, node_lost_at)
        self.exceptions = _drop_errors_of_lost_node(self.exceptions, node_lost_at)

    def _read_lines(self, indices: Sequence[int]) -> list[Symptom]:
        """The symptoms in the lines outside of tracebacks; warnings, progress and other output are set apart."""
        symptoms = []
        last_count = ""
        for index in indices:
            line = self._lines[index]
            rule = find_rule(line.text)
            if rule and (is_harmless(line.text) or self._is_in_warning(index)):
                self.warnings.append(Symptom(rule, line, index))
            elif rule:
                symptoms.append(Symptom(rule, line, index))
            elif line.text.strip() and not _is_diagnostic(line.text):
                bar_count = _BAR_COUNT.search(line.text)
                if bar_count:
                    is_repeated = bar_count[1] == last_count or bool(_FIRST_COUNT.match(bar_count[1]))
                    last_count = bar_count[1]
                    if is_repeated:
                        continue
                (self._progress if _is_progress(line.text) else self._ordinary).append(index)
        return symptoms

    def _is_in_warning(self, index: int) -> bool:
        """Whether a line is the rest of a warning's message, or about a closed output, which Python ignores.

        Python prints the source of a warning below its message.
        """
        is_announced = index > 0 and self._lines[index - 1].text.startswith("Exception ignored ")
        if is_announced and self._lines[index].text.startswith("BrokenPipeError"):
            return True
        is_between = 0 < index < len(self._lines) - 1 and not self._lines[index].text.startswith("  ")
        if not is_between:
            return False
        before = self._lines[index - 1].text
        return bool(_PYTHON_WARNING.search(before)) and self._lines[index + 1].text.startswith("  ")

    def was_stopped(self) -> bool:
        """Whether the process logged that it was told to end, as its last symptom."""
        last = max((*self.exceptions, *self.lines), key=_get_end, default=None)
        return last is not None and last.rule.cause is PlatformCause.TERMINATED

    def is_last_word(self, symptom: Symptom) -> bool:
        """Whether no ordinary output follows a symptom."""
        return not any(indices and indices[-1] > symptom.end for indices in (self._ordinary, self._progress))

    def _match_exception(self, exception: RaisedException) -> Symptom:
        """What an exception shows: the nearest of its chain, or else the rest of its message."""
        best: Symptom | None = None
        is_stopped = False
        for line in exception.lines:
            rule = None if is_harmless(line.text) else find_rule(line.text)
            is_stopped = is_stopped or (rule is not None and rule.cause is PlatformCause.TERMINATED)
            if is_stopped and _BROKEN_PIPE.search(line.text):
                continue
            if rule and (best is None or _RULE_ORDER[rule] < _RULE_ORDER[best.rule]):
                best = Symptom(rule, line, exception.end, exception.has_traceback)
        if best and best.rule.distance > Distance.OWN and is_raised_by_data_worker(self._lines, exception):
            return best._replace(rule=DATA_WORKER_LOST)
        rule_of_call = self._find_rule_of_call(exception)
        if rule_of_call:
            return Symptom(rule_of_call, exception.lines[-1], exception.end, exception.has_traceback)
        if best:
            return best
        message = () if _ONE_LINE_EXCEPTION.match(exception.lines[-1].text) else exception.message
        for line in message:
            rule = None if is_harmless(line.text) else find_rule(line.text)
            if rule and rule.distance < Distance.STOPPED:
                return Symptom(rule, line, exception.end, exception.has_traceback)
        return Symptom(PROGRAM_ERROR, exception.lines[-1], exception.end, exception.has_traceback)

    def _find_rule_of_call(self, exception: RaisedException) -> LogRule | None:
        """What an exception shows by the call that raised it; None if that shows nothing."""
        for error, call, rule in _CALL_RULES:
            if error.match(exception.lines[-1].text) and call.search(find_raising_call(self._lines, exception)):
                return rule
        return None

    def _is_early(self, symptom: Symptom) -> bool:
        """Whether a symptom is of an earlier start, or those that the process supervises went on for long after it."""
        return symptom.evidence.timestamp < self._early_until

    def _drop_broken_pipes(self, exceptions: Sequence[Symptom]) -> list[Symptom]:
        """The exceptions without the broken pipes of a process that was told to end: its helpers were told too."""
        stops = [
            symptom.end for symptom in (*exceptions, *self.lines) if symptom.rule.cause is PlatformCause.TERMINATED
        ]
        stopped_at = min(stops, default=len(self._lines))
        return [
            symptom
            for symptom in exceptions
            if symptom.end <= stopped_at or not _BROKEN_PIPE.search(symptom.evidence.text)
        ]

    def _drop_acts_of_launchers(self, symptoms: Sequence[Symptom]) -> list[Symptom]:
        """The symptoms without those that only follow from an earlier line.

        A scheduler kills the tasks of a job that it ends, Lightning its main process after another one has failed, and
        srun cancels the step of a task that has failed, and other launchers stop the processes that still run.
        """
        kept: list[Symptom] = []
        is_kill_expected = False
        for symptom in symptoms:
            cause = symptom.rule.cause
            if cause in _ENDS_BY_LAUNCHER and is_kill_expected:
                continue
            if cause is PlatformCause.WORKER_LOST and _has_own_cause(kept):
                continue
            if cause is PlatformCause.TERMINATED and kept and _STOPPED_BY_LAUNCHER.search(symptom.evidence.text):
                continue
            is_end_of_others = cause in _SCHEDULER_CAUSES or symptom.rule is CHILD_EXITED
            is_kill_expected = is_kill_expected or is_end_of_others or bool(_DIED.search(symptom.evidence.text))
            if cause is PlatformCause.CANCELLED and self._has_task_ended_before(symptom):
                continue
            kept.append(symptom)
        return kept

    def _has_task_ended_before(self, symptom: Symptom) -> bool:
        """Whether srun has reported the end of a task before a symptom."""
        return any(_TASK_ENDED.search(line.text) for line in self._lines[: symptom.end])

    def _has_survived(self, symptom: Symptom) -> bool:
        """Whether the process went on after a symptom."""
        if symptom.rule.cause in _STOP_CAUSES and not symptom.has_traceback:
            return self._get_last_activity() > symptom.evidence.timestamp + _MAX_GRACE_S
        is_line = symptom.rule.distance == Distance.OWN and not symptom.has_traceback
        if is_line:
            return self._has_survived_line(symptom)
        if self._times.last_collective > symptom.evidence.timestamp + _COLLECTIVES_AFTER_EXCEPTION_S:
            return True
        if symptom.has_traceback:
            return self._has_progress_after(symptom, _SHARED_PROGRESS_LINES if self._is_shared else 1)
        return self._has_progress_after(symptom, 2)  # what was computed before may still be printed

    def _has_survived_line(self, symptom: Symptom) -> bool:
        """Whether the process went on after a line that shows an error of its own, without a traceback."""
        # What was printed before a kill may be logged after the report of it.
        if self._has_progress_after(symptom, _SHARED_PROGRESS_LINES if symptom.rule.explains_signal else 1):
            return True
        later_lines = len(self._ordinary) - bisect_right(self._ordinary, symptom.end)
        is_of_launcher = _REPORTED_SIGNAL.search(symptom.evidence.text)
        if not (self._is_shared or is_of_launcher) and later_lines > _MAX_OTHER_LINES:
            return True
        return self._get_last_words_start() > symptom.evidence.timestamp

    def _get_last_words_start(self) -> float:
        """When the last words of the process can have begun, by what is known of its last activity and its end."""
        bounds = [
            self._times.last_collective - _COLLECTIVES_AFTER_LINE_S,
            self._times.peers_progress - _OTHERS_PROGRESS_S,
            self._ended_at - _MAX_LAST_WORDS_S,
        ]
        if self._waited_until is not None:
            bounds.append(self._waited_until - _MAX_WORDS_BEFORE_WAIT_S)
        return max(bounds)

    def _get_last_activity(self) -> float:
        """When the process last made progress or took part in a collective, in seconds since the epoch; 0.0: never."""
        progressed_at = self._lines[self._progress[-1]].timestamp if self._progress else 0.0
        return max(progressed_at, self._times.last_collective)

    def _has_progress_after(self, symptom: Symptom, minimum: int) -> bool:
        """Whether at least `minimum` lines of progress follow, or progress for a minute.

        In a log without times the order decides, except that a traceback is survived only if time has passed.
        """
        later = self._progress[bisect_right(self._progress, symptom.end) :]
        if not later:
            return False
        duration_s = self._lines[later[-1]].timestamp - symptom.evidence.timestamp
        is_later = duration_s > _MIN_DELAY_S or not (self._has_times or symptom.has_traceback)
        return (is_later and len(later) >= minimum) or duration_s >= _PROGRESS_PERIOD_S


def _has_own_cause(symptoms: Sequence[Symptom]) -> bool:
    """Whether a symptom shows why a process ended, and not only that Ray has lost one."""
    return any(
        symptom.rule.distance == Distance.OWN and symptom.rule.cause is not PlatformCause.WORKER_LOST
        for symptom in symptoms
    )


def _drop_errors_of_lost_node(symptoms: Sequence[Symptom], node_lost_at: int) -> list[Symptom]:
    """The symptoms without the errors of CUDA before a node was lost: they are its first signs, and cause no loss.

    node_lost_at: the index of the line by which the platform reports it, which no program can cause; 0 if it does not.
    """
    return [
        symptom for symptom in symptoms if symptom.rule.cause is not GpuCause.CUDA_ERROR or symptom.end >= node_lost_at
    ]


def find_last_progress(lines: Sequence[LogLinePart]) -> float:
    """When a process last printed a line of progress, in seconds since the epoch; 0.0 if it has printed none."""
    for line in reversed(lines):
        if _is_progress(line.text) and not _is_diagnostic(line.text) and not find_rule(line.text):
            return line.timestamp
    return 0.0


def _is_progress(text: str) -> bool:
    return bool(_PROGRESS.search(text)) and not _NO_PROGRESS.search(text)


def _is_diagnostic(text: str) -> bool:
    """Whether a line is neither progress nor ordinary output."""
    if _GLOG_INFORMATION.match(text):
        return not _is_progress(text)
    return bool(_DIAGNOSTIC.search(text))


def _get_end(symptom: Symptom) -> int:
    return symptom.end


@lru_cache(maxsize=8192)  # the processes of a job print the same lines
def find_rule(text: str) -> LogRule | None:
    """The first of RULES_BY_DISTANCE that a line matches; None if it matches none."""
    if not has_failure_word(text.encode(errors="replace").translate(None, DIGITS)):
        return None
    for rule in RULES_BY_DISTANCE:
        if rule.pattern and rule.pattern.search(text):
            return rule
    return None
