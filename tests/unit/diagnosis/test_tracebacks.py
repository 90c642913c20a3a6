"""The exceptions of a process: chains, prefixes of loggers, and what only looks like one."""

import pytest

from tests.inputs.failure_logs import build_traceback, diagnose_lines
from torchyard.diagnosis.log_line_parts import LogLinePart, parse_line
from torchyard.diagnosis.tracebacks import split_lines
from torchyard.model.run import LogLine

LINK = "The above exception was the direct cause of the following exception:"
TRACEBACK = [line.partition(":")[2] for line in build_traceback(0, "torch.OutOfMemoryError: CUDA out of memory.")]


def parse(*texts: str) -> list[LogLinePart]:
    return [part for text in texts for part in parse_line(LogLine(1.0, "node-0", text))]


def list_exceptions(*texts: str) -> list[list[str]]:
    """The lines of each exception that counts."""
    exceptions = split_lines(parse(*texts)).exceptions
    return [[line.text for line in exception.lines] for exception in exceptions if not exception.is_harmless]


def test_exceptions_are_found_with_what_caused_them() -> None:
    """Each traceback is one exception; a chain is one as well, and wrappers that only report a child are left out."""
    chain = [*build_traceback(0, "OSError: full"), f"[default0]:{LINK}", *build_traceback(0, "RuntimeError: not saved")]
    rows = [
        *build_traceback(0, "KeyError: 'x'"),
        *chain,
        *build_traceback(0, "torch.distributed.ChildFailedError: train.py"),
    ]
    assert list_exceptions(*rows) == [["KeyError: 'x'"], ["OSError: full", "RuntimeError: not saved"]]


def test_exception_without_a_traceback_counts_if_there_is_none_with_one() -> None:
    """A line that looks like an exception is one only where no traceback was printed."""
    bare = "ValueError: bad batch"
    assert list_exceptions(bare, "done") == [[bare]]
    assert list_exceptions(bare, *build_traceback(0, "KeyError: 'x'")) == [["KeyError: 'x'"]]


@pytest.mark.parametrize("indent", ["    ", "  | ", "\t"])
def test_indented_traceback_is_one(indent: str) -> None:
    """A traceback that a logger or an exception group indents is read like any other."""
    rows = [f"{indent}{line}" for line in TRACEBACK]
    assert diagnose_lines({"node_0": 1}, node_0=["it failed:", *rows]).cause == "oom-gpu"
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]


PREFIXES = {
    "vLLM": "(EngineCore_0 pid=123) ERROR 11-21 10:00:0{index} [core.py:58{index}] ",
    "vLLM worker": "(VllmWorker rank=1 pid=220) ERROR 11-21 10:00:0{index} [multiproc_executor.py:487] ",
    "glog": "E1121 10:00:00.12345{index} 42 train.py:12] ",
    "loguru": "2026-11-21 10:00:00.12{index} | ERROR    | train:step:12 - ",
    "NeMo": "[NeMo E 2026-11-21 10:00:0{index} exp_manager:12] ",
    "journal": "Nov 21 10:00:0{index} gpu-7 python[4242]: ",
    "docker compose": "trainer-1  | ",
    "logging": "2026-11-21 10:00:00,12{index} - train - ERROR - ",
    "hydra": "[2026-11-21 10:00:00,12{index}][__main__][ERROR] - ",
    "DeepSpeed": "[2026-11-21 10:00:00,12{index}] [ERROR] [launch.py:32{index}:sigkill_handler] ",
    "rich": "[11/21/26 10:00:0{index}] ERROR    ",
    "SkyPilot": "(worker1, rank=1, pid=2345, ip=10.0.0.7) ",
    "stern": "sample-worker-0 trainer ",
    "logrus": 'time="2026-11-21T10:00:0{index}Z" level=error msg=',
    "kubectl": "2026-11-21T10:00:00.12345{index}Z ",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_traceback_behind_the_prefix_of_a_logger_is_one(name: str) -> None:
    """A logger's prefix on each line, with times and numbers that change, does not hide a traceback."""
    rows = [PREFIXES[name].format(index=index) + line for index, line in enumerate(TRACEBACK)]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]
    failure = diagnose_lines({"node_0": 1}, node_0=["start", *rows])
    assert (failure.cause, failure.retry) == ("oom-gpu", False)


def test_traceback_that_is_logged_as_a_warning_is_harmless() -> None:
    """A logger's level applies to the traceback that it prints."""
    rows = [f"WARNING 11-21 10:00:00 [cache.py:12] {line}" for line in TRACEBACK]
    assert list_exceptions(*rows) == []


