"""The root cause of a failed job, from recorded, posted and synthetic logs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inputs.failure_logs import SPELLINGS, WATCHDOG, build_summary_entry, build_traceback, diagnose_lines
from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.model.run import LogLine

RETRY_EXCEEDED = "n1:42:43 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.5<44> with status=12 opcode=0 len=0"


def test_job_without_failures_has_no_cause() -> None:
    """Agents that exited with 0 did not fail, whatever their logs contain and however the store was stopped."""
    logs = {"node-0": [LogLine(0.0, "node-0", "RuntimeError: tried again, and it worked")]}
    assert diagnose_failure(logs, {"node-0": 0, "node-1": 0, "etcd": -9}) is None
    assert diagnose_failure({}, {}) is None


def test_rank_that_received_sigterm_is_not_the_first_failure() -> None:
    """On two nodes, the earliest entry that is not a SIGTERM is the first failure."""
    node_0 = [*build_summary_entry(0, 0, -15, 10), *build_summary_entry(1, 1, -6, 14)]
    node_1 = [*build_summary_entry(2, 0, -15, 9), *build_summary_entry(3, 1, 7, 12)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=["5", *node_1])
    assert (failure.node, failure.rank, failure.exit_code) == ("node-1", 3, 7)


def test_root_cause_wins_within_a_second() -> None:
    """If ranks fail in the same second and no line is marked, torchrun's root cause, its last entry, comes first."""
    rows = [
        "Failures:",
        *build_summary_entry(0, 0, 1, 10),
        "Root Cause (first observed failure):",
        *build_summary_entry(1, 1, 3, 10),
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.rank, failure.exit_code) == (1, 3)


def test_earlier_lines_are_read_if_the_last_prove_no_cause() -> None:
    """If the last lines show only a consequence, earlier ones are read; else they stay unread."""
    last_lines = [LogLine(9.0, "node-0", "[default1]:waiting")]
    longer_logs = {
        "node-0": [LogLine(1.0, "node-0", "[default0]:torch.OutOfMemoryError: CUDA out of memory."), *last_lines]
    }
    failure = diagnose_failure({"node-0": last_lines}, {"node-0": 1}, longer_logs)
    assert failure
    assert (failure.cause, failure.line) == ("oom-gpu", "[default0]:torch.OutOfMemoryError: CUDA out of memory.")
    own_error = {"node-0": [LogLine(9.0, "node-0", "[default1]:KeyError: 'x'")]}
    failure = diagnose_failure(own_error, {"node-0": 1}, longer_logs)
    assert failure
    assert failure.cause == "program-error"


INTERRUPTED = ["Traceback (most recent call last):", '  File "train.py", line 30, in main', "KeyboardInterrupt"]
BROKEN_PIPE = [
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 239, in _feed',
    "BrokenPipeError: [Errno 32] Broken pipe",
]
DURING = ["", "During handling of the above exception, another exception occurred:", ""]


@pytest.mark.parametrize("exit_code", [-2, 130, 1])
@pytest.mark.parametrize("between", [["Exception in thread QueueFeederThread:"], DURING], ids=["thread", "chain"])
def test_broken_pipe_after_ctrl_c_is_no_lost_peer(exit_code: int, between: list[str]) -> None:
    """The helpers of a process that gets Ctrl-C get it too: a pipe to them that breaks is not the cause."""
    rows = ["epoch 3 loss 0.4", *INTERRUPTED, *between, *BROKEN_PIPE]
    assert diagnose_lines({"node_0": exit_code}, node_0=rows).cause == "terminated"


def test_broken_pipe_before_ctrl_c_is_a_lost_peer() -> None:
    """A person may press Ctrl-C because a peer was lost."""
    rows = [*BROKEN_PIPE, *DURING, *INTERRUPTED]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "peer-lost"


@pytest.mark.parametrize("exit_code", [-11, 139])
def test_missing_threads_of_openblas_explain_a_crash(exit_code: int) -> None:
    """OpenBLAS reports that it has too few threads, goes on, and crashes when it uses them."""
    rows = ["OpenBLAS blas_thread_init: pthread_create failed for thread 9 of 64: Resource temporarily unavailable"]
    assert diagnose_lines({"node_0": exit_code}, node_0=[*rows, "Segmentation fault"]).cause == "too-many-processes"


def test_sigterm_alone_is_the_cause() -> None:
    """If there is nothing but a SIGTERM, the SIGTERM is the cause."""
    failure = diagnose_lines({"node_0": 1, "node_1": None}, node_0=build_summary_entry(1, 1, -15, 10), node_1=["hello"])
    assert (failure.cause, failure.rank, failure.exit_code, failure.retry) == ("terminated", 1, -15, True)


def test_fabric_error_explains_timeouts_elsewhere() -> None:
    """A rank that got no answer over RDMA is the cause, not the ranks that waited for it and failed first."""
    node_0 = [f"[default0]:{WATCHDOG}", *build_summary_entry(0, 0, -6, 10)]
    node_1 = [f"[default1]:{RETRY_EXCEEDED}", *build_summary_entry(3, 1, -6, 12)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.node, failure.rank) == ("rdma-retry-exceeded", "node-1", 3)


def test_lost_process_explains_fabric_error() -> None:
    """RDMA requests to a killed process fail too, so the kill is the cause."""
    node_1 = [f"[default1]:{RETRY_EXCEEDED}", *build_traceback(1, "RuntimeError: NCCL communicator was aborted")]
    failure = diagnose_lines(
        {"node_0": -9, "node_1": 1}, node_0=["hello"], node_1=[*node_1, *build_summary_entry(3, 1, 1, 12)]
    )
    assert (failure.cause, failure.node, failure.exit_code) == ("agent-killed", "node-0", -9)


def test_killed_rank_that_is_reported_late_is_the_first() -> None:
    """torchrun reports a killed worker only after it has stopped the others; it still failed first."""
    node_0 = [
        *build_traceback(0, "RuntimeError: Connection closed by peer [10.0.0.5]:1"),
        *build_summary_entry(0, 0, 1, 10),
    ]
    node_1 = ["[default1]:hello", *["[default0]:waiting"] * 40, *build_summary_entry(3, 1, -9, 41)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank, failure.exit_code) == ("killed", 3, -9)


def test_later_error_explains_nothing() -> None:
    """An error long after a timeout did not cause it."""
    node_0 = [f"[default0]:{WATCHDOG}", *build_summary_entry(0, 0, -6, 10)]
    node_1 = ["100", *build_traceback(1, "KeyError: 'step'"), *build_summary_entry(3, 1, 1, 50)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.node, failure.rank) == ("nccl-timeout", "node-0", 0)


def test_own_error_is_not_blamed_on_others() -> None:
    """An exception of the first rank is the cause, even if another node ran out of memory in the same second."""
    node_1 = ["[default0]:torch.OutOfMemoryError: CUDA out of memory.", *build_summary_entry(2, 0, 1, 10)]
    node_0 = [*build_traceback(0, "ValueError: bad batch"), *build_summary_entry(0, 0, 1, 9)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank) == ("program-error", 0)


