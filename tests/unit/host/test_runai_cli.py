"""Run:ai's CLI: its output in any shape, and what preflight checks."""

import pytest

from tests.doubles.runai_jobs import Cli, Planned
from torchyard.host import runai_cli
from torchyard.host.runai_cli import parse_statuses
from torchyard.machines.checks import check_hosts


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ('{"name": "j", "status": "RUNNING", "instances": [{"name": "j-master-0", "status": "PENDING"}]}', "PENDING"),
        ('{"general": {"name": "j", "phase": "Running"}, "pods": [{"podName": "j-master-0", "state": "W"}]}', "W"),
        ('{"Status": {"Phase": "Running"}, "pods": [{"metadata": {"name": "j-master-0"}, "status": "P"}]}', "P"),
        ("NAME: j\nSTATUS: Running\n", None),
        ('warning: old\n{"status": {"value": "Running"}}', None),
    ],
)
def test_statuses_are_found_in_any_shape(output: str, status: str | None) -> None:
    """The status of job and pods is found in JSON of several shapes, and that of the job also in plain text."""
    statuses = parse_statuses(output, "j")
    assert (statuses[""].lower(), statuses.get("j-master-0")) == ("running", status)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"cli": "/no/runai"}, "cannot start /no/runai: No such file or directory"),
        ({"generation": "cli-v1"}, "is not cli-v1; it is: cli-v2"),
        ({"project": "ml"}, "there is no project ml for this user"),
        ({}, "cli-v2, logged in, project mlo"),
    ],
)
def test_preflight_checks_the_cli(runai_planned: Planned, changes: dict[str, str], detail: str) -> None:
    """The program, its generation, the login and the project are checked before anything is submitted."""
    plan = runai_planned("true")
    (requirement,) = [requirement for requirement in plan.requires if requirement.kind == "runai"]
    (check,) = check_hosts([requirement.model_copy(update=changes)])
    assert (detail in check.what, check.verdict) == (True, "failed" if changes else "ok")


def test_preflight_reports_a_missing_login(runai_planned: Planned, cli: Cli) -> None:
    """A CLI without a login is reported with the command to log in."""
    plan = runai_planned("true")
    path = cli()
    path.write_text(path.read_text().replace("\nexec", '\n[ "$1" != whoami ] || { echo not logged in; exit 1; }\nexec'))
    (check,) = check_hosts([requirement for requirement in plan.requires if requirement.kind == "runai"])
    assert (check.what, check.remedy) == ("no user is logged in: not logged in", f"{path} login")


def test_projects_that_cannot_be_listed_are_not_a_problem(
    runai_planned: Planned, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CLI that refuses to list projects proves nothing about the project."""
    monkeypatch.setitem(runai_cli._PROJECT_COMMANDS, "cli-v2", ["no-such-command"])
    (requirement,) = [requirement for requirement in runai_planned("true").requires if requirement.kind == "runai"]
    assert runai_cli.describe_problem(requirement.to_probe()) == ("", "")


def test_program_of_no_generation_is_not_the_cli(runai_planned: Planned) -> None:
    """Another program of this name is of no known generation."""
    (requirement,) = [requirement for requirement in runai_planned("true").requires if requirement.kind == "runai"]
    what, remedy = runai_cli.describe_problem(
        requirement.model_copy(update={"cli": "/usr/bin/true", "generation": "cli-v3"}).to_probe()
    )
    assert (what, "options.cli" in remedy) == ("is not cli-v3; it is: cli-v1, cli-v2", True)
