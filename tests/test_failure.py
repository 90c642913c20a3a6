"""Why a job failed, from recorded, posted and made-up logs."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.diagnosis.log_patterns import CAUSES
from torchyard.diagnosis.root_cause import read_failure
from torchyard.model.run import Failure, LogLine

LOGS = Path(__file__).parent / "logs"
Exits = dict[str, int | None]
NAMES = sorted(path.stem for path in LOGS.glob("*.log") if path.stem != "posted-spellings")
SPELLINGS = [line.split(" ", 1) for line in (LOGS / "posted-spellings.log").read_text().splitlines()[1:]]
RETRIED = {
    *("rdma-retry-exceeded", "rdma-access", "rdma-flushed", "rdma-error", "rdma-async-event", "nccl-connect"),
    *("nccl-remote-error", "nccl-timeout", "peer-lost", "peer-timeout", "port-taken", "agent-killed", "etcd-gone"),
    *("rendezvous-timeout", "rendezvous-closed", "rendezvous-connection", "endpoint-name", "terminated"),
    *("evicted", "preempted", "node-lost", "worker-lost", "image-pull", "gpu-fault"),
}
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
)
RETRY_EXCEEDED = "n1:42:43 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.5<44> with status=12 opcode=0 len=0"


def load(name: str) -> tuple[dict[str, list[LogLine]], Exits, dict[str, str]]:
    """A log and what is known of it: `# exits: node-0=1 node-1=None`, `# expected: cause=...`, `time node text`."""
    logs: dict[str, list[LogLine]] = {}
    known: dict[str, dict[str, str]] = {}
    for row in (LOGS / f"{name}.log").read_text().split("\n"):
        if row.startswith(("# exits: ", "# expected: ")):
            known[row.split()[1]] = dict(pair.split("=") for pair in row.split()[2:])
        elif row and not row.startswith("# "):
            at, node, text = row.split(" ", 2)
            logs.setdefault(node, []).append(LogLine(float(at), node, text))
    exits = {node: None if code == "None" else int(code) for node, code in known["exits:"].items()}
    return logs, exits, known["expected:"]


def read(exits: Exits, **said: list[str]) -> Failure:
    """The failure of nodes that said these lines, one a second, from second 0 on or from the number that leads."""
    logs: dict[str, list[LogLine]] = {}
    for name, rows in said.items():
        node, start = name.replace("_", "-"), int(rows[0]) if rows and rows[0].isdigit() else 0
        logs[node] = [LogLine(float(start + at), node, row) for at, row in enumerate(rows)]
    found = read_failure(logs, {node.replace("_", "-"): code for node, code in exits.items()})
    assert found is not None
    return found


def block(rank: int, local: int, code: int, second: int) -> list[str]:
    """One item of torchrun's last words."""
    return [
        "[0]:",
        f"  time      : 2026-11-21_08:22:{second:02}",
        "  host      : host-0",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: 42)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ]


