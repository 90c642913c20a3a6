"""All causes: unique slugs, the order of the rules, and stored slugs."""

import json

import pytest
from pydantic import ValidationError

from tests.inputs.failure_logs import diagnose_lines
from torchyard.model.causes.fabric import FabricCause
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.program import ProgramCause
from torchyard.model.causes.registry import CAUSES, FAMILIES, LOG_RULES
from torchyard.model.run import Failure


def test_no_two_causes_share_a_slug() -> None:
    """Each slug names one cause of one family."""
    assert len(CAUSES) == sum(len(family) for family in FAMILIES) > 90


def test_exit_code_has_one_rule() -> None:
    """No exit code of a worker, or of an agent, belongs to two rules, so that their order does not matter."""
    worker_codes = [code for rule in LOG_RULES for code in rule.worker_codes]
    agent_codes = [code for rule in LOG_RULES for code in rule.agent_codes]
    assert len(worker_codes) == len(set(worker_codes))
    assert len(agent_codes) == len(set(agent_codes))


@pytest.mark.parametrize(
    ("specific", "general"),
    [
        ("[default0]: no network interface: No socket interface found", "CUDA error: out of memory"),
        ("CUDA out of memory", "CUDA error: unknown"),
        ("No CUDA GPUs are available", "can't open file 'train.py'"),
        ("No module named 'x'", "ImagePullBackOff"),
        ("Failed to pull image", "DefaultCPUAllocator: can't allocate memory"),
        ("can't start new thread", "Address already in use"),
    ],
    ids=["fabric", "memory", "gpu", "start", "platform", "program"],
)
def test_first_family_counts(specific: str, general: str) -> None:
    """If one line shows causes of two families, that of the earlier family counts, wherever it is in the line."""
    expected = diagnose_lines({"node_0": 1}, node_0=[specific]).cause
    other = diagnose_lines({"node_0": 1}, node_0=[general]).cause
    assert expected != other
    for line in (f"{specific}; {general}", f"{general}; {specific}"):
        assert diagnose_lines({"node_0": 1}, node_0=[line]).cause is expected


def test_stored_failure_has_its_cause_again() -> None:
    """A failure that was stored as JSON has the same cause when it is read."""
    failure = Failure(cause=FabricCause.PEER_LOST, sentence="it broke")
    stored = failure.model_dump_json()
    assert json.loads(stored)["cause"] == "peer-lost"
    assert Failure.model_validate_json(stored) == failure
    assert Failure.model_validate_json(stored).cause is FabricCause.PEER_LOST


def test_failure_with_a_slug_of_another_version_is_readable() -> None:
    """A slug that does not exist is read as `unknown`; the sentence stays."""
    failure = Failure.model_validate_json('{"cause": "solar-flare", "sentence": "a bit flipped", "retry": true}')
    assert (failure.cause, failure.sentence, failure.retry) == (ProgramCause.UNKNOWN, "a bit flipped", True)
    with pytest.raises(ValidationError):
        Failure.model_validate({"cause": 7, "sentence": ""})


def test_failure_is_retried_as_its_cause() -> None:
    """Without better evidence, the cause decides whether another attempt may succeed."""
    failures = [Failure(cause=cause, sentence="") for cause in (PlatformCause.NODE_LOST, PlatformCause.TAINT)]
    assert [failure.retry for failure in failures] == [True, False]