def test_exception_that_python_ignores_is_harmless() -> None:
    """A destructor's exception is not the failure; an uncaught one is, even if another thread's line precedes it."""
    frames = ['  File "/srv/app/io.py", line 3, in __del__', "    self.close()", "ConnectionResetError: reset by peer"]
    rows = ["Exception ignored in: <function Socket.__del__ at 0x7f2c>", "Traceback (most recent call last):", *frames]
    assert list_exceptions(*rows) == []
    assert list_exceptions(rows[0], *TRACEBACK) == [["torch.OutOfMemoryError: CUDA out of memory."]]


def test_exception_that_the_thread_for_shared_objects_survives_is_harmless() -> None:
    """The thread of multiprocessing that sends objects to children prints an exception, and serves the next child."""
    rows = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 138, in _serve',
        "[rank1]:     with self._listener.accept() as conn:",
        '[rank1]:   File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv',
        "[rank1]:     chunk = read(handle, remaining)",
        "[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer",
    ]
    assert list_exceptions(*rows) == []
    assert list_exceptions(*(row.replace("_serve", "fetch") for row in rows)) == [
        ["ConnectionResetError: [Errno 104] Connection reset by peer"]
    ]


def test_exception_that_cython_ignores_is_harmless() -> None:
    """Cython prints its traceback twice, before and after the line that announces it; the first failure counts."""
    ignored = [
        "Traceback (most recent call last):",
        '  File "cupy_backends/cuda/api/driver.pyx", line 247, in cupy_backends.cuda.api.driver.moduleUnload',
        "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access",
    ]
    rows = [*TRACEBACK, "", *ignored, "Exception ignored in: 'cupy.cuda.function.Module.__dealloc__'", *ignored]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]
    assert list_exceptions(*TRACEBACK, "Exception ignored in: <function Socket.__del__ at 0x7f2c>") == [
        ["torch.OutOfMemoryError: CUDA out of memory."]
    ]


def test_ignored_exception_after_another_one_leaves_that_one_as_it_is() -> None:
    """A destructor that fails after an exception of a child process, whose traceback has no module, is another one."""
    error = [*TRACEBACK[:-1], "ValueError: bad shape"]
    ignored = ["Exception ignored in: <function Adam.__del__ at 0x7f2c>", *TRACEBACK[:-1], "AttributeError: no op"]
    assert list_exceptions("Process SpawnProcess-1:", *error, *ignored) == [["ValueError: bad shape"]]


def test_source_that_is_printed_out_of_order_is_not_an_exception() -> None:
    """A call in the interleaved tracebacks of two processes does not end either of them."""
    rows = [*TRACEBACK[:-1], "self._take_model_step(lr_kwargs)", TRACEBACK[-1]]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]


def test_exception_of_a_ray_task_is_that_below_its_header() -> None:
    """Ray names the task before its frames, and its exception below them; without the latter the header counts."""
    header = "ray.exceptions.RayTaskError(ValueError): ray::main_task() (pid=42, ip=10.0.0.7)"
    frames = ['  File "/srv/app/trainer.py", line 9, in fit', "    step()"]
    rows = [*TRACEBACK[:-1], header, *frames, "ValueError: batch of 3 does not divide 8"]
    assert list_exceptions(*rows) == [["ValueError: batch of 3 does not divide 8"]]
    nested = [*TRACEBACK[:-1], header, *frames, header, *frames, "OSError: [Errno 28] No space left on device"]
    assert list_exceptions(*nested) == [["OSError: [Errno 28] No space left on device"]]
    assert list_exceptions(*TRACEBACK[:-1], header, *frames) == [[header]]


def test_failed_command_of_a_launcher_is_reported_after_the_exception_of_its_rank() -> None:
    """Where the traceback of the rank is cut off, its last line precedes the launcher's report."""
    report = "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."
    launcher = [*TRACEBACK[:-1], report]
    assert list_exceptions("RuntimeError: shape mismatch", *launcher) == [["RuntimeError: shape mismatch"], [report]]
    assert list_exceptions(*launcher) == [[report]]


def test_error_of_logging_is_not_an_exception_of_the_program() -> None:
    """What Python's logging prints when it cannot write a message ends no program."""
    rows = [
        "--- Logging error ---",
        "Traceback (most recent call last):",
        '  File "/opt/python/logging/__init__.py", line 1103, in emit',
        "OSError: [Errno 28] No space left on device",
        "Call stack:",
        '  File "/opt/venv/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "Message: 'Error waiting on exit barrier. Elapsed: %s seconds'",
        "Arguments: (0.1,)",
    ]
    assert list_exceptions(*rows) == []
    assert diagnose_lines({"node_0": 143}, node_0=["hello", *rows]).cause == "terminated"


