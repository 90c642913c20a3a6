"""The diagnosis of recorded and posted logs: every rule is shown by one of them."""

import random
import re

import pytest

from tests.inputs.failure_logs import (
    HARMLESS,
    NAMES,
    NO_PROGRESS,
    PROGRESS,
    SPELLINGS,
    diagnose_lines,
    load_log,
)
from tests.inputs.noisy_logs import EARLY_LINES, ENDINGS, STREAMS, build_noisy_log
from tests.tools import causes_page
from torchyard.diagnosis.root_cause import diagnose_failure
from torchyard.model.causes.registry import LOG_RULES
from torchyard.model.run import LogLine

RETRIED = {
    "rdma-not-ready",
    "rdma-retry-exceeded",
    "rdma-access",
    "rdma-flushed",
    "rdma-error",
    "rdma-async-event",
    "nccl-connect",
    "nccl-remote-error",
    "nccl-timeout",
    "peer-lost",
    "peer-timeout",
    "port-taken",
    "agent-killed",
    "etcd-gone",
    "rendezvous-timeout",
    "rendezvous-closed",
    "rendezvous-connection",
    "endpoint-name",
    "terminated",
    "preempted",
    "node-lost",
    "worker-lost",
    "image-pull",
    "gpu-fault",
    "nvlink-fault",
    "storage-error",
    "driver-broken",
    "gpu-busy",
    "pod-network",
    "device-lost",
}
PARTLY_RETRIED = {
    "evicted",
    "rdma-connect",
    "image-pull",
    "pod-refused",
    "download-failed",
}  # their lines show more than the cause


@pytest.mark.parametrize("name", NAMES)
def test_log_is_read(name: str) -> None:
    """Recorded and posted logs give the cause, where it began, the worker's own exit code and whether to retry."""
    logs, exit_codes, expected = load_log(name)
    failure = diagnose_failure(logs, exit_codes)
    assert failure is not None
    assert {key: str(getattr(failure, key)) for key in expected} == expected


@pytest.mark.parametrize(("cause", "line"), SPELLINGS)
def test_line_gives_its_cause(cause: str, line: str) -> None:
    """One clear line is enough, in the wording of many versions; one that only sounds like a failure stays unknown."""
    failure = diagnose_lines({"node_0": 1}, node_0=[line])
    assert failure.cause == cause
    assert failure.line == (None if cause == "unknown" else line)
    assert failure.retry == (cause in RETRIED) or cause in PARTLY_RETRIED


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_is_not_a_cause(line: str) -> None:
    """Lines that healthy programs print too are not a cause."""
    assert diagnose_lines({"node_0": 1}, node_0=[line]).cause == "unknown"


OUT_OF_MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize("line", PROGRESS)
def test_progress_of_a_program_is_recognized(line: str) -> None:
    """After an error and two lines of progress, in the form of many programs, the error has not ended the program."""
    assert diagnose_lines({"node_0": 1}, node_0=["starting", OUT_OF_MEMORY, line, line]).cause == "unknown"


@pytest.mark.parametrize("line", NO_PROGRESS)
def test_other_numbers_are_no_progress(line: str) -> None:
    """Summaries, settings, help texts, paths and stacks that follow an error do not show that the program went on."""
    assert diagnose_lines({"node_0": 1}, node_0=["starting", OUT_OF_MEMORY, line, line]).cause == "oom-gpu"


@pytest.mark.parametrize("name", [*NAMES, *dict.fromkeys(cause for cause, _ in SPELLINGS)])
def test_harmless_lines_change_no_cause(name: str) -> None:
    """Harmless lines anywhere in a failing log, from any of its processes, leave cause, node and rank as they were."""
    if name in NAMES:
        logs, exit_codes, _ = load_log(name)
    else:
        logs = {"node-0": [LogLine(0.0, "node-0", line) for cause, line in SPELLINGS if cause == name][:1]}
        exit_codes = {"node-0": 1}
    unmixed = diagnose_failure(logs, exit_codes)
    assert unmixed
    rng = random.Random(name)
    for _ in range(10):
        failure = diagnose_failure({node: mix(rng, lines) for node, lines in logs.items()}, exit_codes)
        assert failure
        assert (failure.cause, failure.node, failure.rank) == (unmixed.cause, unmixed.node, unmixed.rank)


BAR = "\r  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|#         | 1/10 [00:00<00:01,  9.1it/s]"


@pytest.mark.parametrize("name", [*NAMES, *dict.fromkeys(cause for cause, _ in SPELLINGS)])
def test_progress_bar_in_front_of_a_line_changes_no_cause(name: str) -> None:
    """A program that fails has not ended the line of its progress bar: the next message is in the same line."""
    if name in NAMES:
        all_logs, exit_codes, _ = load_log(name)
    else:
        lines = [LogLine(0.0, "node-0", line) for cause, line in SPELLINGS if cause == name][:1]
        all_logs, exit_codes = {"node-0": lines}, {"node-0": 1}
    bare = diagnose_failure(all_logs, exit_codes)
    behind_bars = diagnose_failure({node: put_behind_bars(lines) for node, lines in all_logs.items()}, exit_codes)
    assert bare
    assert behind_bars
    assert (behind_bars.cause, behind_bars.node, behind_bars.rank) == (bare.cause, bare.node, bare.rank)


def put_behind_bars(lines: list[LogLine]) -> list[LogLine]:
    """The lines with a progress bar after the prefix of torchrun's tee, except for those that are indented."""
    lines_behind_bars: list[LogLine] = []
    for line in lines:
        teed_text = re.sub(r"^(\[[a-z]+\d\]:)?(?=\S)", rf"\g<0>{BAR}", line.text)
        lines_behind_bars.append(line._replace(text=teed_text))
    return lines_behind_bars