def test_error_that_a_killed_rank_survived_is_not_the_cause() -> None:
    """An error that a rank survived before it was killed is not why it ended."""
    caught_error = build_traceback(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert diagnose_lines({"node_0": 1}, node_0=[*caught_error, *build_summary_entry(0, 0, -9, 10)]).cause == "killed"


def test_sigkill_alone_is_not_out_of_memory() -> None:
    """SIGKILL does not name its sender, a line of the OOM killer does; MemoryError is not a signal."""
    oom = "Memory cgroup out of memory: Killed process 4242 (python)"
    assert diagnose_lines({"node_0": 1}, node_0=[oom, *build_summary_entry(0, 0, -9, 10)]).cause == "oom-host"
    failure = diagnose_lines(
        {"node_0": 1}, node_0=[*build_traceback(0, "MemoryError"), *build_summary_entry(0, 0, 1, 10)]
    )
    assert (failure.cause, "SIGKILL" in failure.sentence) == ("oom-host", False)


def test_recorded_traceback_is_read() -> None:
    """If the workers' lines are missing, the traceback that @record put into torchrun's summary is read."""
    traceback = [
        "  traceback : Traceback (most recent call last):",
        '    File "/srv/app/train.py", line 3, in <module>',
    ]
    rows = [*build_summary_entry(1, 1, 1, 10)[:-1], *traceback, "      step()", "  ValueError: bad batch", "=" * 60]
    failure = diagnose_lines({"node_0": 1, "node_1": None}, node_0=rows)
    assert (failure.cause, failure.rank, failure.line) == ("program-error", 1, "  ValueError: bad batch")


def test_rank_is_in_the_line() -> None:
    """NCCL's watchdog names its rank, even in a line without torchrun's mark."""
    assert diagnose_lines({"node_0": 1, "node_1": None}, node_0=[WATCHDOG.removeprefix("[rank0]:")]).rank == 0


def test_rank_is_that_of_the_spawned_process() -> None:
    """The number in torch's text about a child of mp.spawn is a local rank: on a job's only node it is the rank."""
    traceback = [row.removeprefix("[default0]:") for row in build_traceback(0, "KeyError: 'x'")]
    announcement = "-- Process 3 terminated with the following error:"
    rows = ["start", *traceback[:-1], "torch.ProcessRaisedException: ", "", announcement, *traceback]
    assert diagnose_lines({"node_0": 1}, node_0=rows).rank == 3
    assert diagnose_lines({"node_0": 1, "node_1": None}, node_0=rows).rank is None
    rows[-1] = "RuntimeError: Timed out initializing process group in store based barrier on rank: 5, for key: x"
    assert diagnose_lines({"node_0": 1}, node_0=rows).rank == 5


def test_report_behind_the_prefix_of_a_launcher_is_read() -> None:
    """A launcher that prints what torchrun wrote marks each line with the stream; it is read like torchrun's own."""
    rows = ["Root Cause (first observed failure):", *build_summary_entry(5, 1, 3, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=[f"stderr: {row}" for row in rows])
    assert (failure.rank, failure.exit_code) == (5, 3)


def test_silent_node_does_not_hide_the_cause() -> None:
    """A node without a log may have failed first, but the error that another node reports is the better answer."""
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_1=["100", "torch.OutOfMemoryError: CUDA out of memory."])
    assert (failure.cause, failure.node) == ("oom-gpu", "node-1")


def test_node_that_received_sigterm_is_not_the_first() -> None:
    """An agent that was ended by SIGTERM wrote its last line first, but the other one is the one that failed."""
    failure = diagnose_lines({"node_0": 143, "node_1": 1}, node_0=["hello"], node_1=["9", "ValueError: bad batch"])
    assert (failure.cause, failure.node) == ("program-error", "node-1")


def test_local_rank_becomes_global() -> None:
    """Without torchrun's failure summary, the rendezvous result maps a local rank to its global rank."""
    node_1 = ["I1121 api.py:553]   global_ranks=[2, 3]", *build_traceback(1, "KeyError: 'x'")]
    assert diagnose_lines({"node_0": None, "node_1": 1}, node_0=["hello"], node_1=node_1).rank == 3


def test_rank_that_a_program_prints_is_not_believed() -> None:
    """Lightning prints `[rank: 0]` in every rank until its strategy is set up: torchrun knows better."""
    node_1 = [
        "I1121 api.py:553]   global_ranks=[1]",
        "[default0]:[rank: 0] Seed set to 42",
        *build_traceback(0, "KeyError: 'x'"),
    ]
    assert diagnose_lines({"node_0": None, "node_1": 1}, node_0=["hello"], node_1=node_1).rank == 1


def test_report_of_torchrun_1_9_is_read() -> None:
    """The older form of torchrun's failure summary is read as well."""
    fields = ["time: 2021-07-13_13:18:54", "rank: 3 (local_rank: 1)", "exitcode: -9 (pid: 4404)", "error_file: <N/A>"]
    report = ["[0]:", *(f"  {field}" for field in fields), '  msg: "Signal 9 (SIGKILL) received by PID 4404"']
    failure = diagnose_lines({"node_0": 1}, node_0=report)
    assert (failure.cause, failure.rank, failure.exit_code) == ("killed", 3, -9)


@pytest.mark.parametrize(("code", "cause"), [(137, "agent-killed"), (143, "terminated"), (1, "unknown")])
def test_exit_code_of_a_silent_agent(code: int, cause: str) -> None:
    """A shell's 128 + n is signal n; an unknown cause is never worth a new attempt."""
    failure = diagnose_lines({"node_0": code, "node_1": None}, node_0=["hello"])
    assert (failure.cause, failure.exit_code, failure.retry) == (cause, code, cause != "unknown")


def test_agent_killed_after_sigterm_was_terminated() -> None:
    """An agent that got SIGTERM and did not end in time was stopped, not lost."""
    signal_line = "W1121 08:22:10.123456 42 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal"
    assert diagnose_lines({"node_0": -9}, node_0=["hello", signal_line]).cause == "terminated"


def test_reason_of_the_store_is_the_cause() -> None:
    """The store's own reason counts more than the agents' errors about the store."""
    agent_lines = [
        "10",
        "RendezvousConnectionError: The connection to etcd has failed. See inner exception for details.",
    ]
    failure = diagnose_lines(
        {"node_0": 1, "etcd": 1}, node_0=agent_lines, etcd=["panic: write: no space: No space left on device"]
    )
    assert (failure.cause, failure.node) == ("disk-full", "etcd")


def test_tail_is_of_the_failing_rank() -> None:
    """The tail has the last 50 lines of the rank that failed, without those of other ranks."""
    lines = [f"[default{index % 2}]:step {index // 2}" for index in range(200)]
    failure = diagnose_lines({"node_0": 1}, node_0=[*lines, *build_summary_entry(1, 1, 7, 10)])
    assert (len(failure.tail), failure.tail[-1]) == (50, "[default1]:step 99")


SURVIVED = "[default1]:rank 1: no GPU (RuntimeError: Found no NVIDIA driver on your system), training on the CPU"


@pytest.mark.parametrize(
    ("last_collectives", "cause"), [({1: 9.0}, "program-error"), ({1: 0.5}, "gpu-missing"), ({}, "gpu-missing")]
)
def test_line_before_the_last_collective_is_not_the_cause(last_collectives: dict[int, float], cause: str) -> None:
    """A rank that took part in collectives after a line did not exit because of it; the line is mentioned."""
    lines = [SURVIVED, "[default0]:step 1 loss 0.5", *build_summary_entry(1, 1, 3, 10)]
    logs = {"node-0": [LogLine(float(number), "node-0", text) for number, text in enumerate(lines)]}
    failure = diagnose_failure(logs, {"node-0": 1}, last_collectives=last_collectives)
    assert failure
    assert (failure.cause, failure.rank, failure.exit_code) == (cause, 1, 3)
    assert "no GPU" in failure.sentence


def test_list_of_errors_is_quoted_with_its_first() -> None:
    """An exception whose first line only announces a list is quoted with the first item of it."""
    error = "RuntimeError: Error(s) in loading state_dict for Net:"
    lines = [*build_traceback(0, error), '[default0]:\tMissing key(s) in state_dict: "b".']
    failure = diagnose_lines({"node_0": 1}, node_0=[*lines, *build_summary_entry(0, 0, 1, 10)])
    assert 'loading state_dict for Net: Missing key(s) in state_dict: "b"; read' in failure.sentence


@pytest.mark.parametrize(
    ("frames", "location"),
    [
        (['File "/w/train.py", line 9, in main', 'File "/w/data.py", line 40, in read'], "(at data.py:40)"),
        (
            [
                'File "/w/train.py", line 9, in main',
                'File "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 5, in forward',
            ],
            "(at train.py:9)",
        ),
        (['File "/usr/lib/python3.11/runpy.py", line 5, in run'], "correct the program."),
    ],
    ids=["program", "library", "no program"],
)
def test_exception_has_the_line_of_the_program(frames: list[str], location: str) -> None:
    """The sentence names the innermost frame of the traceback that is not a library's."""
    traceback = ["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), "ValueError: no data"]
    lines = [f"[default0]:[rank0]: {text}" for text in traceback]
    failure = diagnose_lines({"node_0": 1}, node_0=[*lines, *build_summary_entry(0, 0, 1, 10)])
    assert failure.sentence.endswith(location if location.endswith(".") else f"correct the program {location}.")


@pytest.mark.parametrize(
    ("caller", "cause"), [("torch/utils/data/dataloader.py", "data-worker-lost"), ("w/train.py", "peer-lost")]
)
def test_connection_to_a_data_worker_is_none_to_a_peer(caller: str, cause: str) -> None:
    """A data loader whose process was killed may see only that its connection broke: no other rank was lost."""
    frames = [("w/train.py", 9), (caller, 1291), ("usr/lib/python3.11/multiprocessing/connection.py", 395)]
    traceback = ["Traceback (most recent call last):"]
    traceback += [f'  File "/{file}", line {line}, in read' for file, line in frames]
    traceback.append("ConnectionResetError: [Errno 104] Connection reset by peer")
    lines = [f"[default0]:[rank0]: {text}" for text in traceback]
    failure = diagnose_lines({"node_0": 1}, node_0=[*lines, *build_summary_entry(0, 0, 1, 10)])
    assert failure.cause == cause


def test_silent_rank_has_no_lines_of_others() -> None:
    """A rank that exits and has printed nothing has an empty tail, and the sentence states that."""
    failure = diagnose_lines({"node_0": 1}, node_0=["[default0]:Connection closed", *build_summary_entry(1, 1, 3, 10)])
    assert (failure.cause, failure.rank, failure.tail) == ("program-error", 1, ())
    assert "exited with code 3 and has printed nothing: look for what calls exit" in failure.sentence


@settings(deadline=None)
@given(st.data())
def test_any_text_can_be_read(data: st.DataObject) -> None:
    """No line and no exit code makes the reader fail; a failure always names a node of the job."""
    known_lines = [line for _, line in SPELLINGS] + build_summary_entry(1, 1, 1, 1) + build_traceback(0, "KeyError")
    text = st.lists(st.one_of(st.text(max_size=30), st.sampled_from(known_lines)), max_size=3).map("".join)
    lines = st.lists(st.builds(LogLine, st.floats(0, 2e9), st.just("node"), text), max_size=12)
    nodes = st.sampled_from(["node-0", "node-1", "etcd"])
    exit_codes = data.draw(st.dictionaries(nodes, st.one_of(st.none(), st.integers(-70, 300))))
    logs = data.draw(st.dictionaries(nodes, lines))
    failure = diagnose_failure(logs, exit_codes)
    assert failure is None or failure.node in {*exit_codes, *logs}


@pytest.mark.parametrize("code", [0, 1, -9, -15])
def test_store_that_ended_first_is_the_cause(code: int) -> None:
    """If the rendezvous store ends while agents still run, it is the cause, and another attempt is worthwhile."""
    failure = diagnose_failure({}, {"node-0": None, "etcd": code})
    assert failure
    assert (failure.cause, failure.node, failure.retry) == ("etcd-gone", "etcd", True)


def test_peer_that_was_lost_by_an_exit_is_not_its_cause() -> None:
    """If a rank on the rendezvous host exits with 7, the connection that another node then loses is not the cause."""
    entry = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-21_10:37:42", "  host      : h"]
    entry += ["  rank      : 1 (local_rank: 0)", "  exitcode  : 7 (pid: 22)", "  error_file: <N/A>"]
    exited_node_lines = [
        "[default0]:out of ideas",
        "failed (exitcode: 7) local_rank: 0 (pid: 22) of binary: python",
        *entry,
    ]
    peer_lines = [
        "[W1 socket.cpp:461] waitForInput: poll for socket returned POLLHUP",
        "c10d.DistNetworkError: Connection reset",
    ]
    lines = {
        "node-0": [LogLine(2.5, "node-0", text) for text in exited_node_lines],
        "node-1": [LogLine(4.1, "node-1", text) for text in peer_lines],
    }
    failure = diagnose_failure(lines, {"node-0": 1, "node-1": None})
    assert failure
    assert (failure.node, failure.rank, failure.exit_code, failure.retry) == ("node-0", 1, 7, False)


CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T08:22:10 ***"
TIME_LIMIT = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T08:22:10 DUE TO TIME LIMIT ***"
TASK_KILLED = "srun: error: n1: task 0: Killed"
TASK_EXITED = "srun: error: n2: tasks 4-7: Exited with exit code 3"


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        pytest.param([TIME_LIMIT, TASK_KILLED], "time-limit", id="killed at the time limit"),
        pytest.param([CANCELLED, TASK_KILLED], "cancelled", id="killed by a cancel"),
        pytest.param([CANCELLED, TASK_EXITED], "cancelled", id="exited by a cancel"),
        pytest.param([TASK_KILLED, CANCELLED], "killed", id="cancelled after a kill"),
        pytest.param([TASK_EXITED, CANCELLED, TASK_KILLED], "program-error", id="cancelled after an exit"),
        pytest.param([TASK_EXITED, TIME_LIMIT], "time-limit", id="exited long before the time limit"),
    ],
)
def test_kill_and_cancel_by_the_scheduler_follow_from_what_came_before(rows: list[str], cause: str) -> None:
    """A scheduler kills what it ends, and srun cancels the step of a task that failed: the first line is the cause."""
    assert diagnose_lines({"node_0": 1}, node_0=["step 4, loss 2.1", *rows]).cause == cause


