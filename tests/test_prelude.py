"""The command of a pod, run by real shells: what it does before torchrun, and what it hands on."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Planned
from torchyard.agents.process_env import escape_dollars

TORCHRUN = f"""#!{sys.executable} -IS
import json, os, sys
print(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}}))
"""


class Ran(NamedTuple):
    """How a pod's command ended, and what torchrun saw where it was reached."""

    code: int
    pid: int
    saw: Any


Start = Callable[..., Ran]


def kubelet(text: str, env: dict[str, str]) -> str:
    """A word of a command, as the kubelet expands it (kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


SHELLS = ["dash", "bash", "bash --posix", "busybox sh", "dash -eu", "busybox sh -eu"]


@pytest.fixture(params=SHELLS)
def start(request: pytest.FixtureRequest, planned: Planned, tmp_path: Path) -> Start:
    """Start a pod's command as the kubelet would, with a torchrun that tells what it sees."""
    shell = request.param.split()
    if not shutil.which(shell[0]):
        pytest.skip(f"there is no {shell[0]}: apt-get install {shell[0]}")
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)

    def start_pod(node: int = 0, **keys: Any) -> Ran:
        container = planned(**keys).pod["spec"]["containers"][0]
        env = {"TORCHYARD_NODE": str(node)}
        for each in container["env"]:
            env.setdefault(each["name"], kubelet(each.get("value", ""), env))
        argv = [kubelet(word, env) for word in container["command"]]
        argv = [*shell, *argv[1:]] if argv[0] == "/bin/sh" else argv
        path = f"{tmp_path}:{os.environ['PATH']}"
        made = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**env, "PATH": path}, cwd=tmp_path, text=True)
        said, _ = made.communicate()
        return Ran(made.returncode, made.pid, json.loads(said.splitlines()[-1]) if made.returncode == 0 else None)

    return start_pod


def test_first_pod_is_the_host(start: Start) -> None:
    """Pod 0 serves the c10d store, and no other pod does."""
    hosts = [start(node, nodes=12).saw["env"]["PET_RDZV_CONF"][-9:] for node in (0, 1, 10)]
    assert hosts == ["is_host=1", "is_host=0", "is_host=0"]


def test_pods_wait_as_long_as_the_profile_says(start: Start) -> None:
    """The time until every node has joined is torchrun's join_timeout."""
    assert start(deadlines={"start": "15m"}).saw["env"]["PET_RDZV_CONF"].startswith("join_timeout=900,")


def test_program_replaces_the_shell(start: Start) -> None:
    """torchrun is the pod's first process: it gets the signals, and its exit code is the pod's."""
    ran = start(setup=["true"])
    assert ran.pid == ran.saw["pid"]


ODD = [
    "two words",
    "it's",
    'say "hi"',
    "",
    "$HOME",
    "$(date)",
    "$$",
    "$$(A)",
    "`id`",
    "a\nb",
    "*",
    "\\n",
    "-x=$(A)",
    "é",
]


def test_arguments_reach_the_program_unchanged(start: Start) -> None:
    """Neither the shell nor the kubelet reads anything into an argument, even where it is a variable's name."""
    assert start(args=ODD, env={"A": "1"}).saw["argv"][-len(ODD) - 1 :] == ["sample.py", *ODD]


# Without the two characters that no word of a command can have.
WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5)
LINES = st.sampled_from(
    [
        "set -eu",
        "set -f",
        "IFS=:",
        "A='a b'",
        "f() { return 0; }",
        "cd / # it's home",
        "false || :",
        ": \\\n  more",
        "export B=$$",
    ]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(args=WORDS, setup=st.lists(LINES, max_size=3), name=st.text(st.sampled_from("a'\" $(;\\"), min_size=1))
def test_program_gets_exactly_its_words(start: Start, args: list[str], setup: list[str], name: str) -> None:
    """Whatever the words hold, and whatever the setup did before them to its shell."""
    saw = start(args=args, setup=setup, program=f"{name}.py").saw
    assert saw["argv"][-len(args) - 1 :] == [f"{name}.py", *args]


def test_arguments_reach_the_program_without_a_shell_too(start: Start) -> None:
    """A pod that needs no prelude has no shell, and the same arguments."""
    assert start(args=ODD, env={"A": "1"}, rendezvous="etcd-v2").saw["argv"][-len(ODD) :] == ODD


def test_variables_are_as_they_are_written(start: Start) -> None:
    """A value of the profile's environment stays what it is."""
    env = {"A": "1", "B": "$(A) $$ $HOME"}
    assert start(env=env).saw["env"]["B"] == env["B"]


def test_address_is_the_pods_own(start: Start) -> None:
    """What stands for the pod's index in the address that an agent is told is expanded."""
    saw = start(3, nodes=4).saw
    assert saw["env"]["PET_LOCAL_ADDR"] == "sample-a1b2c3d4-1-worker-3.sample-a1b2c3d4-1"


def test_setup_runs_first_and_in_one_shell(start: Start) -> None:
    """What one line sets, the next one and torchrun see; the lines are the shell's own, `$(…)` and `$$` too."""
    setup = ["export A=$(echo one)", "export B=$A-two; mkdir sub", "cd sub", "export PID=$$"]
    ran = start(setup=setup)
    assert (ran.saw["env"]["B"], ran.saw["env"]["PWD"][-4:]) == ("one-two", "/sub")
    assert ran.saw["env"]["PID"] == str(ran.pid)


@pytest.mark.parametrize(
    "line", ["exit 3", "sh -c 'exit 3'", "sh -c 'exit 3' && true", "(exit 3) # tried", "false || sh -c 'exit 3'"]
)
@pytest.mark.parametrize("rendezvous", ["c10d", "etcd-v2"])
def test_setup_that_fails_ends_the_pod(start: Start, tmp_path: Path, line: str, rendezvous: str) -> None:
    """A line that fails, in its first command or its last, ends the pod with its code: no later one is run."""
    ran = start(setup=[line, "touch later"], rendezvous=rendezvous)
    assert (ran.code, (tmp_path / "later").exists()) == (3, False)


def test_setup_may_have_more_than_one_line(start: Start) -> None:
    """A block of YAML with a loop or a here-document is one command."""
    block = "cat > note <<'END'\nit's $HOME\nEND\nfor each in 1 2; do\n  export LAST=$each\ndone\n"
    assert start(setup=[block]).saw["env"]["LAST"] == "2"


@pytest.mark.parametrize("text", ["$", "$$", "$$$", "$(A)", "$$(A)", "$$$(A)", "$(", "a$b", "$()", "$(A)$(A)$", ""])
def test_literal_text_survives_the_kubelet(text: str) -> None:
    """Whatever a text holds, the kubelet makes the same of it."""
    assert kubelet(escape_dollars(text), {"A": "1"}) == text
