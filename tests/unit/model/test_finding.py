"""Findings as profiles, manifests and preflight report them."""

import pytest

from torchyard.model.finding import (
    FilePosition,
    Finding,
    describe_checks,
    failed_check,
    passed_check,
    warning_check,
)


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (Finding("nodes", "must be 1 or more"), "nodes: must be 1 or more"),
        (Finding("port 80", "taken", "choose another"), "port 80: taken; choose another"),
        (Finding("", "there is no file a.yaml"), "there is no file a.yaml"),
        (Finding("nodes", "must be 1 or more").at(FilePosition("a.yaml", 3)), "a.yaml:3: nodes: must be 1 or more"),
        (Finding("nodes", "must be 1 or more").at(FilePosition("override")), "override: nodes: must be 1 or more"),
        (Finding("", "unknown key ndoes").at(FilePosition("a.yaml", 3)), "a.yaml:3: unknown key ndoes"),
        (Finding("spec", "it is empty").within("the Job"), "the Job: spec: it is empty"),
    ],
)
def test_finding_is_one_sentence(finding: Finding, text: str) -> None:
    """Its text is the place, the problem and the remedy, without the parts that it does not have."""
    assert str(finding) == text


def test_position_changes_nothing_else() -> None:
    """A finding of an object in a file keeps its problem, remedy and verdict."""
    finding = warning_check("spec", "a trap", "write 1").within("the Job").at(FilePosition("a.yaml", 3))
    assert finding == Finding("the Job: spec", "a trap", "write 1", "warning", file="a.yaml", line=3)


def test_check_has_its_verdict() -> None:
    """Only a failed check prevents a run."""
    checks = (passed_check("a", "b"), warning_check("a", "b"), failed_check("a", "b", "c"))
    assert [check.verdict for check in checks] == ["ok", "warning", "failed"]


def test_checks_are_counted_with_their_warnings() -> None:
    """Preflight's line counts the checks, and those with a warning if there are any."""
    checks = [passed_check("a", "is there"), warning_check("b", "is old", "renew it")]
    assert describe_checks(checks) == "2 of 2 checks, 1 with a warning"
    assert describe_checks(checks[:1]) == "1 of 1 checks"
