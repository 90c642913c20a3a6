"""Lines of a process: without escapes, prefixes and noise, and the exceptions that they contain."""

import time

import pytest

from tests.inputs.failure_logs import build_summary_entry, build_traceback, diagnose_lines
from torchyard.diagnosis.log_line_parts import LogLinePart, is_harmless, parse_line, parse_lines
from torchyard.model.run import LogLine


def test_last_exception_counts() -> None:
    """An exception that the program caught and logged is not why it failed."""
    caught_error = build_traceback(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    failure = diagnose_lines(
        {"node_0": 1},
        node_0=[*caught_error, *build_traceback(0, "KeyError: 'label'"), *build_summary_entry(0, 0, 1, 10)],
    )
    assert (failure.cause, failure.line) == ("program-error", "[default0]:KeyError: 'label'")


def test_chain_of_exceptions_is_one() -> None:
    """The cause of a failure may be in the exception that led to the last one."""
    link = "[default0]:The above exception was the direct cause of the following exception:"
    chain = [
        *build_traceback(0, "OSError: [Errno 28] No space left on device"),
        link,
        *build_traceback(0, "RuntimeError: not saved"),
    ]
    assert diagnose_lines({"node_0": 1}, node_0=[*chain, *build_summary_entry(0, 0, 1, 10)]).cause == "disk-full"


def test_source_and_ignored_exceptions_prove_nothing() -> None:
    """Words in a traceback's source lines, and exceptions that Python ignored, are not the program's failure."""
    source = ['  File "/srv/app/train.py", line 3, in <module>', '    raise Full("CUDA out of memory")', "    ^^^^^"]
    rows = [f"[default0]:{row}" for row in [*source, "RuntimeError: Connection closed by peer"]]
    ignored_exception = [
        "[default0]:Exception ignored in: <function f>",
        *build_traceback(0, "OSError: [Errno 28] No space left"),
    ]
    assert (
        diagnose_lines({"node_0": 1}, node_0=[*rows, *ignored_exception, *build_summary_entry(0, 0, 1, 10)]).cause
        == "peer-lost"
    )


def test_prefixes_escapes_and_returns_are_stripped() -> None:
    """Colours, carriage returns, and the prefixes of kubectl, tee and torch do not hide the line or its rank."""
    progress_bar = (
        "2026-11-21T08:22:10.123456Z [default1]:\x1b[32m 50%|##\r 60%|###\r[rank5]: \x1b[31mKeyError: 'x'\x1b[0m"
    )
    failure = diagnose_lines({"node_0": 1, "node_1": None}, node_0=[progress_bar])
    assert failure.rank == 5
    assert failure.sentence.startswith("Rank 5 on node-0 raised KeyError: 'x'; ")


@pytest.mark.parametrize(
    "text", ["x", "[default0]:", "Got completion ", "A.", "\x1b[", "a\r", " ", "[1,2]<stdout>:", "("]
)
def test_long_line_takes_no_time(text: str) -> None:
    """A line of a megabyte is read quickly, whatever it repeats, and does not fill the report."""
    started = time.process_time()
    failure = diagnose_lines({"node_0": 1}, node_0=[text * (1_000_000 // len(text))])
    assert time.process_time() - started < 5.0
    assert len("".join(failure.tail)) < 3000


# --- line by line


def parse(*texts: str) -> list[LogLinePart]:
    return [part for text in texts for part in parse_line(LogLine(1.0, "node-0", text))]


@pytest.mark.parametrize(
    ("text", "local_rank", "rank"),
    [
        ("[default3]:hello", 3, None),
        ("[rank12]: hello", None, 12),
        ("[1,12]<stdout>:hello", None, 12),
        ("12: hello", None, 12),
        ("[pod/sample-worker-0/worker] hello", None, None),
        ("(train pid=7, ip=10.0.0.1) [default3]:[rank12]: hello", 3, 12),
        ("(PolicyWorker[rank=31] pid=3264030, ip=10.1.101.236) [rank31]: hello", None, 31),
        ("2026-11-21T08:22:10.123456Z hello", None, None),
    ],
)
def test_prefix_names_the_rank_of_a_line(text: str, local_rank: int | None, rank: int | None) -> None:
    """The prefixes of torchrun, torch, mpirun, srun, Ray and kubectl are removed, and the rank in them is read."""
    (line,) = parse(text)
    assert (line.text, line.local_rank, line.rank) == ("hello", local_rank, rank)


@pytest.mark.parametrize("escape", ["\x1b", "^[", "#033", "\\x1b", "\\033", "\\u001b"])
def test_colours_are_stripped_in_any_notation(escape: str) -> None:
    """Colours may have gone through cat -v, rsyslog or JSON."""
    (line,) = parse(f"{escape}[1;31mKeyError: 'x'{escape}[0m")
    assert line.text == "KeyError: 'x'"


@pytest.mark.parametrize("text", ["[socket.cpp:461] The client socket has failed", "[api.py:553]: [Rank 0] is late"])
def test_source_file_of_a_message_is_not_a_prefix(text: str) -> None:
    """torch puts the source file of a message into brackets, and its line number is not a rank."""
    (line,) = parse(text)
    assert (line.text, line.local_rank, line.rank) == (text, None, None)


def test_process_id_of_open_mpi_is_not_a_rank() -> None:
    """Open MPI begins its own messages with host and process id; a prefix with a local rank has no space after it."""
    message, prefixed = parse("[n1:42] Local abort before MPI_INIT", "[n1:3]  File 'train.py'")
    assert (message.local_rank, message.rank) == (None, None)
    assert (prefixed.local_rank, prefixed.text) == (3, "  File 'train.py'")


def test_progress_bar_keeps_its_last_states() -> None:
    """Of a line that was redrawn thousands of times, the first and the last twenty states are read."""
    parts = parse("\r".join(f"step {step}" for step in range(5000)))
    assert (len(parts), parts[0].text, parts[1].text, parts[-1].text) == (21, "step 0", "step 4980", "step 4999")


def test_returns_at_line_ends_hide_nothing() -> None:
    """A log with CR LF line ends gives torchrun's report: each line has one part."""
    rows = [f"{row}\r" for row in build_summary_entry(3, 1, -9, 10)]
    assert [line.text for line in parse("a\r", "", "\r")] == ["a", "", ""]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank, failure.exit_code) == ("killed", 3, -9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[W1121 10:00:00.123 socket.cpp:697] [c10d] The client socket has failed to connect", True),
        ("I1121 api.py:553] it was killed", True),
        ("a.py:1: UserWarning: CUDA out of memory", True),
        ("2026-11-21 10:00:00.123 | WARNING  | train:step:12 - CUDA out of memory", True),
        ("[NeMo W 2026-11-21 10:00:00 nemo_logging:405] Permission denied", True),
        ("No module named flash_attn; using sdpa", True),
        ("Exception ignored in: <function Socket.__del__ at 0x7f2c>", True),
        ("n1:42:43 [1] NCCL WARN NET/IB : Got completion with error 12", False),
        ("WARN node-problem-detector: NVRM: Xid (PCI:0000:3b:00): 79", False),
        ("E1121 api.py:553] it was killed", False),
        ("RuntimeError: Caught OutOfMemoryError in replica 0 on device 0.", False),
    ],
)
def test_line_below_the_level_of_an_error_is_harmless(text: str, expected: bool) -> None:
    """Information, warnings and what a program does without are harmless; NCCL's warnings and a GPU's Xid are not."""
    assert is_harmless(text) is expected


@pytest.mark.parametrize(
    "prefix", ["[1,7]<stderr>:", "[1,mpirank:7,algo-1]<stderr>:", "[1,mpirank:7,algo-2]<stdout>: "]
)
def test_prefix_of_mpirun_has_the_rank(prefix: str) -> None:
    """mpirun tags each line with its rank; SageMaker's adds the host."""
    (part,) = parse_line(LogLine(1.0, "node-0", f"{prefix}KeyError: 'x'"))
    assert (part.rank, part.text) == (7, "KeyError: 'x'")


# --- prefixes that a log itself shows

WRAPPED_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/srv/app/train.py", line 3, in <module>',
    "    step()",
    "KeyError: 'x'",
)


def parse_all(*texts: str) -> list[LogLinePart]:
    return parse_lines([LogLine(1.0, "node-0", text) for text in texts])


def test_prefix_of_a_traceback_is_stripped_from_all_lines() -> None:
    """A prefix of which two lines of a traceback have the form, with other digits, is stripped from each such line."""
    texts = [f"gpu-{number}: {text}" for number, text in enumerate(("step 1", *WRAPPED_TRACEBACK))]
    parts = parse_all(*texts, "pdsh@login: gpu-4: ssh exited with exit code 1")
    assert [part.text for part in parts[:5]] == ["step 1", *WRAPPED_TRACEBACK]
    assert [part.line for part in parts[:5]] == texts
    assert parts[5].text == "pdsh@login: gpu-4: ssh exited with exit code 1"


def test_known_prefix_after_an_unknown_one_names_the_rank() -> None:
    """A prefix that names the rank is read also after one that only the log shows."""
    parts = parse_all(*[f"worker-1: [rank5]: {text}" for text in WRAPPED_TRACEBACK])
    assert [(part.text, part.rank) for part in parts] == [(text, 5) for text in WRAPPED_TRACEBACK]


def test_level_of_a_caught_exception_is_no_prefix() -> None:
    """A program that logs a caught exception as a warning, line by line, has only warned."""
    warnings = [f"2024-05-01 10:11:12 WARNING {text}" for text in WRAPPED_TRACEBACK]
    parts = parse_all("step 1", *warnings, "step 2")
    assert [part.text for part in parts] == ["step 1", *warnings, "step 2"]


def test_level_of_every_line_is_a_prefix() -> None:
    """If a program's whole output goes through a logger of information, the level means nothing."""
    texts = ("step 1", *WRAPPED_TRACEBACK)
    parts = parse_all(*[f"2024-05-01 10:11:12 - INFO - {text}" for text in texts])
    assert [part.text for part in parts] == list(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ("  | Traceback (most recent call last):", '  |   File "train.py", line 3, in <module>'),
        ("Original Traceback (most recent call last):", '  File "train.py", line 3, in <module>'),
        ("    traceback : Traceback (most recent call last):", '      File "train.py", line 3, in <module>'),
    ],
    ids=["exception group", "data worker", "report of torchrun"],
)
def test_indentation_of_a_traceback_is_no_prefix(texts: tuple[str, str]) -> None:
    """What Python, torch and torchrun put around tracebacks stays."""
    assert [part.text for part in parse_all(*texts)] == list(texts)