def test_error_of_loguru_is_not_an_exception_of_the_program() -> None:
    """Nor does what loguru prints when it cannot write a message; an exception after it counts."""
    rows = [
        "--- Logging error in Loguru Handler #1 ---",
        "Record was: {'elapsed': datetime.timedelta(0), 'exception': None}",
        "Traceback (most recent call last):",
        '  File "/opt/venv/lib/python3.11/site-packages/loguru/_handler.py", line 206, in emit',
        "OSError: [Errno 28] No space left on device",
        "--- End of logging error ---",
    ]
    assert list_exceptions(*rows) == []
    assert list_exceptions(*rows, *TRACEBACK) == [["torch.OutOfMemoryError: CUDA out of memory."]]


ASIDE_TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/opt/python/multiprocessing/connection.py", line 399, in _recv',
    "ConnectionResetError: [Errno 104] Connection reset by peer",
]


@pytest.mark.parametrize(
    "announcement",
    [
        ["Exception in thread Thread-3 (_pin_memory_loop):"],
        ["Error in atexit._run_exitfuncs:"],
        ["Error in sys.excepthook:"],
        ["Task exception was never retrieved", "future: <Task finished name='Task-7' coro=<serve() done>>"],
        ["Future exception was never retrieved", "future: <Future finished exception=ConnectionResetError()>"],
    ],
    ids=["thread", "exit", "hook", "task", "future"],
)
def test_exception_beside_the_program_is_the_cause_only_without_another_one(announcement: list[str]) -> None:
    """An exception of another thread, of a task or at exit ends no program: one of its main thread is the cause."""
    aside = [f"[default0]:{row}" for row in (*announcement, *ASIDE_TRACEBACK)]
    main = [f"[default0]:{row}" for row in TRACEBACK]
    for rows in ([*aside, *main], [*main, *aside]):
        assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "oom-gpu"
    assert diagnose_lines({"node_0": 1}, node_0=aside).cause == "peer-lost"


def test_exception_of_a_thread_is_known_by_its_first_frame() -> None:
    """Another process may print between the announcement and the traceback: the frame of the thread remains."""
    frame = '  File "/opt/python/threading.py", line 1016, in _bootstrap_inner'
    aside = ["Exception in thread Thread-3:", "closing the log", ASIDE_TRACEBACK[0], frame, *ASIDE_TRACEBACK[1:]]
    rows = [f"[default0]:{row}" for row in (*TRACEBACK, *aside)]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "oom-gpu"


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", PREFIXES["logging"]])
def test_tracebacks_of_other_ranks_in_an_exception_of_a_checkpoint_are_its_cause(prefix: str) -> None:
    """torch raises the same exception in every rank, and adds the traceback of each rank that failed."""
    rows = [
        *TRACEBACK[:-1],
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1, 3])",
        f"{TRACEBACK[0]} (RANK 1)",
        *TRACEBACK[1:-1],
        "AssertionError",
        f"{TRACEBACK[0]} (RANK 3)",
        *TRACEBACK[1:-1],
        "OSError: [Errno 116] Stale file handle",
    ]
    rows = [prefix.format(index=index % 10) + row for index, row in enumerate(rows)]
    assert list_exceptions(*rows) == [["AssertionError", "OSError: [Errno 116] Stale file handle"]]
    assert diagnose_lines({"node_0": 1}, node_0=["start", *rows]).cause == "storage-error"


def test_exception_of_a_thread_explains_one_that_only_reports_its_end() -> None:
    """If the main thread only reports that another one has ended, the exception of that thread is the cause."""
    thread = ["Exception in thread Thread-1 (save):", *TRACEBACK[:-1], "OSError: [Errno 28] No space left on device"]
    report = [*TRACEBACK[:-1], "RuntimeError: Saving thread exited unexpectedly"]
    rows = [f"[default0]:{row}" for row in (*thread, *report)]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "disk-full"


def test_exceptions_of_a_group_are_one() -> None:
    """Of a group of exceptions, the one that shows a cause counts, whatever its number is."""
    rows = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/srv/app/train.py", line 40, in <module>',
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        *(f"    | {row}" for row in (*TRACEBACK[:-1], "KeyError: 'labels'")),
        "    +---------------- 2 ----------------",
        *(f"    | {row}" for row in TRACEBACK),
        "    +------------------------------------",
    ]
    for prefix in ("", PREFIXES["logging"]):
        printed = [prefix.format(index=index % 10) + row for index, row in enumerate(rows)]
        assert diagnose_lines({"node_0": 1}, node_0=["start", *printed]).cause == "oom-gpu"
    assert list_exceptions(*rows) == [["KeyError: 'labels'", "torch.OutOfMemoryError: CUDA out of memory."]]


