"""Which lines of a process may be the cause of its end, and which it has survived."""

import pytest

from tests.inputs.failure_logs import build_traceback
from torchyard.diagnosis.log_line_parts import LogLinePart, parse_line
from torchyard.diagnosis.symptoms import ProcessSymptoms, ProcessTimes
from torchyard.model.run import LogLine

NO_MODULE = "No module named 'apex'"
RETRY_EXCEEDED = "n1:42:43 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.5<44> with status=12 opcode=0 len=0"
OUT_OF_MEMORY = [line.partition(":")[2] for line in build_traceback(0, "torch.OutOfMemoryError: CUDA out of memory.")]


def read(*texts: str, interval_s: float = 1.0, is_shared: bool = False, **times: float) -> tuple[list[str], list[str]]:
    """The slugs of what may be the cause, and of what was survived; a line each `interval_s` seconds, from 100 on."""
    parts: list[LogLinePart] = []
    for index, text in enumerate(texts):
        parts += parse_line(LogLine(100.0 + index * interval_s, "node-0", text))
    symptoms = ProcessSymptoms(parts, ProcessTimes(**times), is_shared=is_shared)
    standing = [*symptoms.exceptions, *symptoms.lines]
    return [symptom.rule.cause.value for symptom in standing], [
        str(symptom.rule.cause) for symptom in symptoms.survived
    ]


def test_last_words_may_be_the_cause() -> None:
    """A line stands if only a few other lines follow it."""
    assert read("start", NO_MODULE, "cleaning up") == (["module-missing"], [])


def test_progress_acquits() -> None:
    """A process that prints a loss after a line has survived it, whatever the format; an exception too."""
    progress = ["step 5 loss 0.1", '{"step": 5, "loss": 0.1}', " 12%|#2   | 12/100", "Epoch: [0][5/99]"]
    for line in progress:
        assert read(NO_MODULE, "start", line) == ([], ["module-missing"])
        assert read(*OUT_OF_MEMORY, "start", line) == ([], ["oom-gpu"])


def test_other_output_acquits_a_line() -> None:
    """A process that goes on to print other things has survived a line; several processes may share a log."""
    output = ["building the model", "reading the data", "connecting", "compiling", "warming up"]
    assert read(NO_MODULE, *output) == ([], ["module-missing"])
    assert read(NO_MODULE, *output, is_shared=True) == (["module-missing"], [])


def test_time_acquits_a_line() -> None:
    """A process that ends ten minutes after a line did not end because of it."""
    assert read(NO_MODULE, "waiting", interval_s=600.0) == ([], ["module-missing"])


def test_line_long_before_a_wait_is_survived() -> None:
    """A process that waited until a timeout had survived what it printed before."""
    timeout = "RuntimeError: Socket Timeout"
    assert read(NO_MODULE, "waiting", timeout, interval_s=60.0) == (["peer-timeout"] * 2, ["module-missing"])


def test_collectives_acquit() -> None:
    """A process that takes part in collectives after a line has survived it, also if it prints nothing more."""
    assert read(NO_MODULE, last_collective=109.0) == ([], ["module-missing"])
    assert read(NO_MODULE, last_collective=100.5) == (["module-missing"], [])
    raised_at = 100.0 + len(OUT_OF_MEMORY)
    assert read(*OUT_OF_MEMORY, last_collective=raised_at + 9.0) == ([], ["oom-gpu"])
    assert read(*OUT_OF_MEMORY, last_collective=raised_at + 3.0) == (["oom-gpu"], [])


def test_progress_of_peers_acquits_a_line() -> None:
    """Ranks that make progress long after a line of another one show that it went on; an exception is not acquitted."""
    assert read(NO_MODULE, peers_progress=130.0) == ([], ["module-missing"])
    assert read(NO_MODULE, peers_progress=110.0) == (["module-missing"], [])
    assert read(*OUT_OF_MEMORY, peers_progress=900.0) == (["oom-gpu"], [])


def test_end_long_after_a_line_acquits_it() -> None:
    """A process that torchrun saw end ten minutes after its last line did not end because of it."""
    assert read(NO_MODULE, ended=700.0) == ([], ["module-missing"])


def test_one_more_step_does_not_acquit_the_network() -> None:
    """A line of NCCL stands although the step before it is printed after it."""
    assert read("start", RETRY_EXCEEDED, "step 5 loss 0.1") == (["rdma-retry-exceeded"], [])
    assert read("start", RETRY_EXCEEDED, "step 5 loss 0.1", "step 6 loss 0.1") == ([], ["rdma-retry-exceeded"])


def test_progress_of_others_does_not_acquit_an_exception_at_once() -> None:
    """Where processes share a log, the others go on for a moment after one has failed."""
    assert read(*OUT_OF_MEMORY, "step 5 loss 0.1", is_shared=True) == (["oom-gpu"], [])
    assert read(*OUT_OF_MEMORY, *["step 5 loss 0.1"] * 3, is_shared=True) == ([], ["oom-gpu"])


