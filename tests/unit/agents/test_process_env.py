"""How a program gets its place in the job."""

import re
from typing import Any

import pytest
from hypothesis import given

from tests.builders.generated_plans import PROFILES, expand_command, list_argvs, list_pod_variables
from tests.builders.generated_profiles import RUNS, build_plan
from tests.builders.plan_parts import get_command, get_env
from tests.conftest import Planned
from tests.doubles.kubelet import expand_variables
from torchyard.agents import process_env
from torchyard.agents.process_env import escape_dollars
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import PLACEHOLDERS, WITH_AGENT, Profile
from torchyard.model.run import Run

KUBERNETES = pytest.mark.parametrize("launcher", ["volcano", "pytorchjob"])
ARGUMENTS = ["--nodes={nodes}", "--each={processes}", "--of={world_size}", "--rank={node_rank}", "--at={rendezvous}"]


def test_program_without_agent_gets_its_place(planned: Planned) -> None:
    """A program without an agent finds its master, its world and its node's rank in the environment."""
    env = get_env(planned(nodes=2, processes=4, rendezvous="env"))
    assert env["MASTER_ADDR"] == "sample-a1b2c3d4-1-worker-0.sample-a1b2c3d4-1"
    assert (env["WORLD_SIZE"], env["RANK"]) == ("8", "$(TORCHYARD_NODE)")


@pytest.mark.parametrize(
    ("keys", "has_rank"),
    [
        ({"rendezvous": "static"}, False),
        ({"rendezvous": "env"}, True),
        ({"rendezvous": "static", "nodes": 2}, True),
        ({"rendezvous": "static", "processes": 2}, True),
    ],
    ids=["alone", "alone with env", "two nodes", "two processes"],
)
def test_lone_process_has_no_rank(planned: Planned, keys: dict[str, Any], has_rank: bool) -> None:
    """A program of one process finds no RANK in its environment, unless its rendezvous is the environment."""
    assert ("RANK" in get_env(planned(agent="none", **keys))) == has_rank


@KUBERNETES
@pytest.mark.parametrize(("rendezvous", "scheme"), [("static", "tcp://"), ("env", "env://")])
def test_arguments_are_filled_in(planned: Planned, launcher: str, rendezvous: str, scheme: str) -> None:
    """Names in braces in the arguments are replaced by the job's values, and the rank is the pod's own."""
    plan = planned(launcher=launcher, nodes=2, processes=4, rendezvous=rendezvous, agent="none", args=ARGUMENTS)
    *args, rank, url = get_command(plan)[-5:]
    assert args == ["--nodes=2", "--each=4", "--of=8"]
    assert rank in ("--rank=$(TORCHYARD_NODE)", "--rank=$(RANK)")
    assert url.startswith(f"--at={scheme}")


@KUBERNETES
def test_every_placeholder_is_replaced(planned: Planned, launcher: str) -> None:
    """Each name that the profile's check accepts is replaced."""
    args = [f"{{{name}}}" for name in PLACEHOLDERS]
    assert not [word for word in get_command(planned(launcher=launcher, args=args))[-len(args) :] if word in args]


@KUBERNETES
def test_other_braces_are_the_programs(planned: Planned, launcher: str) -> None:
    """Braces that mean nothing to torchyard are passed on unchanged."""
    odd = ['{"lr": 0.1}', "{epoch}", "{}", "{nodes"]
    assert get_command(planned(launcher=launcher, args=odd))[-4:] == odd


def test_each_attempt_has_a_file_of_its_own(planned: Planned) -> None:
    """Each attempt has its own rendezvous file: a used one would block the next attempt forever."""
    keys = {"rendezvous": "file", "shared_file": "/pvc/meet", "nodes": 2, "args": ["{rendezvous}"]}
    files = [get_command(planned(attempt=attempt, **keys))[-1] for attempt in (1, 2)]
    assert files == [f"file:///pvc/meet.sample-a1b2c3d4-{attempt}" for attempt in (1, 2)]


MASTERS = ("pytorchjob", "appwrapper", "runai")  # their pods get a rank if one of them is the master


@given(PROFILES, RUNS)
def test_each_node_has_one_place(profile: Profile, run: Run) -> None:
    """The node numbers or ranks are distinct, and exactly one node is the first."""
    plan = build_plan(profile, run)
    if isinstance(plan, ManifestPlan):
        has_node_variable = profile.rendezvous in WITH_AGENT or profile.launcher not in MASTERS
        variable_name = process_env.NODE_VARIABLE if has_node_variable else "RANK"
        pods = list_pod_variables(plan)
        node_numbers = [variables[variable_name] for variables in pods]
        commands = [" ".join(expand_command(plan, variables)) for variables in pods]
        ranks = [re.findall(r"--node_rank=(\d+)", command) for command in commands]
        hosts = [re.findall(r'\[ "\$\{(\w+)\}" = 0 \]', command) for command in commands]
        assert all(host_variables in ([], [process_env.NODE_VARIABLE]) for host_variables in hosts)
    else:
        node_numbers = [str(node) for node in range(len(plan.processes))]
        ranks = [re.findall(r"--node_rank=(\d+)", " ".join(argv)) for argv in list_argvs(plan)]
        hosts = [re.findall(r"is_host=(\d)", " ".join(argv)) for argv in list_argvs(plan)]
        assert sorted("".join(host_flags) for host_flags in hosts if host_flags) == (
            ["0"] * (len(node_numbers) - 1) + ["1"] if profile.rendezvous == "c10d" else []
        )
    assert sorted(map(int, node_numbers)) == list(range(profile.nodes.max))
    has_static_ranks = profile.rendezvous == "static" and profile.resolved_agent != "none"
    assert ranks == ([[rank] for rank in node_numbers] if has_static_ranks else [[]] * len(node_numbers))


@pytest.mark.parametrize("text", ["$", "$$", "$$$", "$(A)", "$$(A)", "$$$(A)", "$(", "a$b", "$()", "$(A)$(A)$", ""])
def test_literal_text_survives_the_kubelet(text: str) -> None:
    """Escaped text is unchanged after the kubelet has expanded it."""
    assert expand_variables(escape_dollars(text), {"A": "1"}) == text
