"""Prefect's own commands, as the pages have them."""

import re
import subprocess
import sys
from itertools import takewhile

import pytest
import yaml

from tests.pages import PAGES, list_blocks, split_commands
from torchyard.common.project_root import ROOT

COMMANDS = [
    command[1:]
    for path in PAGES
    for block in list_blocks(path)
    for line in block.lines
    for command in split_commands(line)
    if command[0].endswith("prefect")
]


def name_command(words: list[str]) -> str:
    """`deployment run` of `deployment run train/x -p ... --watch`."""
    plain = takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words)
    return " ".join(list(plain)[: 3 if "schedule" in words else 2])


@pytest.mark.parametrize("name", sorted(set(map(name_command, COMMANDS))))
def test_prefect_knows_the_command(name: str) -> None:
    """Prefect has the command, with every option that a page gives it."""
    ask = [sys.executable, "-m", "prefect", *name.split(), "--help"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = {word for words in COMMANDS if name_command(words) == name for word in words if re.match("--?[a-z]", word)}
    assert {word for word in given if word not in done.stdout} == set()


def test_deployments_of_the_pages_exist() -> None:
    """Each deployment that a page names is one of prefect.yaml."""
    listed = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    known = {f"{re.sub(r'.*:', '', each['entrypoint'])}/{each['name']}" for each in listed}
    named = {word for words in COMMANDS for word in words if re.fullmatch(r"[a-z]+/[a-z0-9-]+", word)}
    assert named - known == set()