def test_exit_of_a_task_is_reported_with_its_code() -> None:
    """The sentence about a task of srun names the exit code that srun reports."""
    failure = diagnose_lines({"node_0": 1}, node_0=[TASK_EXITED])
    assert failure.sentence == (
        "node-0 had a task of srun exit with code 3 and without a traceback: read its last lines."
    )


def test_refused_download_may_be_tried_again() -> None:
    """A server that refuses too many requests may accept a later one, but a missing right stays missing."""
    error = "requests.exceptions.HTTPError: {} for url: https://huggingface.co/x"
    assert diagnose_lines({"node_0": 1}, node_0=[error.format("429 Client Error: Too Many Requests")]).retry
    assert not diagnose_lines({"node_0": 1}, node_0=[error.format("401 Client Error: Unauthorized")]).retry


def test_fault_of_the_gpu_explains_an_error_of_cuda() -> None:
    """The kernel's line about a broken GPU is the cause of the exception, wherever it is logged; others are not."""
    traceback = build_traceback(0, "RuntimeError: CUDA error: unspecified launch failure")
    fault = (
        "[default0]:NVRM: Xid (PCI:0000:3b:00): 119, pid=42, Timeout after 45s of waiting for RPC response from GPU0"
    )
    failure = diagnose_lines({"node_0": 1}, node_0=[*traceback, fault])
    assert (failure.cause, failure.retry) == ("gpu-fault", True)
    other = build_traceback(0, "KeyError: 'x'")
    assert diagnose_lines({"node_0": 1}, node_0=[*other, fault]).cause == "program-error"