def test_output_that_was_buffered_does_not_acquit() -> None:
    """torchrun's tee may log a process's output shortly after the error that the process printed later."""
    rows = ["start", *OUT_OF_MEMORY, "step 5 loss 0.1"]
    assert read(*rows, interval_s=0.05)[0] == ["oom-gpu"]


def test_earlier_start_does_not_count() -> None:
    """What a process printed before its agent started it again is not why it ended."""
    assert read(*OUT_OF_MEMORY, "start", started=200.0) == ([], ["oom-gpu"])
    assert read(*OUT_OF_MEMORY, "start", started=50.0) == (["oom-gpu"], [])


EAGAIN = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
FORK = ['  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch', "    self.pid = os.fork()"]
EXEC = [
    '  File "/usr/lib/python3.11/subprocess.py", line 1955, in _execute_child',
    "    self.pid = _fork_exec(",
    "    ^^^^",
]
LOCK = ['  File "/srv/app/cache.py", line 7, in lock', "    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"]
PIN = ['  File "/srv/app/train.py", line 7, in step', "    batch = batch.pin_memory()"]
PIN_THREAD = [
    '  File "/opt/torch/utils/data/_utils/pin_memory.py", line 57, in pin_memory',
    "    return data.pin_memory(device)",
]
FIRST_USE = [
    '  File "/opt/torch/utils/data/_utils/pin_memory.py", line 22, in _pin_memory_loop',
    "    set_device(device_id)",
]


@pytest.mark.parametrize(
    ("call", "error", "cause"),
    [
        (FORK, EAGAIN, "too-many-processes"),
        (EXEC, EAGAIN, "too-many-processes"),
        (FORK, f"{EAGAIN}: 'checkpoint.pth.tar'", "program-error"),
        (LOCK, EAGAIN, "program-error"),
        (PIN, "torch.AcceleratorError: CUDA error: out of memory", "oom-host"),
        (PIN_THREAD, "RuntimeError: CUDA error: out of memory", "oom-host"),
        (PIN, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom-gpu"),
        (FIRST_USE, "RuntimeError: CUDA error: out of memory", "oom-gpu"),
    ],
)
def test_call_that_raised_an_exception_may_show_its_cause(call: list[str], error: str, cause: str) -> None:
    """EAGAIN at a fork is a lack of processes, and CUDA's lack of memory while it pins is one of the host's memory."""
    assert read(*OUT_OF_MEMORY[:-1], *call, error) == ([cause], [])


def test_error_of_cuda_before_the_loss_of_its_node_only_follows() -> None:
    """No program makes its node fail, so an error of CUDA just before is a sign of it; other exceptions stand."""
    node_lost = "srun: error: Node failure on host-7"
    error = [line.replace("OutOfMemoryError: CUDA out of memory.", "x: CUDA error: unknown") for line in OUT_OF_MEMORY]
    assert read(*error, node_lost) == (["node-lost"], [])
    assert read(*OUT_OF_MEMORY, node_lost) == (["oom-gpu", "node-lost"], [])
    assert read(node_lost, *error) == (["cuda-error", "node-lost"], [])


def test_message_of_a_warning_of_several_lines_is_harmless() -> None:
    """Python prints a warning's source below its message: what is between is a part of the warning."""
    warning = ["/srv/app/__init__.py:5: RuntimeWarning: Failed to read commit hash:", NO_MODULE, "  import version"]
    assert read("start", *warning) == ([], [])
    assert read("start", NO_MODULE, "  import version") == (["module-missing"], [])


@pytest.mark.parametrize(
    ("notice", "cause"),
    [
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-21T08:22:10 DUE TO TIME LIMIT ***", "time-limit"),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T08:22:10 ***", "cancelled"),
        ("received SIGTERM, the checkpoint is saved after this step: Received SIGTERM", "terminated"),
    ],
)
def test_process_may_go_on_for_a_while_after_it_is_told_to_end(notice: str, cause: str) -> None:
    """A process has a grace period: only progress long after the notice shows that it was not ended."""
    steps = [f"step {step} loss 0.1" for step in range(6)]
    assert read(notice, *steps, interval_s=10.0) == ([cause], [])
    assert read(notice, last_collective=150.0) == ([cause], [])
    assert read(notice, *steps, interval_s=60.0) == ([], [cause])


def test_output_that_a_launcher_prints_for_others_acquits_no_signal() -> None:
    """composer reports a crash, and then prints all that the other ranks had written."""
    output = ["building the model", "reading the data", "connecting", "compiling", "warming up"]
    assert read("Global rank 2 (PID 42) exited with code -7", *output) == (["shm-exhausted"], [])
    assert read("Global rank 2 (PID 42) exited with code -7", *output, "step 9 loss 0.1") == ([], ["shm-exhausted"])
