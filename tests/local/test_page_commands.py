"""Prefect's commands and deployments in the pages of the docs exist."""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.support.pages import PAGES, list_blocks, split_commands
from torchyard.common.project_root import ROOT


def list_prefect_commands() -> Iterator[list[str]]:
    """Yield the arguments of every command of Prefect in the pages, without the name of the program."""
    for path in PAGES:
        for block in list_blocks(path):
            for line in block.lines:
                for command in split_commands(line):
                    if command[0].endswith("prefect"):
                        yield command[1:]


COMMANDS = list(list_prefect_commands())


def get_command_name(argv: list[str]) -> str:
    """The names of command and subcommand: `deployment run` of `deployment run train/x -p ... --watch`."""
    literals = itertools.takewhile(lambda arg: re.fullmatch("[a-z][a-z-]*", arg), argv)
    return " ".join(list(literals)[: 3 if "schedule" in argv else 2])


@pytest.mark.parametrize("name", sorted(set(map(get_command_name, COMMANDS))))
def test_prefect_has_the_command(name: str) -> None:
    """Prefect has the command, with every option that a page passes to it."""
    help_command = [sys.executable, "-m", "prefect", *name.split(), "--help"]
    completed = subprocess.run(help_command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    args = itertools.chain(*(argv for argv in COMMANDS if get_command_name(argv) == name))
    options = {arg for arg in args if re.match("--?[a-z]", arg)}
    assert {option for option in options if option not in completed.stdout} == set()


def test_deployments_of_the_pages_exist() -> None:
    """Each deployment that a page names is in prefect.yaml."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    existing = {f"{re.sub(r'.*:', '', deployment['entrypoint'])}/{deployment['name']}" for deployment in deployments}
    mentioned = {arg for arg in itertools.chain(*COMMANDS) if re.fullmatch(r"[a-z]+/[a-z0-9-]+", arg)}
    assert mentioned - existing == set()
