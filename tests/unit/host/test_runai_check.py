"""What preflight checks of Run:ai's CLI."""

import pytest

from tests.doubles.runai_jobs import Cli, Planned
from torchyard.host import runai_check
from torchyard.machines.checks import check_hosts
from torchyard.model.plan import CommandPlan
from torchyard.model.requirements import ScriptCheck


def find_requirement(plan: CommandPlan, **settings: str) -> ScriptCheck:
    """The requirement on the CLI, with some settings changed."""
    (requirement,) = [requirement for requirement in plan.requires if isinstance(requirement, ScriptCheck)]
    return requirement.model_copy(update={"settings": requirement.settings | settings})


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"cli": "/no/runai"}, "cannot start /no/runai: No such file or directory"),
        ({"generation": "cli-v1"}, "is not cli-v1; it is: cli-v2"),
        ({"project": "ml"}, "there is no project ml for this user"),
        ({}, "cli-v2, logged in, project mlo"),
    ],
)
def test_preflight_checks_the_cli(runai_planned: Planned, settings: dict[str, str], detail: str) -> None:
    """The program, its generation, the login and the project are checked before anything is submitted."""
    requirement = find_requirement(runai_planned("true"), **settings)
    (check,) = check_hosts([requirement])
    assert check.where == f"{requirement.settings['cli']} on localhost"
    assert (detail in check.what, check.verdict) == (True, "failed" if settings else "ok")


def test_preflight_reports_a_missing_login(runai_planned: Planned, cli: Cli) -> None:
    """A CLI without a login is reported with the command to log in."""
    requirement = find_requirement(runai_planned("true"))
    path = cli()
    path.write_text(path.read_text().replace("\nexec", '\n[ "$1" != whoami ] || { echo not logged in; exit 1; }\nexec'))
    (check,) = check_hosts([requirement])
    assert (check.what, check.remedy) == ("no user is logged in: not logged in", f"{path} login")


def test_projects_that_cannot_be_listed_are_not_a_problem(
    runai_planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CLI that refuses to list projects proves nothing about the project."""
    monkeypatch.setitem(runai_check._PROJECT_COMMANDS, "cli-v2", ["no-such-command"])
    requirement = find_requirement(runai_planned("true"))
    assert runai_check.describe_problem(requirement.settings) == ("", "")


def test_program_of_no_generation_is_not_the_cli(runai_planned: Planned) -> None:
    """Another program of this name is of no known generation."""
    requirement = find_requirement(runai_planned("true"), cli="/usr/bin/true", generation="cli-v3")
    problem, remedy = runai_check.describe_problem(requirement.settings)
    assert (problem, "options.cli" in remedy) == ("is not cli-v3; it is: cli-v1, cli-v2", True)