def test_indented_lines_of_a_task_are_the_tasks() -> None:
    """srun's number is the prefix of an indented line if most lines have one; else it is a numbered line."""
    parts = parse_all(*[f" 3: {text}" for text in WRAPPED_TRACEBACK])
    assert [(part.text, part.rank) for part in parts] == [(text, 3) for text in WRAPPED_TRACEBACK]
    numbered = parse_all("config:", "  3:   lr", "done", "saved")
    assert [(part.text, part.rank) for part in numbered][1] == ("  3:   lr", None)


def test_each_agent_of_a_log_has_its_own_ranks() -> None:
    """If one log has the lines of several torchruns that srun has started, each reports its own ranks."""
    lost_line = (
        "E0501 10:11:16.000000 78 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
        "local_rank: 1 (pid: 79) of binary: /usr/bin/python"
    )
    report = ["train.py FAILED", "Failures:", "  <NO_OTHER_FAILURES>", "Root Cause (first observed failure):"]
    second = [
        *WRAPPED_TRACEBACK,
        lost_line,
        *report,
        *build_summary_entry(5, 1, 1, 16),
    ]
    first = ["I0501 10:11:12.000000 77 torch/distributed/run.py:793] Setting OMP_NUM_THREADS", "step 1", "step 2"]
    lines = [f"1: {text}" for text in second]
    for index, text in enumerate(first):
        lines.insert(2 * index, f"0: {text}")
    failure = diagnose_lines({"node_0": 1}, node_0=lines)
    assert (failure.cause, failure.rank, failure.line) == ("program-error", 5, "1: KeyError: 'x'")