def test_kill_explains_the_exception_about_a_lost_actor() -> None:
    """If an exception only reports that an actor died, the line about its kill for memory is the cause."""
    kill = (
        "(raylet) node_manager.cc:30: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed"
    )
    traceback = build_traceback(0, "ray.exceptions.ActorDiedError: The actor died unexpectedly.")
    rows = [row.removeprefix("[default0]:") for row in traceback]
    assert diagnose_lines({"node_0": 1}, node_0=[kill, *rows]).cause == "oom-host"
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "worker-lost"


def test_error_of_a_command_is_explained_by_an_exception_before_it() -> None:
    """A launcher that raises CalledProcessError only reports that its program failed, also because of a peer."""
    lost_peer = build_traceback(
        0, "RuntimeError: [/x/gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:1"
    )
    report = build_traceback(0, "subprocess.CalledProcessError: Command 'train.py' returned non-zero exit status 1.")
    rows = [row.removeprefix("[default0]:") for row in (*lost_peer, "the launcher ends", *report)]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "peer-lost"
    assert diagnose_lines({"node_0": 1}, node_0=rows[-len(report) :]).cause == "program-error"


def test_end_of_a_data_worker_explains_the_exception_about_it() -> None:
    """A data worker reports its bus error as a line, and the rank only that a worker exited."""
    bus_error = "[default0]:ERROR: Unexpected bus error encountered in worker. Is there enough shared memory?"
    traceback = build_traceback(0, "RuntimeError: DataLoader worker (pid(s) 42) exited unexpectedly")
    failure = diagnose_lines({"node_0": 1}, node_0=[bus_error, *traceback])
    assert failure.cause == "shm-exhausted"
    assert "seen before it" not in failure.sentence  # the exception came after it


def test_lines_of_srun_are_no_part_of_an_exception() -> None:
    """What srun reports after a traceback is not the rest of the exception's message."""
    rows = [row.removeprefix("[default0]:") for row in build_traceback(0, "AssertionError: too slow")]
    rows += [TASK_EXITED, CANCELLED, TASK_KILLED]
    failure = diagnose_failure({"node-0": [LogLine(0.0, "node-0", row) for row in rows]}, {"node-0": 1})
    assert failure
    assert failure.sentence.startswith("node-0 raised AssertionError: too slow")


def test_line_of_nccl_precedes_a_general_error_of_another_rank_at_the_same_time() -> None:
    """In a log without times, NCCL's line without a rank says why the rank's exception reports an error of NCCL."""
    rows = ["n1:4:5 [2] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2<44>"]
    error = "torch.distributed.DistBackendError: NCCL error in: x.hpp:20, internal error, NCCL version 2.19.3"
    rows += [row.replace("[default0]:", "[rank2]: ") for row in build_traceback(0, error)]
    failure = diagnose_failure({"node-0": [LogLine(0.0, "node-0", row) for row in rows]}, {"node-0": 1})
    assert failure
    assert failure.cause == "peer-lost"


@pytest.mark.parametrize(
    ("signal", "cause"),
    [("SIGKILL", "killed"), ("SIGSEGV", "segfault"), ("SIGABRT", "abort"), ("SIGTERM", "terminated")],
)
def test_signal_that_an_exception_about_a_child_names_is_the_cause(signal: str, cause: str) -> None:
    """The exception of a launcher is not the program's, but it names the signal that ended the child."""
    error = f"torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal {signal}"
    rows = [row.removeprefix("[default0]:") for row in build_traceback(0, error)]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == cause


WRAPPED_ERROR = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:20, unhandled system error, NCCL version 2.21.5"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            ["n1:4:5 [0] transport/p2p.cc:238 NCCL WARN failed to open the file", "n1:4:5 [0] x.cc:1 NCCL WARN Later"],
            [],
            id="warning",
        ),
        pytest.param(
            [], ["ncclSystemError: System call failed.", "Last error:", "failed to open the file"], id="message"
        ),
        pytest.param([], ["[x.py:45] Last error:", "[x.py:45] failed to open the file"], id="message of a logger"),
    ],
)
def test_general_error_of_nccl_quotes_its_own_words(before: list[str], after: list[str]) -> None:
    """The first warning of NCCL, or else its last error, is quoted in place of the exception that reports it."""
    rows = [*before, *build_traceback(0, WRAPPED_ERROR), *after]
    rows = [row if row.startswith("[default0]:") else f"[default0]:{row}" for row in rows]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert failure.cause == "nccl-system-error"
    assert "in a system call (failed to open the file): " in failure.sentence


@pytest.mark.parametrize(
    ("words", "quote"),
    [
        ([], "SIGABRT"),
        (["free(): invalid pointer"], "free(): invalid pointer"),
        (["python: kernel.cc:12: void run(int): Assertion `n > 0' failed."], "Assertion `n > 0' failed)"),
        (["Fatal Python error: Aborted"], "Fatal Python error: Aborted"),
    ],
)
def test_rank_that_aborts_is_not_explained_by_the_peer_that_lost_it(words: list[str], quote: str) -> None:
    """The peer raises seconds later; the abort is the program's, and another attempt would not help."""
    lost = build_traceback(0, "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:55: Connection reset by peer")
    node_0 = ["5", *lost, *build_summary_entry(0, 0, 1, 6)]
    node_1 = ["3", *[f"[default0]:{word}" for word in words], *build_summary_entry(1, 0, -6, 4)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank, failure.retry) == ("abort", 1, False)
    assert quote in failure.sentence


