"""Cause: a slug with its facts, and the rules that show it."""

import ast
import copy
import pickle

from torchyard.common.project_root import ROOT
from torchyard.model.causes.cause import Cause, CauseFacts, LogRule, PodRule
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.registry import CAUSES


class SampleCause(Cause):
    """A family with one member."""

    SAMPLE = CauseFacts("sample", advice="try it again", retry=True, points_at_node=False)


def test_cause_is_its_slug() -> None:
    """A cause is equal to its slug, also as text and after a copy, and has the facts of its definition."""
    cause = SampleCause.SAMPLE
    assert [cause, f"{cause}", cause.value] == ["sample", "sample", "sample"]
    assert (cause.advice, cause.retry, cause.points_at_node) == ("try it again", True, False)
    assert copy.deepcopy(cause) is cause
    assert pickle.loads(pickle.dumps(PlatformCause.NODE_LOST)) is PlatformCause.NODE_LOST


def test_rule_without_own_facts_has_those_of_its_cause() -> None:
    """Advice and retry come from the cause, unless the rule has its own."""
    rule = LogRule(cause=SampleCause.SAMPLE, symptom="failed")
    better_rule = LogRule(cause=SampleCause.SAMPLE, symptom="failed", own_advice="", own_retry=False)
    assert (rule.description, rule.retry) == ("failed: try it again", True)
    assert (better_rule.description, better_rule.retry) == ("failed", False)
    assert PodRule(cause=SampleCause.SAMPLE, description="").retry
    assert not PodRule(cause=SampleCause.SAMPLE, description="", own_retry=False).retry


def test_patterns_of_a_rule_are_alternatives() -> None:
    """A rule with several patterns matches a line that one of them matches; one without any has no pattern."""
    pattern = LogRule(cause=SampleCause.SAMPLE, symptom="", patterns=("broken", "torn")).pattern
    assert pattern
    assert [bool(pattern.search(line)) for line in ("is torn", "is broken", "is fine")] == [True, True, False]
    assert LogRule(cause=SampleCause.SAMPLE, symptom="").pattern is None


def test_slugs_are_written_only_in_the_enums() -> None:
    """No other module of torchyard contains the slug of a cause; slugs of one word name other things too."""
    slugs = {slug for slug in CAUSES if "-" in slug}
    locations = []
    for path in sorted((ROOT / "torchyard").rglob("*.py")):
        if path.parent.name == "causes":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "cause" and isinstance(node.value, ast.Constant):
                locations.append(f"{path}:{node.value.lineno}")
            if isinstance(node, ast.Constant) and node.value in slugs and not _is_hang_class(path.as_posix()):
                locations.append(f"{path}:{node.lineno}: {node.value}")
    assert locations == []


def _is_hang_class(path: str) -> bool:
    """Whether a module names classes of hangs, one of which is also the slug of a cause."""
    return path.endswith("/model/hang.py") or "/diagnosis/hang/" in path