TRACEBACK_IN_JSON = (
    r'"Traceback (most recent call last):\n  File \"/srv/app/train.py\", line 3, in <module>\n    step()\n'
    r'torch.OutOfMemoryError: CUDA out of memory."'
)


@pytest.mark.parametrize(
    "line",
    [
        f'{{"event": "failed", "level": "error", "exception": {TRACEBACK_IN_JSON}, "timestamp": "x"}}',
        f'{{"exc_info": {TRACEBACK_IN_JSON}, "levelname": "ERROR"}}',
        (
            r"""it failed: b'Traceback (most recent call last):\n  File "/srv/app/train.py", line 3, in <module>\n"""
            r"""    step()\ntorch.OutOfMemoryError: CUDA out of memory.\n'"""
        ),
    ],
    ids=["structlog", "logging", "bytes"],
)
def test_traceback_with_escaped_newlines_is_one(line: str) -> None:
    """A logger of JSON writes a traceback in one line: it is read like one of several lines, and the next line too."""
    failure = diagnose_lines({"node_0": 1}, node_0=["start", line, "the end"])
    assert (failure.cause, "(at train.py:3" in failure.sentence) == ("oom-gpu", True)
    program_error = line.replace("torch.OutOfMemoryError: CUDA out of memory.", "KeyError: 'x'")
    sentence = diagnose_lines({"node_0": 1}, node_0=["start", program_error, "the end"]).sentence
    assert "raised KeyError: 'x'; read" in sentence


@pytest.mark.parametrize("level", ['"level": "info"', '"levelname": "WARNING"', '"severity": "warning"'])
def test_level_of_json_applies_to_its_traceback(level: str) -> None:
    """The level counts wherever it is in the line."""
    for line in (f'{{{level}, "exception": {TRACEBACK_IN_JSON}}}', f'{{"exception": {TRACEBACK_IN_JSON}, {level}}}'):
        assert diagnose_lines({"node_0": 1}, node_0=["start", line]).cause == "unknown"