def raised(local: int, error: str) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/app/train.py", line 3, in <module>',
        "    step()",
        error,
    ]
    return [f"[default{local}]:{line}" for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_log_is_read(name: str) -> None:
    """Recorded and posted logs give the cause, where it began, the worker's own exit code and whether to retry."""
    logs, exits, expected = load(name)
    found = read_failure(logs, exits)
    assert found is not None
    assert {key: str(getattr(found, key)) for key in expected} == expected


@pytest.mark.parametrize(("cause", "line"), SPELLINGS)
def test_line_is_understood(cause: str, line: str) -> None:
    """One telling line is enough, in the words of many versions; what only sounds like trouble stays unknown."""
    found = read({"node_0": 1}, node_0=[line])
    assert found.cause == cause
    assert found.line == (None if cause == "unknown" else line)
    assert found.retry == (cause in RETRIED) or cause == "rdma-connect"


def test_every_cause_is_tested() -> None:
    """Each entry of the table has a log or a line that shows it."""
    seen = {cause for cause, _ in SPELLINGS} | {load(name)[2]["cause"] for name in NAMES}
    assert {cause.slug for cause in CAUSES} <= seen


def test_sentence_is_one_sentence() -> None:
    """What a person reads has its gaps filled, and its only full stop at the end."""
    line = "DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined."
    found = read({"node_0": 1}, node_0=[line])
    assert found.sentence.startswith("node-0 waited for the other nodes, but only 1 of 2 came in time: look")
    assert not [cause.says for cause in CAUSES if ". " in cause.says or cause.says.endswith(".")]


def test_all_well() -> None:
    """Agents that left with 0 did not fail, whatever their logs say and however the store was stopped."""
    logs = {"node-0": [LogLine(0.0, "node-0", "RuntimeError: tried again, and it worked")]}
    assert read_failure(logs, {"node-0": 0, "node-1": 0, "etcd": -9}) is None
    assert read_failure({}, {}) is None


def test_first_failure_wins_over_those_told_to_stop() -> None:
    """Over two nodes, the earliest entry that is not a SIGTERM is the first failure."""
    node_0, node_1 = [*block(0, 0, -15, 10), *block(1, 1, -6, 14)], [*block(2, 0, -15, 9), *block(3, 1, 7, 12)]
    found = read({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=["5", *node_1])
    assert (found.node, found.rank, found.exit_code) == ("node-1", 3, 7)


def test_root_cause_wins_within_a_second() -> None:
    """Where ranks failed in the same second and no line is marked, torchrun's root cause, its last item, is first."""
    rows = ["Failures:", *block(0, 0, 1, 10), "Root Cause (first observed failure):", *block(1, 1, 3, 10)]
    found = read({"node_0": 1}, node_0=rows)
    assert (found.rank, found.exit_code) == (1, 3)


def test_only_told_to_stop() -> None:
    """Where nothing but SIGTERM is there, the SIGTERM is the cause."""
    found = read({"node_0": 1, "node_1": None}, node_0=block(1, 1, -15, 10), node_1=["hello"])
    assert (found.cause, found.rank, found.exit_code, found.retry) == ("terminated", 1, -15, True)


def test_fabric_error_explains_timeouts_elsewhere() -> None:
    """A rank that got no answer over RDMA is the cause, not the ranks that waited for it and failed first."""
    node_0 = [f"[default0]:{WATCHDOG}", *block(0, 0, -6, 10)]
    node_1 = [f"[default1]:{RETRY_EXCEEDED}", *block(3, 1, -6, 12)]
    found = read({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (found.cause, found.node, found.rank) == ("rdma-retry-exceeded", "node-1", 3)


def test_lost_process_explains_fabric_error() -> None:
    """RDMA requests to a process that was killed fail as well: the kill came first."""
    node_1 = [f"[default1]:{RETRY_EXCEEDED}", *raised(1, "RuntimeError: NCCL communicator was aborted")]
    found = read({"node_0": -9, "node_1": 1}, node_0=["hello"], node_1=[*node_1, *block(3, 1, 1, 12)])
    assert (found.cause, found.node, found.exit_code) == ("agent-killed", "node-0", -9)


def test_killed_rank_is_told_of_late() -> None:
    """torchrun tells of a killed worker only after it has stopped the others; it was the first nevertheless."""
    node_0 = [*raised(0, "RuntimeError: Connection closed by peer [10.0.0.5]:1"), *block(0, 0, 1, 10)]
    node_1 = ["[default1]:hello", *["[default0]:waiting"] * 40, *block(3, 1, -9, 41)]
    found = read({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (found.cause, found.rank, found.exit_code) == ("oom-host", 3, -9)


def test_later_trouble_explains_nothing() -> None:
    """What went wrong long after a timeout did not cause it."""
    node_0 = [f"[default0]:{WATCHDOG}", *block(0, 0, -6, 10)]
    node_1 = ["100", *raised(1, "KeyError: 'step'"), *block(3, 1, 1, 50)]
    found = read({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (found.cause, found.node, found.rank) == ("nccl-timeout", "node-0", 0)


def test_own_error_is_not_blamed_on_others() -> None:
    """An exception of the first rank stays its own, though another node ran out of memory in the same second."""
    node_1 = ["[default0]:torch.OutOfMemoryError: CUDA out of memory.", *block(2, 0, 1, 10)]
    node_0 = [*raised(0, "ValueError: bad batch"), *block(0, 0, 1, 9)]
    found = read({"node_0": 1, "node_1": 1}, node_0=node_0, node_1=node_1)
    assert (found.cause, found.rank) == ("program-error", 0)


def test_last_exception_counts() -> None:
    """An exception that the program caught and logged is not why it failed."""
    caught = raised(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    found = read({"node_0": 1}, node_0=[*caught, *raised(0, "KeyError: 'label'"), *block(0, 0, 1, 10)])
    assert (found.cause, found.line) == ("program-error", "[default0]:KeyError: 'label'")


def test_chain_of_exceptions_is_one() -> None:
    """The cause of an exception may be told by the one that it came from."""
    link = "[default0]:The above exception was the direct cause of the following exception:"
    chain = [*raised(0, "OSError: [Errno 28] No space left on device"), link, *raised(0, "RuntimeError: not saved")]
    assert read({"node_0": 1}, node_0=[*chain, *block(0, 0, 1, 10)]).cause == "disk-full"


def test_source_and_ignored_exceptions_prove_nothing() -> None:
    """Words in a traceback's source lines, and exceptions that Python ignored, are not the program's failure."""
    source = ['  File "/srv/app/train.py", line 3, in <module>', '    raise Full("CUDA out of memory")', "    ^^^^^"]
    rows = [f"[default0]:{row}" for row in [*source, "RuntimeError: Connection closed by peer"]]
    ignored = ["[default0]:Exception ignored in: <function f>", *raised(0, "OSError: [Errno 28] No space left")]
    assert read({"node_0": 1}, node_0=[*rows, *ignored, *block(0, 0, 1, 10)]).cause == "peer-lost"


def test_killed_rank_has_no_last_words() -> None:
    """Trouble that a rank got over before it was killed is not why it ended."""
    caught = raised(0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert read({"node_0": 1}, node_0=[*caught, *block(0, 0, -9, 10)]).cause == "oom-host"


def test_recorded_traceback_is_read() -> None:
    """Where the workers' lines are missing, the traceback that @record put into torchrun's last words is there."""
    trace = ["  traceback : Traceback (most recent call last):", '    File "/srv/app/train.py", line 3, in <module>']
    rows = [*block(1, 1, 1, 10)[:-1], *trace, "      step()", "  ValueError: bad batch", "=" * 60]
    found = read({"node_0": 1, "node_1": None}, node_0=rows)
    assert (found.cause, found.rank, found.line) == ("program-error", 1, "  ValueError: bad batch")


def test_rank_is_in_the_line() -> None:
    """NCCL's watchdog says its rank, marked or not."""
    assert read({"node_0": 1, "node_1": None}, node_0=[WATCHDOG.removeprefix("[rank0]:")]).rank == 0


def test_silent_node_does_not_hide_the_cause() -> None:
    """A node without a log may have been the first; what another one says is still the better answer."""
    found = read({"node_0": 1, "node_1": 1}, node_1=["100", "torch.OutOfMemoryError: CUDA out of memory."])
    assert (found.cause, found.node) == ("oom-gpu", "node-1")


def test_node_told_to_stop_is_not_the_first() -> None:
    """An agent that SIGTERM ended spoke its last words first, but the other one failed."""
    found = read({"node_0": 143, "node_1": 1}, node_0=["hello"], node_1=["9", "ValueError: bad batch"])
    assert (found.cause, found.node) == ("program-error", "node-1")


def test_marks_escapes_and_returns_are_stripped() -> None:
    """Colours, carriage returns, and the marks of kubectl, tee and torch do not hide the line or its rank."""
    bar = "2026-11-21T08:22:10.123456Z [default1]:\x1b[32m 50%|##\r 60%|###\r[rank5]: \x1b[31mKeyError: 'x'\x1b[0m"
    found = read({"node_0": 1, "node_1": None}, node_0=[bar])
    assert found.rank == 5
    assert found.sentence.startswith("Rank 5 on node-0 raised KeyError: 'x'; ")


def test_local_rank_becomes_global() -> None:
    """Without torchrun's last words, the rendezvous result says which global rank a local one was."""
    node_1 = ["I1121 api.py:553]   global_ranks=[2, 3]", *raised(1, "KeyError: 'x'")]
    assert read({"node_0": None, "node_1": 1}, node_0=["hello"], node_1=node_1).rank == 3


def test_words_of_torchrun_of_1_9() -> None:
    """The older form of torchrun's last words is read as well."""
    fields = ["time: 2021-07-13_13:18:54", "rank: 3 (local_rank: 1)", "exitcode: -9 (pid: 4404)", "error_file: <N/A>"]
    old = ["[0]:", *(f"  {field}" for field in fields), '  msg: "Signal 9 (SIGKILL) received by PID 4404"']
    found = read({"node_0": 1}, node_0=old)
    assert (found.cause, found.rank, found.exit_code) == ("oom-host", 3, -9)


@pytest.mark.parametrize(("code", "cause"), [(137, "agent-killed"), (143, "terminated"), (1, "unknown")])
def test_exit_code_of_a_silent_agent(code: int, cause: str) -> None:
    """A shell's 128 + n is signal n; an unknown cause is never worth a new attempt."""
    found = read({"node_0": code, "node_1": None}, node_0=["hello"])
    assert (found.cause, found.exit_code, found.retry) == (cause, code, cause != "unknown")


def test_killed_after_being_told_to_stop() -> None:
    """An agent that got SIGTERM and did not end in time was stopped, not lost."""
    said = "W1121 08:22:10.123456 42 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal"
    assert read({"node_0": -9}, node_0=["hello", said]).cause == "terminated"


def test_store_says_why_it_ended() -> None:
    """The store's own reason counts more than what the agents say of it."""
    agent = ["10", "RendezvousConnectionError: The connection to etcd has failed. See inner exception for details."]
    found = read({"node_0": 1, "etcd": 1}, node_0=agent, etcd=["panic: write: no space: No space left on device"])
    assert (found.cause, found.node) == ("disk-full", "etcd")


def test_tail_is_of_the_failing_rank() -> None:
    """The last 50 lines of the rank that failed, without those of its neighbours."""
    lines = [f"[default{at % 2}]:step {at // 2}" for at in range(200)]
    found = read({"node_0": 1}, node_0=[*lines, *block(1, 1, 7, 10)])
    assert (len(found.tail), found.tail[-1]) == (50, "[default1]:step 99")


@settings(deadline=None)
@given(st.data())
def test_any_text_can_be_read(data: st.DataObject) -> None:
    """No line and no exit code makes the reader fail; a failure always names a node of the job."""
    known = [line for _, line in SPELLINGS] + block(1, 1, 1, 1) + raised(0, "KeyError")
    text = st.lists(st.one_of(st.text(max_size=30), st.sampled_from(known)), max_size=3).map("".join)
    lines = st.lists(st.builds(LogLine, st.floats(0, 2e9), st.just("node"), text), max_size=12)
    nodes = st.sampled_from(["node-0", "node-1", "etcd"])
    exits = data.draw(st.dictionaries(nodes, st.one_of(st.none(), st.integers(-70, 300))))
    logs = data.draw(st.dictionaries(nodes, lines))
    found = read_failure(logs, exits)
    assert found is None or found.node in {*exits, *logs}


@pytest.mark.parametrize(
    "text", ["x", "[default0]:", "Got completion ", "A.", "\x1b[", "a\r", " ", "[1,2]<stdout>:", "("]
)
def test_long_line_takes_no_time(text: str) -> None:
    """A line of a megabyte is read in the time of a short one, whatever it repeats, and does not fill the report."""
    started = time.perf_counter()
    found = read({"node_0": 1}, node_0=[text * (1_000_000 // len(text))])
    assert time.perf_counter() - started < 5.0
    assert len("".join(found.tail)) < 3000


@pytest.mark.parametrize("code", [0, 1, -9, -15])
def test_store_that_ended_first_is_the_cause(code: int) -> None:
    """While agents still run, any end of the rendezvous store is too early, and worth another attempt."""
    found = read_failure({}, {"node-0": None, "etcd": code})
    assert found
    assert (found.cause, found.node, found.retry) == ("etcd-gone", "etcd", True)