@pytest.mark.parametrize(
    "logger", ["2026-11-21 03:11:02,47{index} - tuner - INFO - ", "[2026-11-21 03:11:0{index}] [INFO] "]
)
def test_uncaught_exception_that_another_process_logs_as_information_counts(logger: str) -> None:
    """The prefix of torch's hook for uncaught exceptions, on each line, proves more than the level of who relays it."""
    rows = [f"{logger.format(index=index)}[rank3]: {row}" for index, row in enumerate(TRACEBACK)]
    failure = diagnose_lines({"node_0": 1}, node_0=["start", *rows])
    assert (failure.cause, failure.rank) == ("oom-gpu", 3)


def test_exception_that_a_rank_logs_as_information_is_harmless() -> None:
    """A rank's own logger prints its prefix once, before a message of several lines."""
    assert list_exceptions(f"2026-11-21 03:11:02,475 INFO [rank3]: {TRACEBACK[0]}", *TRACEBACK[1:]) == []


WORKER_FRAMES = [
    '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop',
    "    data = fetcher.fetch(index)",
    '  File "/srv/app/images.py", line 107, in __getitem__',
    "    return self.labels[index]",
]


@pytest.mark.parametrize(
    "carrier",
    [
        ["KeyError: Caught KeyError in DataLoader worker process 0.", f"Original {TRACEBACK[0]}"],
        ["KeyError: Caught KeyError in pin memory thread for device 0.", f"Original {TRACEBACK[0]}"],
        ["KeyError: Caught KeyError in replica 3 on device 3.", f"Original {TRACEBACK[0]}"],
        ["Exception: ", "", "-- Process 3 terminated with the following error:", TRACEBACK[0]],
        ["torch.ProcessRaisedException: ", "", "-- Process 0 terminated with the following error:", TRACEBACK[0]],
    ],
)
@pytest.mark.parametrize("prefix", ["", PREFIXES["logging"]])
def test_carried_traceback_is_the_exception(carrier: list[str], prefix: str) -> None:
    """Of an exception that carries the traceback of another process, the inner exception and its place count."""
    rows = [*TRACEBACK[:-1], *carrier, *WORKER_FRAMES, "KeyError: 13815"]
    rows = [prefix.format(index=index % 10) + row for index, row in enumerate(rows)]
    assert list_exceptions(*rows) == [["KeyError: 13815"]]
    sentence = diagnose_lines({"node_0": 1}, node_0=["start", *rows]).sentence
    assert "raised KeyError: 13815;" in sentence
    assert sentence.endswith("(at images.py:107).")


def test_carried_traceback_that_is_cut_off_leaves_its_carrier() -> None:
    """If the inner exception is missing, the line of the outer one is all that is known."""
    outer = "KeyError: Caught KeyError in DataLoader worker process 0."
    assert list_exceptions(*TRACEBACK[:-1], outer, f"Original {TRACEBACK[0]}", *WORKER_FRAMES) == [[outer]]


def test_announced_traceback_after_one_without_an_end_is_read() -> None:
    """A traceback whose last line never came carries nothing: what is announced later is an exception of its own."""
    rows = [
        *TRACEBACK[:-1],
        *["5 steps are done"] * 60,
        "-- Process 3 terminated with the following error:",
        *TRACEBACK,
    ]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]


def test_traceback_of_a_child_replaces_no_other_exception() -> None:
    """A text that announces the traceback of a child, after the exception of something else, starts a new exception."""
    rows = [
        *TRACEBACK,
        "5 steps are done",
        "-- Process 3 terminated with the following error:",
        *TRACEBACK[:-1],
        "KeyError: 'x'",
    ]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."], ["KeyError: 'x'"]]


def test_message_of_several_lines_is_read() -> None:
    """If the first line of an exception shows nothing, the rest of its message may."""
    frames = TRACEBACK[:-1]
    rows = [*frames, "TrainerError: the step failed:", "CUDA error: an illegal memory access was encountered", ""]
    assert diagnose_lines({"node_0": 1}, node_0=["start"]).cause == "unknown"
    (exception,) = split_lines(parse(*rows)).exceptions
    assert [line.text for line in exception.message] == ["CUDA error: an illegal memory access was encountered"]


@pytest.mark.parametrize(
    "line",
    ["wandb: Find logs at: ./wandb/run/logs", "mkdir: cannot create directory", "NVRM: Xid 45", "WARNING:root:slow"],
)
def test_message_of_a_command_ends_no_traceback(line: str) -> None:
    """Another process, such as wandb's, may print between the frames of a rank; it raises nothing."""
    rows = [*TRACEBACK[:-1], line, TRACEBACK[-1]]
    assert list_exceptions(*rows) == [["torch.OutOfMemoryError: CUDA out of memory."]]


def test_lines_of_other_processes_stay_visible_in_a_traceback() -> None:
    """Two processes share a log: a line between the frames of one is still read."""
    parts = split_lines(parse(TRACEBACK[0], TRACEBACK[1], "step 5 loss 0.1", *TRACEBACK[2:]))
    assert parts.other == [2]