def test_rank_that_aborts_because_it_lost_a_peer_is_not_the_first_failure() -> None:
    """Its message is nearer than the signal: the peer that was killed is the cause."""
    message = "[default0]:  what():  [pair.cc:537] Connection closed by peer [10.0.0.2]:55"
    node_0 = ["5", "[default0]:terminate called after throwing an instance of 'gloo::IoException'", message]
    node_0 += build_summary_entry(0, 0, -6, 5)
    node_1 = ["6", *build_summary_entry(1, 0, -9, 6)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank) == ("killed", 1)


def test_rank_that_handles_sigterm_and_ends_with_0_was_stopped() -> None:
    """Lightning ends well after SIGTERM: the peers lose the rank, and another attempt may succeed."""
    lost = build_traceback(0, "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:55")
    node_0 = ["9", *lost, *build_summary_entry(0, 0, 1, 12)]
    node_1 = [
        "5",
        "I1127 08:22:05 7 api.py:539]   global_ranks=[1]",
        "[default0]:[rank: 0] Received SIGTERM: 15",
        "I1127 08:22:08 7 api.py:952] [default] worker group successfully finished.",
    ]
    failure = diagnose_lines({"node_0": 1, "node_1": 0}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.node, failure.retry) == ("terminated", "node-1", True)
    without_signal = diagnose_lines({"node_0": 1, "node_1": 0}, node_0=node_0, node_1=[*node_1[:2], node_1[3]])
    assert without_signal.cause == "ended-early"


def test_rank_that_its_agent_stopped_does_not_explain_a_timeout() -> None:
    """Ranks time out, and their agent stops the one that hung: it was not stopped from outside."""
    timed_out = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"
    stopped = build_summary_entry(3, 1, -15, 11)
    first = [line.replace("pid: 42", "pid: 41") for line in build_summary_entry(2, 0, 1, 10)]
    node_0 = ["9", *build_traceback(0, timed_out), *build_summary_entry(0, 0, 1, 10)]
    node_1 = ["9", *build_traceback(0, timed_out), "W1 api.py:1028] Sending process 42 closing signal SIGTERM"]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=[*node_1, *stopped, *first])
    assert failure.cause == "peer-timeout"
    assert failure.rank in (0, 2)


