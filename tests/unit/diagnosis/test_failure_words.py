"""Failure words: the texts that a log is searched for come from the patterns of the rules."""

import pytest

from tests.inputs.failure_logs import SPELLINGS
from torchyard.diagnosis.failure_words import DIGITS, find_literals, has_failure_word, list_failure_words
from torchyard.model.causes.cause import LogRule
from torchyard.model.causes.fabric import FabricCause
from torchyard.model.causes.registry import LOG_RULES


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("No route to host", ["No route to host"]),
        (r"[Bb]us error", ["us error"]),
        (r"libcuda\.so\.1: cannot open", ["libcuda.so.1: cannot open"]),
        (r"OOM ?Killed", ["OOM", "Killed"]),
        (r"retry count(?:er)? exceeded", ["retry count", " exceeded"]),
        (r"^(?=.*(?:selector|affinity))", []),
        (r"(?<!RNR_)RETRY_EXC_ERR", ["RETRY_EXC_ERR"]),
        (r"wait timeout after \d{1,9} ?ms", ["wait timeout after "]),
        ("broken|torn apart", []),
        (r"colou?r{2,3}s", ["colo"]),
        (r"\((?:core|heap) dumped[^)\]]{0,9}\)", [" dumped"]),
    ],
)
def test_literals_of_a_pattern(pattern: str, literals: list[str]) -> None:
    """The texts that every match contains: neither optional characters nor those of a group or a set."""
    assert find_literals(pattern) == literals


@pytest.mark.parametrize("rule", LOG_RULES, ids=lambda rule: rule.cause)
def test_every_pattern_has_a_word(rule: LogRule) -> None:
    """A pattern has a text outside of groups, or its rule names words."""
    assert not [pattern for pattern in rule.patterns if not find_literals(pattern) and not rule.failure_words]


def test_new_rule_is_searched_for_at_once() -> None:
    """The words of a rule come from its patterns, in addition to those that it names; digits are left out."""
    rule = LogRule(
        cause=FabricCause.PEER_LOST,
        symptom="",
        patterns=(r"link \d went dark", "port 7 is dark"),
        failure_words=("relay",),
    )
    assert list_failure_words([rule]) == (" went dark", "port  is dark", "relay")


def test_word_that_contains_another_one_is_left_out() -> None:
    """A text is not searched for if a shorter one is found in the same lines."""
    rule = LogRule(cause=FabricCause.PEER_LOST, symptom="", patterns=("out of memory", "GPU out of memory"))
    assert list_failure_words([rule]) == ("out of memory",)


@pytest.mark.parametrize("line", [line for cause, line in SPELLINGS if cause != "unknown"])
def test_line_of_every_cause_has_a_word(line: str) -> None:
    """Each line that shows a cause has a failure word, also without its digits; the line of a step has none."""
    assert has_failure_word(line.encode().translate(None, DIGITS))
    assert not has_failure_word(b"step : loss .")


@pytest.mark.parametrize(
    "line",
    [
        "Exception in thread Thread-3:",
        "Error in atexit._run_exitfuncs:",
        "Task exception was never retrieved",
        "Future exception was never retrieved",
        "--- Logging error in Loguru Handler #1 ---",
        "Exception ignored in: <function f>",
    ],
)
def test_line_that_announces_a_harmless_traceback_has_a_word(line: str) -> None:
    """A traceback is read together with the line before it that tells what it means."""
    assert has_failure_word(line.encode().translate(None, DIGITS))