WRAPPERS = (
    "2024-05-01 10:11:12,123 ",
    "10:11:12 ",
    "[2024-05-01T10:11:12.123456Z] 8f0f3c2a || ",  # a platform's agent
    "2024-05-01T10:11:12.123456789Z stderr F ",  # a container runtime
    "sample-worker-0 pytorch ",  # stern
    "10.0.0.1: ",  # pdsh, as DeepSpeed uses it
    "worker_1  | ",
    "trainer/0 ",  # torchx
    "ERROR:root:",
)


@pytest.mark.parametrize("name", NAMES)
def test_prefix_of_every_line_changes_no_cause(name: str) -> None:
    """What a wrapper puts before every line, whatever it is, leaves cause, node and rank as they were."""
    logs, exit_codes, _ = load_log(name)
    unwrapped = diagnose_failure(logs, exit_codes)
    assert unwrapped
    for wrapper in WRAPPERS:
        failure = diagnose_failure(add_prefix(wrapper, logs), exit_codes)
        assert failure
        assert (failure.cause, failure.node) == (unwrapped.cause, unwrapped.node), wrapper
        if name != "posted-rdma-retry-exceeded":  # its ranks are srun's prefixes, and it has no traceback
            assert failure.rank == unwrapped.rank, wrapper


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("torchrun-", "spawn-"))])
@pytest.mark.parametrize("task", ["7: ", "[1,7]<stderr>:"])
def test_task_that_starts_ranks_is_no_rank(name: str, task: str) -> None:
    """If srun or mpirun starts one torchrun per node, the number before each line is not the rank that failed."""
    logs, exit_codes, _ = load_log(name)
    bare = diagnose_failure(logs, exit_codes)
    tagged = diagnose_failure(add_prefix(task, logs), exit_codes)
    assert bare
    assert tagged
    if name in ("torchrun-option-unknown", "torchrun-dash"):  # only argparse or the shell has printed something
        assert tagged.node == bare.node
    else:
        assert (tagged.cause, tagged.node, tagged.rank) == (bare.cause, bare.node, bare.rank)


def add_prefix(prefix: str, logs: dict[str, list[LogLine]]) -> dict[str, list[LogLine]]:
    return {node: [line._replace(text=prefix + line.text) for line in lines] for node, lines in logs.items()}


def mix(rng: random.Random, lines: list[LogLine]) -> list[LogLine]:
    """A node's lines with ten harmless ones between them, each printed by the process whose line comes after it.

    Inside a traceback or a report of torchrun there are none: a process prints these in one piece.
    """
    prefixes = [re.match(r"(?:\[[a-z]+\d\]:)?(?:\[rank\d\]:)?", line.text) for line in lines]
    is_indented = [
        line.text[prefix.end() : prefix.end() + 1].isspace()
        for line, prefix in zip(lines, prefixes, strict=True)
        if prefix
    ]
    indices = [
        index
        for index in range(1, len(lines))
        if not (is_indented[index] or is_indented[index - 1] or "Traceb" in lines[index - 1].text)
    ]
    mixed_lines = list(lines)
    for index in sorted(rng.choices(indices or [0], k=10 if lines else 0), reverse=True):
        prefix = prefixes[index]
        assert prefix
        mixed_lines.insert(index, lines[index]._replace(text=prefix[0] + rng.choice(HARMLESS)))
    return mixed_lines


def test_every_cause_is_tested() -> None:
    """Each cause that a rule of logs shows has a log or a line."""
    shown_causes = {cause for cause, _ in SPELLINGS} | {load_log(name)[2]["cause"] for name in NAMES}
    assert {rule.cause.value for rule in LOG_RULES} <= shown_causes


def test_page_of_causes_is_current() -> None:
    """docs/causes.md lists every cause as the code has it."""
    assert causes_page.PAGE.read_text() == causes_page.render(), "python -m tests.tools.causes_page writes it again"


def test_sentence_is_one_sentence() -> None:
    """The sentence for the user has its placeholders filled in, and is a single sentence."""
    line = "DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined."
    failure = diagnose_lines({"node_0": 1}, node_0=[line])
    assert failure.sentence.startswith("node-0 waited for the other nodes, but only 1 of 2 joined in time: check")
    descriptions = [rule.description for rule in LOG_RULES]
    assert not [text for text in descriptions if ". " in text or text.endswith(".")]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", ENDINGS)
def test_early_line_changes_no_verdict(name: str, stream: str) -> None:
    """A line after which the job made progress is not why it ended: cause, rank and retry stay as without it."""
    ending = ENDINGS[name]
    flips = []
    for early_line in ("", *EARLY_LINES):
        lines, exit_codes = build_noisy_log(ending, early_line, STREAMS[stream])
        failure = diagnose_failure({"node-0": lines}, exit_codes)
        assert failure
        if (failure.cause, failure.rank, failure.retry) != (ending.cause, ending.rank, ending.retry):
            flips.append((early_line, failure.cause, failure.rank))
    assert flips == []


def test_line_before_a_signal_is_reported_as_seen_before_it() -> None:
    """A signal keeps its own cause; what the process had printed is quoted."""
    early_line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    lines, exit_codes = build_noisy_log(ENDINGS["SIGKILL"], early_line, STREAMS["tee"])
    failure = diagnose_failure({"node-0": lines}, exit_codes)
    assert failure
    assert failure.sentence.endswith(f"; seen before it: {early_line}.")