@pytest.mark.parametrize(("lost_at", "cause", "rank"), [(29, "nccl-timeout", 0), (10, "peer-lost", 2)])
def test_end_of_a_rank_that_timed_out_is_lost_by_its_peers(lost_at: int, cause: str, rank: int) -> None:
    """A rank that times out and ends is lost by others at this moment; a loss long before is a reason of its own."""
    timed_out = build_traceback(0, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 12000 ms")
    lost = build_traceback(0, "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:6023")
    node_0 = ["30", *timed_out, *build_summary_entry(0, 0, 1, 31)]
    node_1 = [str(lost_at), *lost, *build_summary_entry(2, 0, 1, lost_at)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank) == (cause, rank)


def test_timeout_that_names_the_missing_ranks_is_reported() -> None:
    """Of ranks that time out together, the one that reports which ranks have not come is quoted."""
    timed_out = build_traceback(0, "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation")
    barrier = build_traceback(0, "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 12000 ms")
    node_0 = ["30", *barrier, *build_summary_entry(0, 0, 1, 31)]
    node_1 = ["29", *timed_out, *build_summary_entry(3, 0, 1, 30)]
    failure = diagnose_lines({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.rank) == ("nccl-timeout", 0)
    assert "rank 1, rank 2 did not join it" in failure.sentence


def test_end_of_a_rank_is_read_behind_its_progress_bar() -> None:
    """torchrun reports behind an open progress bar that its ranks have ended with 0, and waits for the other agents."""
    bar = "[default0]:  3%|#  | 146/5000 [00:05<02:50, 28.48it/s]"
    agent = "I1128 07:19:11.789000 17072 torch/distributed/elastic/agent/server/api.py"
    node_0 = [
        "0",
        f"{agent}:552]   global_ranks=[0]",
        f"{bar}{agent}:931] [default] worker group successfully finished. Waiting 300 seconds",
    ]
    lost = build_traceback(0, "RuntimeError: [pair.cc:545] Read error [127.0.0.1]:22193: Connection reset by peer")
    node_1 = ["5", *lost, *build_summary_entry(1, 0, 1, 12)]
    failure = diagnose_lines({"node_0": None, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (failure.cause, failure.node, failure.rank, failure.retry) == ("ended-early", "node-0", 0, False)


def test_killed_data_worker_has_no_place() -> None:
    """torch raises wherever the program is when its worker dies; a SIGKILL leaves no error of its own."""
    frames = [
        '  File "/srv/app/train.py", line 3, in <module>',
        '  File "/v/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler',
        "    _error_if_any_worker_fails()",
        "RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed. ",
    ]
    rows = [f"[default0]:{row}" for row in ["Traceback (most recent call last):", *frames]]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert failure.cause == "data-worker-lost"
    assert "is killed by signal: Killed): check its host's kernel log" in failure.sentence
    assert "train.py" not in failure.sentence


def test_place_of_a_chain_is_that_of_the_program() -> None:
    """If the quoted exception was raised and handled inside a library, a later one of the chain has the line."""
    rows = [
        "Traceback (most recent call last):",
        '  File "/v/site-packages/hub/validators.py", line 1, in check',
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/model'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/srv/app/sft.py", line 145, in <module>',
        '  File "/srv/app/sft.py", line 103, in main',
        '  File "/v/site-packages/hub/load.py", line 7, in load',
        "OSError: it has no configuration",
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=[f"[default0]:{row}" for row in rows])
    assert (failure.cause, "(at sft.py:103)" in failure.sentence) == ("file-missing", True)


def test_exception_that_the_program_survived_is_named_beside_its_exit_code() -> None:
    """An exception that was caught is not the failure, but may be the reason for a code that the program chose."""
    steps = [f"[default0]:step {step} loss 0.{step}" for step in range(20)]
    rows = [*build_traceback(0, "KeyError: 'learning_rate'"), *steps, *build_summary_entry(0, 0, 3, 40)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert "exited with code 3 and without a traceback" in failure.sentence
    assert "seen before it: KeyError: 'learning_rate'" in failure.sentence


def test_exception_with_another_exit_code_than_pythons_names_the_code() -> None:
    """Python ends with 1 after an exception that nothing catches: another code is the program's own."""
    rows = [*build_traceback(0, "KeyError: 'learning_rate'."), *build_summary_entry(0, 0, 3, 40)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert failure.sentence.endswith("(at train.py:3); it exited with code 3.")
    assert "'learning_rate'; read" in failure.sentence


def test_exception_that_is_printed_twice_has_the_rank_of_the_line_that_names_it() -> None:
    """A process of mp.spawn may log its exception, and the one that started it reports it again with its number."""
    frames = ["Traceback (most recent call last):", '  File "/srv/app/train.py", line 3, in step']
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    spawn = [*frames, "Exception: ", "", "-- Process 2 terminated with the following error:", *frames, error]
    failure = diagnose_lines({"node_0": 1}, node_0=["ERROR in training:", *frames, error, "total time 10 s", *spawn])
    assert (failure.cause, failure.rank) == ("cuda-error", 2)


def test_lost_worker_explains_the_exception_about_it() -> None:
    """Ray reports a lost worker, and then its own trainer raises an exception that says no more."""
    rows = [
        "2026-11-21 17:21:35,472 WARNING worker.py:1829 -- A worker died or was killed while executing a task",
        "ray.exceptions.RayTaskError(RuntimeError): ray::Trainer.train() (pid=42)",
        '  File "/srv/ray/trainable.py", line 3, in train',
        "RuntimeError: Worker failed",
    ]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "worker-lost"


LAUNCHER = [
    "Traceback (most recent call last):",
    '  File "/opt/torch/distributed/launch.py", line 340, in <module>',
    "    main()",
    "subprocess.CalledProcessError: Command '['python', '-u', 'train.py', '--local_rank=3']' returned non-zero exit",
]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("train.py: error: unrecognized arguments: --local_rank=0", "usage"),
        ("python: can't open file 'train.py': [Errno 2] No such file or directory", "program-missing"),
        ("bash: train.py: Permission denied", "permission-denied"),
        ("/opt/bin/python: No module named train", "module-missing"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom-gpu"),
    ],
)
def test_start_that_failed_explains_the_launchers_report(line: str, cause: str) -> None:
    """A launcher only reports that its command has failed; what the command printed before explains it."""
    failure = diagnose_lines({"node_0": 1}, node_0=["usage: train.py [-h]", line, *LAUNCHER])
    assert (failure.cause, failure.line) == (cause, line)


def test_ray_driver_reports_a_lost_worker() -> None:
    """The header of a task whose exception is cut off, and the driver's own check, only follow from a lost worker."""
    lost = "2026-11-21 17:21:35,472 WARNING worker.py:1829 -- A worker died or was killed while executing a task"
    frame = '  File "/srv/ray/trainable.py", line 3, in train'
    header = "ray.exceptions.RayTaskError(RuntimeError): ray::TrainTrainable.train() (pid=42)"
    check = "RuntimeError: Some workers returned results while others didn't."
    for rows in ([lost, header, frame], [lost, header, frame, check]):
        assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "worker-lost"


def test_warning_about_the_name_explains_the_failed_connection() -> None:
    """torch warns that a name has no address, and then reports as an error that no address could be reached."""
    rows = [
        "[W socket.cpp:558] [c10d] The IPv4 network addresses of (head, 50176) cannot be retrieved (gai error: -2).",
        "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (head, 50176).",
    ]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "endpoint-name"
    failure = diagnose_lines({"node_0": 1}, node_0=rows[1:])
    assert failure.sentence.endswith("check whether its host runs, and the firewall.")


def test_report_without_its_end_names_no_first_rank() -> None:
    """torchrun lists the other failures before the first one: without it, the first rank is not known."""
    rows = ["Failures:", *build_summary_entry(1, 1, 1, 10), *build_summary_entry(2, 2, 1, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank, failure.node) == ("program-error", None, "node-0")
    assert failure.sentence.startswith("node-0 exited with code 1")


def test_local_rank_is_named_if_the_global_one_is_unknown() -> None:
    """torchrun's line about a lost worker has its local rank, and the node itself was not killed."""
    rows = ["E1121 api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 42) of binary: /opt/bin/python"]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank) == ("killed", None)
    assert failure.sentence.startswith("Local rank 3 on node-0 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("line", "cause", "rank"),
    [
        ("Exception: process 3 terminated with signal SIGKILL", "killed", 3),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 17",
            "program-error",
            2,
        ),
        ("AssertionError: Rank 3: found NaN in local grad norm in backwards pass", "loss-nan", 3),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD", "program-error", 2),
    ],
)
def test_rank_is_that_of_the_process_which_the_line_is_about(line: str, cause: str, rank: int) -> None:
    """torch.multiprocessing, MPI and Megatron name the process that ended; where the report was raised says nothing."""
    frames = ["Traceback (most recent call last):", '  File "/srv/app/launch.py", line 59, in launch']
    failure = diagnose_lines({"node_0": 1}, node_0=[*frames, line])
    assert (failure.cause, failure.rank) == (cause, rank)
    assert cause == "loss-nan" or "launch.py" not in failure.sentence


def test_exit_code_2_alone_is_not_a_wrong_command() -> None:
    """argparse ends a program with 2, and so do others: only its message shows that the arguments are wrong."""
    rows = ["fatal: config is not valid", "Root Cause (first observed failure):", *build_summary_entry(1, 1, 2, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank) == ("program-error", 1)
    usage = "train.py: error: unrecognized arguments: --lr"
    assert diagnose_lines({"node_0": 1}, node_0=[usage, *rows[1:]]).cause == "usage"


def test_segment_that_nccl_could_not_create_after_an_error_of_cuda_follows_from_it() -> None:
    """NCCL creates shared memory and registers it with CUDA: without a reason, the segment itself proves nothing."""
    segment = "Error while creating shared memory segment /dev/shm/nccl-a (size 9637888)"
    cuda = "n1:11:31 [1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'"
    rows = [f"n1:11:31 [1] misc/shmutils.cc:114 NCCL WARN {segment}", "[rank1]: Last error:", f"[rank1]: {segment}"]
    assert diagnose_lines({"node_0": 1}, node_0=[cuda, *rows]).cause == "nccl-cuda-error"
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "shm-exhausted"


def test_launcher_that_stops_the_others_does_not_hide_the_first_failure() -> None:
    """A launcher reports the process that crashed, and then those that it has stopped."""
    rows = [
        "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.",
        "Global rank 0 (PID 42) exited with code -15",
        "Global rank 1 (PID 43) exited with code -15",
        "Global rank 2 (PID 44) exited with code -7",
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank, failure.retry) == ("shm-exhausted", 2, False)


@pytest.mark.parametrize("prefixed", [[], ["[rank0]:W1121 08:22:10.000000 42 torch/_inductor/utils.py:1137] few SMs"]])
def test_line_without_a_prefix_may_be_of_the_worker_that_failed(prefixed: list[str]) -> None:
    """Without torchrun's tee, torch puts a rank's prefix before some of its lines, and none before the program's."""
    rows = ["step 1 loss 2.9", *prefixed, "Loss is nan, stopping training", *build_summary_entry(0, 0, 1, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=["Root Cause (first observed failure):", *rows])
    assert (failure.cause, failure.rank) == ("loss-nan", 0)


def test_lines_of_a_rank_precede_those_without_a_prefix() -> None:
    """A line without a prefix may be another rank's: it counts only if those of the failed rank show nothing."""
    rows = ["Loss is nan, stopping training", "[rank1]: KeyError: 'x'", *build_summary_entry(1, 1, 1, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank) == ("program-error", 1)


def test_last_words_of_a_data_worker_explain_the_exception_about_it() -> None:
    """What a data worker prints before it aborts is the cause, and torch's exception only reports its end."""
    words = [
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: initialization error",
    ]
    exception = build_traceback(0, "RuntimeError: DataLoader worker (pid(s) 42) exited unexpectedly")
    rows = [*(f"[default0]:{row}" for row in words), *exception, *build_summary_entry(0, 0, 1, 10)]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "cuda-error"
    assert diagnose_lines({"node_0": 1}, node_0=rows[2:]).cause == "data-worker-lost"


LOST_DAEMON = "ORTE has lost communication with a remote daemon."
GPU_OOM = "(LLMRayActor pid=42) CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"


@pytest.mark.parametrize(
    ("line", "later_line", "cause"),
    [
        (LOST_DAEMON, "  Remote daemon: [[43015,0],20] on node job-lr-5e-6-worker-19", "peer-lost"),
        ("1234 Segmentation fault      (core dumped) python train.py", "collecting /out/lr-5e-6/log", "segfault"),
        ("RuntimeError: CUDA out of memory.", "pod job-epoch-3-worker-0 deleted", "oom-gpu"),
        (GPU_OOM, "Episode [1/16]:   0%|          | 0/309 [03:58<?, ?it/s]", "oom-gpu"),
    ],
)
def test_name_or_bar_without_a_step_is_no_progress(line: str, later_line: str, cause: str) -> None:
    """A number in the name of a job, and a progress bar that is only printed again, do not show that it went on."""
    assert diagnose_lines({"node_0": 1}, node_0=[line, later_line]).cause == cause
    progress = [f"epoch {number}, lr 5e-6, loss 0.5" for number in (3, 4)]
    assert diagnose_lines({"node_0": 1}, node_0=[line, *progress]).cause == "unknown"


def test_progress_bar_that_goes_on_is_progress() -> None:
    """A bar with another count shows that the process survived what it printed before."""
    bars = [f"Epoch 1:  {step}%|          | {step}/100 [03:58<10:00, 3.60it/s]" for step in (8, 9, 9)]
    assert diagnose_lines({"node_0": 1}, node_0=[bars[0], GPU_OOM, bars[1], bars[2]]).cause == "unknown"
    assert diagnose_lines({"node_0": 1}, node_0=[bars[0], bars[1], GPU_OOM, bars[2]]).cause == "oom-gpu"


@pytest.mark.parametrize("last_signal", [9, 15])
@pytest.mark.parametrize("exit_code", [1, 139])
def test_first_rank_that_died_of_a_signal_counts(last_signal: int, exit_code: int) -> None:
    """PALS reports each rank that a signal ended, and kills the others after the first one."""
    rows = ["rank 3 died from signal 11 and dumped core", f"rank 0 died from signal {last_signal}"]
    failure = diagnose_lines({"node_0": exit_code}, node_0=rows)
    assert (failure.cause, failure.rank, failure.line) == ("segfault", 3, rows[0])


def test_worker_that_torchrun_killed_later_is_not_the_first_failure() -> None:
    """torchrun also lists the workers that it ends after the first failure, with the signals that they received."""
    killed = build_summary_entry(0, 0, -9, 29)
    killed[-1] = "  traceback : Signal 9 (SIGKILL) received by PID 42"
    first = [row.replace("pid: 42", "pid: 43") for row in build_summary_entry(1, 1, 1, 2)]
    rows = ["Failures:", *killed, "Root Cause (first observed failure):", *first]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank, failure.exit_code) == ("program-error", 1, 1)


def test_child_that_lightning_reports_explains_the_lost_worker_of_ray() -> None:
    """Lightning ends its own process after another rank has failed, and Ray then reports a lost worker."""
    child = "[rank: 1] Child process with PID 42 terminated with code 1. Forcefully terminating all other processes"
    rows = [child, "(raylet) A worker died or was killed while executing a task by an unexpected system error."]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank) == ("program-error", 1)


SETUP = "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but"


def test_rank_that_sets_up_nccl_is_not_the_peer_that_the_line_names() -> None:
    """torch names the rank that failed to set up NCCL in brackets, and then the peer that may have crashed."""
    line = f"RuntimeError: [14] {SETUP} store->get('0') got error: Connection reset by peer. It crashed on rank 0"
    failure = diagnose_lines({"node_0": 1}, node_0=[line])
    assert (failure.cause, failure.rank) == ("peer-lost", 14)


NAMED_TIMEOUT = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"
NAMED_TIMEOUT += " ran for 600034 milliseconds before timing out."


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]:[E816 p.cpp:621] [Rank 0] Some NCCL operations have failed or timed out. Data may be corrupted.",
        "RuntimeError: NCCL communicator was aborted on rank 2.",
    ],
)
def test_watchdogs_own_line_explains_the_abort_that_follows(line: str) -> None:
    """The line with the collective that timed out is quoted, and not one that only follows from it."""
    logs = {"node-0": [LogLine(0.0, "node-0", row) for row in (line, f"[rank2]:[E816 p.cpp:1515] {NAMED_TIMEOUT}")]}
    failure = diagnose_failure(logs, {"node-0": 1})
    assert failure
    assert (failure.cause, failure.rank) == ("nccl-timeout", 2)
    assert "600 s for ALLREDUCE" in failure.sentence


def test_exception_that_announces_a_cause_shows_it() -> None:
    """Without its traceback, an exception whose line ends with a colon has the cause in the next line."""
    rows = [
        "RuntimeError: Failed to import transformers.modeling_utils because of the following error (see above):",
        "/lib/python3.10/site-packages/flash_attn_2_cuda.so: undefined symbol: _ZNK3c1011StorageImplEv",
    ]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "library-missing"
    assert diagnose_lines({"node_0": 1}, node_0=[rows[0], "unexpected"]).cause == "program-error"


@pytest.mark.parametrize(
    ("call", "cause"), [("self.f.write(*args)", "storage-error"), ("s.send(b'')", "program-error")]
)
def test_call_shows_whether_a_mount_was_lost(call: str, cause: str) -> None:
    """A lost mount and a socket that is not connected have the same words."""
    frame = [
        '  File "/lib/python3.10/site-packages/fsspec/implementations/local.py", line 382, in write',
        f"    {call}",
    ]
    error = "OSError: [Errno 107] Transport endpoint is not connected"
    rows = ["Traceback (most recent call last):", *frame, error]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == cause


def test_process_without_its_parent_is_not_the_first_failure() -> None:
    """A process that multiprocessing starts cannot read what its parent sends, if the parent has aborted."""
    frame = '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 132, in _main'
    error = "_pickle.UnpicklingError: pickle data was truncated"
    child = ["Traceback (most recent call last):", frame, "    self = reduction.pickle.load(from_parent)", error]
    failure = diagnose_lines({"node_0": 1}, node_0=child)
    assert failure.sentence.startswith(f"node-0 lost the process that was starting it ({error}")
    assert diagnose_lines({"node_0": 1}, node_0=["terminate called recursively", *child]).cause == "abort"


def test_warning_of_nccl_that_is_printed_late_is_quoted() -> None:
    """Where several processes print into one log, the warning may follow the exception that it explains."""
    rows = [
        "(pid=42) RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
        "(pid=43) z:43:44 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 no peer access",
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert failure.cause == "nccl-cuda-error"
    assert "(failed to open CUDA IPC handle : 217 no peer access)" in failure.sentence


def test_own_words_of_a_worker_explain_its_loss() -> None:
    """Ray reports that it has lost a worker, which has printed why."""
    reason = "(pid=42) libgomp: Thread creation failed: Resource temporarily unavailable"
    loss = "2020-05-22 14:15:23,659 WARNING worker.py:1072 -- A worker died or was killed while executing task ff."
    assert diagnose_lines({"node_0": 1}, node_0=[reason, loss]).cause == "too-many-processes"
    assert diagnose_lines({"node_0": 1}, node_0=[loss]).cause == "worker-lost"


def test_report_of_torchrun_is_read_behind_the_prefix_of_determined() -> None:
    """Determined puts the time and the id of a container before each line."""
    rows = [f"[2022-06-09T09:22:31.405196Z] 8de2ca81 || {row}" for row in build_summary_entry(3, 1, 1, 10)]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.rank, failure.exit_code) == ("program-error", 3, 1)


KEY_ERROR = ["Traceback (most recent call last):", '  File "/app/train.py", line 90, in main', "KeyError: 'x'"]
NFS_ERROR = "OSError: [Errno 16] Device or resource busy: '.nfs0000000008a6084a00000089'"
FINALIZER = '  File "/lib/python3.11/multiprocessing/util.py", line 303, in _run_finalizers'
XFORMERS = '  File "/lib/python3.11/site-packages/xformers/__init__.py", line 57, in _is_triton_available'
MONITOR = (
    "2022-12-08 00:00:06,225 WARNING worker.py:1839 -- The log monitor on node n1 failed with the following error:"
)
LOKY = '  File "/lib/python3.11/joblib/externals/loky/backend/context.py", line 282, in _count_physical_cores'


@pytest.mark.parametrize(
    "block",
    [
        ["Traceback (most recent call last):", FINALIZER, NFS_ERROR],
        ["Traceback (most recent call last):", XFORMERS, "ModuleNotFoundError: No module named 'triton'"],
        [MONITOR, "Traceback (most recent call last):", '  File "/a.py", line 1, in f', "FileNotFoundError: 'x.log'"],
        ["[codecarbon ERROR @ 10:24:56] <urlopen error>", "Traceback (most recent call last):", LOKY, "OSError: x"],
        [LOKY, '    raise ValueError(f"found {cpu_count_physical} physical cores < 1")', "Accuracy: 0.7"],
        ["Exception ignored in: <_io.TextIOWrapper name='<stdout>'>", "BrokenPipeError: [Errno 32] Broken pipe"],
    ],
)
def test_exception_that_a_library_survives_is_not_the_cause(block: list[str]) -> None:
    """What a library prints and survives does not hide the exception that ended the program."""
    rows = [*block, "saved the model to /out/a.pt", *KEY_ERROR]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert (failure.cause, failure.line) == ("program-error", "KeyError: 'x'")


def test_line_after_an_exception_of_one_line_is_not_its_message() -> None:
    """What another program prints right after such an exception does not change its cause."""
    rows = [*KEY_ERROR, "cp: cannot create regular file '/out/x': No space left on device"]
    logs = {"node-0": [LogLine(0.0, "node-0", row) for row in rows]}
    failure = diagnose_failure(logs, {"node-0": 1})
    assert failure
    assert (failure.cause, failure.line) == ("program-error", "KeyError: 'x'")


@pytest.mark.parametrize(
    ("line", "cause", "rank"),
    [("mkdir: cannot create directory '/x': Permission denied", "oom-gpu", 1), ("1 Killed", "killed", None)],
)
def test_error_of_a_rank_counts_more_than_a_line_of_no_known_process(line: str, cause: str, rank: int | None) -> None:
    """Any program of the node may print a line without a prefix and go on, except about a kill."""
    oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    failure = diagnose_lines({"node_0": 1}, node_0=[line, "reading", oom])
    assert (failure.cause, failure.rank) == (cause, rank)


@pytest.mark.parametrize(
    "row",
    ["wandb:            loss_l 0.03174", "COMET INFO:     lr                           : (0.001, 0.001)"],
)
def test_summary_of_a_tracker_is_no_progress(row: str) -> None:
    """Trackers print their summary when a program ends, also when an exception ends it."""
    error = ["Traceback (most recent call last):", '  File "/app/train.py", line 90, in main', "KeyError: 'x'"]
    failure = diagnose_lines({"node_0": 1}, node_0=[*error, "wandb: Run summary:", *[row] * 8])
    assert (failure.cause, failure.line) == ("program-error", "KeyError: 'x'")


def test_error_without_a_traceback_precedes_an_exception_of_another_thread() -> None:
    """What a thread of a library raises does not hide a later error of the program, although that has no traceback."""
    thread = [
        "Exception in thread NetworkLoop:",
        "Traceback (most recent call last):",
        '  File "/lib/python3.11/threading.py", line 1045, in _bootstrap_inner',
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.example.com', port=443)",
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=[*thread, "saved", "RuntimeError: CUDA out of memory."])
    assert failure.cause == "oom-gpu"


def test_last_words_of_a_process_may_be_logged_after_its_kill() -> None:
    """A line of progress that is printed late does not show that a process survived its kill."""
    kill = "slurmstepd: error: Job 7518 exceeded memory limit (626359956 > 512000000), being killed"
    rows = [kill, "slurmstepd: error: *** JOB 7518 ON n1 CANCELLED AT 2022-06-10T17:11:35 ***", "Epoch 0 | Loss: 24.18"]
    logs = {"node-0": [LogLine(0.0, "node-0", row) for row in rows]}
    failure = diagnose_failure(logs, {"node-0": 1})
    assert failure
    assert failure.cause == "oom-host"


def test_call_shows_a_semaphore() -> None:
    """A semaphore is a file of /dev/shm, whose lack of space has the words of any disk."""
    frame = '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__'
    call = "    sl = self._semlock = _multiprocessing.SemLock("
    rows = ["Traceback (most recent call last):", frame, call, "OSError: [Errno 28] No space left on device"]
    assert diagnose_lines({"node_0": 1}, node_0=rows).cause == "shm-exhausted"
    assert diagnose_lines({"node_0": 1}, node_0=[*rows[:2], "    f.write(data)", rows[3]]).cause == "disk-full"


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("Abort(1094543) on node 5 (rank 5 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:", 5),
        ("Mon Jul  2 19:35:38 2018[1,936]<stdout>:[n1:20497:0] rc_iface.c:966  UCX  ERROR failed to create qp", 936),
        ("Detected mismatch between collectives on ranks. Rank 3 is running inconsistent collective: x", 3),
    ],
)
def test_rank_that_an_mpi_names_is_that_of_the_failure(line: str, rank: int) -> None:
    """MPICH, Open MPI and torch's check of collectives name the rank that failed."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).rank == rank


def test_error_that_torch_quotes_is_of_the_process_that_raised() -> None:
    """Between the lines of NCCL's last error, another process may print its own."""
    rows = [
        "(VllmWorker rank=2 pid=267) ncclUnhandledCudaError: Call to CUDA function failed.",
        "(VllmWorker rank=2 pid=267) Last error:",
        '(VllmWorker rank=0 pid=265)   File "distributed_c10d.py", line 1815, in _shutdown_backend',
        "(VllmWorker rank=2 pid=267) Cuda failure 'an illegal instruction was encountered'",
    ]
    failure = diagnose_lines({"node_0": 1}, node_0=rows)
    assert "(Cuda failure 'an illegal instruction was encountered')" in failure.sentence
