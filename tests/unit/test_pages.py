"""The pages: every link has a target, every command exists, and generated pages are up to date."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.pages import (
    PAGES,
    Block,
    list_anchors,
    list_blocks,
    list_files,
    list_links,
    name_page,
    split_commands,
)
from tests.tools.reference_pages import PAGES as REFERENCE_PAGES
from tests.tools.reference_pages import list_actions, list_verbs
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import list_profiles

BLOCKS = [block for path in PAGES for block in list_blocks(path)]
WALKS = [path for folder in ("start", "tasks") for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
# Commands of other programs, which no test runs as the pages show them.
OTHER_COMMANDS = (
    *("cat", "cd", "export", "git", "grep", "mkdir", "pip", "python3", "source", ".", "touch"),
    *("kubectl", "runai", "ssh", "tmux", "torchrun"),  # these need a cluster or hosts
    *("pg_dump", "pg_restore", "sudo", "umask"),
    "docker",  # tests/cluster/launcher_image.py builds the same file
    "prefect",  # tests/local/test_page_commands.py checks each command
)


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_links_have_targets(path: Path) -> None:
    """Each link leads to a file, and to a heading of it after #; a page of docs/ links only to pages of the site."""
    for link in list_links(path.read_text()):
        if re.match(r"\w+:", link):
            parts = urlsplit(link)
            assert (parts.scheme, "." in parts.netloc) == ("https", True), link
            continue
        target, _, anchor = link.partition("#")
        target_path = (path.parent / target).resolve() if target else path
        assert target_path.exists(), link
        assert not path.is_relative_to(ROOT / "docs") or target_path.is_relative_to(ROOT / "docs"), (
            f"{link} is not in the site"
        )
        assert not anchor or anchor in list_anchors(target_path.read_text()), (
            f"{link}: {sorted(list_anchors(target_path.read_text()))}"
        )


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_exist(block: Block) -> None:
    """Each command of a block is accepted by its parser, or is one of OTHER_COMMANDS; output must be in ```text."""
    for line in block.lines:
        for command in split_commands(line):
            check_command(command)


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_commands_in_sentences_exist(path: Path) -> None:
    """Each `torchyard ...` and `make ...` in a sentence exists."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for code in re.findall(r"`((?:\.venv/bin/)?(?:torchyard|make) [^`]+)`", text):
        for command in split_commands(re.sub(r"[\[\]]", "", code).replace("...", "").replace("…", "")):
            check_command(command, is_complete=False)


def check_command(argv: list[str], *, is_complete: bool = True) -> None:
    """Fail if a command does not exist as written; one that is not complete may lack arguments."""
    name, *rest = [argv[0].removeprefix(".venv/bin/"), *argv[1:]]
    if name == "torchyard":
        check_torchyard(rest, is_complete=is_complete)
    elif name == "make":
        for arg in rest:
            variable, equals, _ = arg.partition("=")
            assert variable in (VARIABLES if equals else TARGETS), f"make {arg}"
    elif name == "python":
        module = f"{rest[1].replace('.', '/')}" if rest[0] == "-m" else rest[0]
        assert any((ROOT / f"{module}{end}").is_file() for end in ("", ".py", "/__main__.py")), shlex.join(argv)
    else:
        assert name in OTHER_COMMANDS, f"{shlex.join(argv)}: unknown command; output must be in a block of ```text"


def check_torchyard(argv: list[str], *, is_complete: bool) -> None:
    if argv[:1] == ["--version"]:
        return
    verbs = list_verbs()
    assert argv[0] in verbs, shlex.join(argv)
    if is_complete:
        verbs[argv[0]].parse_args(argv[1:])
        if argv[0] in ("plan", "check", "run", "benchmark") and argv[1:]:
            profile = argv[1]
            assert profile in list_profiles() or profile.endswith(".yaml") or profile == "my-profile", profile
    options = {option for action in list_actions(verbs[argv[0]]) for option in action.option_strings}
    own_argv = argv[: argv.index("--")] if "--" in argv else argv  # after it another command's options follow
    assert {arg for arg in own_argv if arg.startswith("--")} <= options, shlex.join(argv)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[list[str]]:
    """A shell in an empty folder, in which `torchyard` is this project's."""
    (tmp_path / "bin").mkdir()
    main = "from torchyard.cli.console import main; main()"
    (tmp_path / "bin" / "torchyard").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{main}" "$@"\n')
    (tmp_path / "bin" / "torchyard").chmod(0o755)
    before = os.getcwd()
    os.environ |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    os.chdir(tmp_path)
    yield ["bash", "-euc"]
    os.chdir(before)


@pytest.mark.parametrize("path", WALKS, ids=name_page)
def test_walk_runs_as_written(path: Path, shell: list[str]) -> None:
    """The files and commands of a page of first steps or of a task work in an empty folder, in their order."""
    files = list_files(path)
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    lines = [line for block in list_blocks(path) if not block.skip_reason for line in block.lines]
    # A line that prints into one of these files would overwrite the version that the reader has edited.
    unchanged = [line for line in lines if line.rpartition("> ")[2] not in files]
    completed = subprocess.run([*shell, "\n".join(unchanged)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-500:] + completed.stderr


@pytest.mark.parametrize("path", REFERENCE_PAGES, ids=name_page)
def test_reference_pages_are_up_to_date(path: Path) -> None:
    """The generated pages are those that the code generates."""
    assert path.read_text() == REFERENCE_PAGES[path](), "run python -m tests.tools.reference_pages"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=name_page)
def test_lists_are_shown_as_lists(path: Path) -> None:
    """The site renders a list only after an empty line, and a block inside an item only if it is indented by 4."""
    text = re.sub(r"^( *)```.*?^\1```$", r"\1@", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = text.split("\n")
    for previous, line in pairwise(lines):
        is_item = re.match(r"([-*]|\d+\.) +\S", line)
        assert not (is_item and previous and not re.match(r" |[-*] |\d+\. |@", previous)), (
            f"{path}: {previous!r}, {line!r}"
        )
        assert not re.match(r" {1,3}@", line), f"{path}: a block after {previous!r} needs 4 spaces"


def test_site_is_built(tmp_path: Path) -> None:
    """The site is built without a warning, has every page in its menu, and loads nothing from other sites."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    build = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    completed = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    menu = re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == sorted(pages)
    html = "".join(path.read_text() for path in (tmp_path / "site").rglob("*.html"))
    assert (
        re.findall(
            r'<(?:script|img|iframe)[^>]*src="?https?:[^>]*>|<link[^>]*rel="?(?:stylesheet|preconnect)"?[^>]*https?:[^>]*>',
            html,
        )
        == []
    )
