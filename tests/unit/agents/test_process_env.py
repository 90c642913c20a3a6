"""What a program learns about its place in the job."""

import re

import pytest
from hypothesis import given

from tests.conftest import Planned
from tests.drawn import RUNS, plan
from tests.drawn_plans import ANY, argvs, pods, words
from tests.kubelet import kubelet
from tests.plan_parts import command, env
from torchyard.agents import process_env
from torchyard.agents.process_env import escape_dollars
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import PLACEHOLDERS, WITH_AGENT, Profile
from torchyard.model.run import Run

KUBERNETES = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
ASKED = ["--nodes={nodes}", "--each={processes}", "--of={world_size}", "--rank={node_rank}", "--at={rendezvous}"]


def test_program_alone_is_told_its_place(planned: Planned) -> None:
    """A program without an agent finds its master, its world and its node's rank in the environment."""
    told = env(planned(nodes=2, processes=4, rendezvous="env"))
    assert told["MASTER_ADDR"] == "sample-a1b2c3d4-1-worker-0.sample-a1b2c3d4-1"
    assert (told["WORLD_SIZE"], told["RANK"]) == ("8", "$(TORCHYARD_NODE)")


@KUBERNETES
@pytest.mark.parametrize(("rendezvous", "first"), [("static", "tcp://"), ("env", "env://")])
def test_arguments_are_filled_in(planned: Planned, launcher: str, rendezvous: str, first: str) -> None:
    """Names in braces in the arguments are replaced by the job's values, and the rank is the pod's own."""
    plan = planned(launcher=launcher, nodes=2, processes=4, rendezvous=rendezvous, agent="none", args=ASKED)
    *told, rank, url = command(plan)[-5:]
    assert told == ["--nodes=2", "--each=4", "--of=8"]
    assert rank in ("--rank=$(TORCHYARD_NODE)", "--rank=$(RANK)")
    assert url.startswith(f"--at={first}")


@KUBERNETES
def test_every_placeholder_stands_for_something(planned: Planned, launcher: str) -> None:
    """Each name that the profile's check knows is replaced."""
    args = [f"{{{name}}}" for name in PLACEHOLDERS]
    assert not [word for word in command(planned(launcher=launcher, args=args))[-len(args) :] if word in args]


@KUBERNETES
def test_other_braces_are_the_programs(planned: Planned, launcher: str) -> None:
    """Braces that mean nothing to torchyard are passed on unchanged."""
    odd = ['{"lr": 0.1}', "{epoch}", "{}", "{nodes"]
    assert command(planned(launcher=launcher, args=odd))[-4:] == odd


def test_each_attempt_has_a_file_of_its_own(planned: Planned) -> None:
    """Each attempt has its own rendezvous file: a used one would block the next attempt for ever."""
    keys = {"rendezvous": "file", "shared_file": "/pvc/meet", "nodes": 2, "args": ["{rendezvous}"]}
    files = [command(planned(attempt=attempt, **keys))[-1] for attempt in (1, 2)]
    assert files == [f"file:///pvc/meet.sample-a1b2c3d4-{attempt}" for attempt in (1, 2)]


MASTERS = ("pytorchjob", "appwrapper", "runai")  # their pods get a rank if one of them is the master


@given(ANY, RUNS)
def test_each_node_has_one_place(profile: Profile, run: Run) -> None:
    """The node numbers or ranks are distinct, and exactly one node is the first."""
    made = plan(profile, run)
    if isinstance(made, ManifestPlan):
        by = (
            process_env.NODE_VARIABLE if profile.rendezvous in WITH_AGENT or profile.launcher not in MASTERS else "RANK"
        )
        told = [each[by] for each in pods(made)]
        ranks = [re.findall(r"--node_rank=(\d+)", " ".join(words(made, each))) for each in pods(made)]
        hosts = [re.findall(r'\[ "\$\{(\w+)\}" = 0 \]', " ".join(words(made, each))) for each in pods(made)]
        assert all(each in ([], [process_env.NODE_VARIABLE]) for each in hosts)
    else:
        told = [str(node) for node in range(len(made.processes))]
        ranks = [re.findall(r"--node_rank=(\d+)", " ".join(each)) for each in argvs(made)]
        hosts = [re.findall(r"is_host=(\d)", " ".join(each)) for each in argvs(made)]
        assert sorted("".join(each) for each in hosts if each) == (
            ["0"] * (len(told) - 1) + ["1"] if profile.rendezvous == "c10d" else []
        )
    assert sorted(map(int, told)) == list(range(profile.nodes.max))
    static = profile.rendezvous == "static" and profile.resolved_agent != "none"
    assert ranks == ([[rank] for rank in told] if static else [[]] * len(told))


@pytest.mark.parametrize("text", ["$", "$$", "$$$", "$(A)", "$$(A)", "$$$(A)", "$(", "a$b", "$()", "$(A)$(A)$", ""])
def test_literal_text_survives_the_kubelet(text: str) -> None:
    """Escaped text is unchanged after the kubelet has expanded it."""
    assert kubelet(escape_dollars(text), {"A": "1"}) == text
