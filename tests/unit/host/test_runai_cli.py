"""Run:ai's CLI: its answers in any shape, and what preflight asks it."""

import pytest

from tests.runai_jobs import Cli, Planned
from torchyard.host.runai_cli import _parse_statuses
from torchyard.machines.checks import check_hosts


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('{"name": "j", "status": "RUNNING", "instances": [{"name": "j-master-0", "status": "PENDING"}]}', "PENDING"),
        ('{"general": {"name": "j", "phase": "Running"}, "pods": [{"podName": "j-master-0", "state": "W"}]}', "W"),
        ('{"Status": {"Phase": "Running"}, "pods": [{"metadata": {"name": "j-master-0"}, "status": "P"}]}', "P"),
        ("NAME: j\nSTATUS: Running\n", None),
        ('warning: old\n{"status": {"value": "Running"}}', None),
    ],
)
def test_words_are_found_in_any_shape(answer: str, found: str | None) -> None:
    """The status of job and pods is found in JSON of several shapes, and that of the job also in plain text."""
    read = _parse_statuses(answer, "j")
    assert (read[""].lower(), read.get("j-master-0")) == ("running", found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cli": "/no/runai"}, "cannot start /no/runai: No such file or directory"),
        ({"generation": "cli-v1"}, "is not cli-v1; it is: cli-v2"),
        ({"project": "ml"}, "there is no project ml for this user"),
        ({}, "cli-v2, logged in, project mlo"),
    ],
)
def test_preflight_asks_the_cli(runai_planned: Planned, changed: dict[str, str], said: str) -> None:
    """The program, its generation, the login and the project are checked before anything is submitted."""
    need = next(each for each in runai_planned("true").requires if each.kind == "runai").model_copy(update=changed)
    (found,) = check_hosts([need])
    assert (said in found.detail, found.verdict) == (True, "failed" if changed else "ok")


def test_preflight_tells_a_missing_login(runai_planned: Planned, cli: Cli) -> None:
    """A CLI without a login is reported with the command to log in."""
    plan, path = runai_planned("true"), cli()
    path.write_text(path.read_text().replace("\nexec", '\n[ "$1" != whoami ] || { echo not logged in; exit 1; }\nexec'))
    (found,) = check_hosts([each for each in plan.requires if each.kind == "runai"])
    assert (found.detail, found.remedy) == ("nobody is logged in: not logged in", f"{path} login")
