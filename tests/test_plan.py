"""Plans: pure, printable, held to recorded ones."""

import difflib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.conftest import Write, command_plan_of, load, plan_of
from torchyard.launchers import appwrapper, baremetal, jobset, pytorchjob, registry, runai, volcano
from torchyard.loading.profile import ROOT, list_profiles, load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.plan import Plan
from torchyard.model.requirements import FreePort
from torchyard.model.run import Observation, Run

GOLDEN = Path(__file__).parent / "golden"


def recorded(plan: Plan) -> str:
    """The plan as text, without what differs between machines."""
    text = json.dumps(plan.model_dump(mode="json", exclude_none=True), indent=1) + "\n"
    return text.replace(sys.executable, "PYTHON").replace(str(ROOT), "PROJECT")


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_is_as_recorded(name: str) -> None:
    """A shipped profile's plan changes only on purpose."""
    now = recorded(plan_of(load_profile(name), Path("/runs/RUN")))
    file = GOLDEN / f"{name}.json"
    if not file.exists():
        file.write_text(now)
    changes = list(difflib.unified_diff(file.read_text().splitlines(), now.splitlines(), lineterm="", n=0))
    assert not changes, "\n".join([*changes, f"to accept it: rm {file.relative_to(ROOT)} and test again"])


def test_launchers_keep_the_protocol() -> None:
    """Every launcher has Options, plan and read_status; the annotation is what mypy checks."""
    modules: list[registry.Launcher] = [appwrapper, baremetal, jobset, pytorchjob, runai, volcano]
    assert [registry.load_launcher(name) for name in registry.list_launchers()] == modules


def test_each_attempt_has_names_of_its_own(write: Write, tmp_path: Path) -> None:
    """A second attempt shares no rendezvous id, port or folder with the first."""
    first, second = (command_plan_of(load(write()), tmp_path, attempt) for attempt in (1, 2))
    for pattern in (r"--rdzv_id=\S+", r"endpoint=\S+", r"/attempt-\d/"):
        found = [re.findall(pattern, str(plan.on[0].submit)) for plan in (first, second)]
        assert found[0] != found[1]


def test_only_one_node_is_host(write: Write, tmp_path: Path) -> None:
    """With c10d exactly the first node serves the store."""
    plan = command_plan_of(load(write(nodes=3)), tmp_path)
    assert [str(block.submit).count("is_host=1") for block in plan.on] == [1, 0, 0]


def test_static_gives_each_node_its_rank(write: Write, tmp_path: Path) -> None:
    """With static the node rank is fixed, and there is no rendezvous id."""
    plan = command_plan_of(load(write(nodes=2, rendezvous="static")), tmp_path)
    assert ["--node_rank=1" in str(block.submit) for block in plan.on] == [False, True]
    assert "rdzv-id" not in str(plan)


def test_own_etcd_is_not_started_twice(write: Write, tmp_path: Path) -> None:
    """A profile that names an etcd gets no other one, and the named one is probed."""
    plan = plan_of(load(write(rendezvous="etcd-v2", options={"etcd": "127.0.0.1:2379"})), tmp_path)
    assert (plan.store, plan.probe) == (None, "http://127.0.0.1:2379/v2/keys")


def test_ports_of_runs_are_below_the_ephemeral_ones(write: Write, tmp_path: Path) -> None:
    """No client's socket can sit on a run's port by chance."""
    plan = plan_of(load(write(rendezvous="etcd-v2")), tmp_path)
    ports = [need.port for need in plan.requires if isinstance(need, FreePort)]
    assert len(set(ports)) == 2
    assert all(20000 <= port < 32768 for port in ports)


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_is_the_same_at_every_call(name: str) -> None:
    """A plan is made of its profile and its run alone, and neither is changed by planning."""
    profile = load_profile(name)
    before = profile.model_copy(deep=True)
    assert plan_of(profile, Path("/runs/RUN")) == plan_of(profile, Path("/runs/RUN"))
    assert profile == before


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_survives_json(name: str) -> None:
    """What is kept on disk is read back as the same plan, of its own kind."""
    plan = plan_of(load_profile(name), Path("/runs/RUN"))
    again = TypeAdapter[Plan](Plan).validate_json(plan.model_dump_json())
    assert (type(again), again.model_dump_json()) == (type(plan), plan.model_dump_json())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"nodes": {"min": 1, "max": 2}}, "one number, not 1:2"),
        ({"nodes": 3, "options": {"hosts": ["localhost"]}}, "1 hosts for 3 nodes"),
        ({"options": {"etcd": "h:1"}}, "is for rendezvous etcd-v2, and this is c10d"),
        ({"image": "train:v1"}, "image: is for launchers on Kubernetes, and this one is baremetal"),
        ({"cluster": {"namespace": "ml"}}, "cluster: is for launchers on Kubernetes"),
        ({"pod": {"privileged": True}}, "pod: is for launchers on Kubernetes"),
        ({"resources": {"cpu": 1}}, "resources.cpu: is for launchers on Kubernetes; baremetal takes gpus"),
        ({"setup": ["true"]}, "setup: is for launchers on Kubernetes"),
        ({"mounts": {"/data": {"claim": "data"}}}, "mounts: is for launchers on Kubernetes"),
        ({"hardware": "oke/bm-gpu-b4-8", "fabric": "vf"}, "fabric: is for .*\n.*hardware: is for"),
        ({"env": {"TOKEN": {"secret": "hub", "key": "token"}}}, "env.TOKEN: a reference is for pods"),
    ],
)
def test_profile_that_does_not_hold_together_is_refused(
    write: Write, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    """What only the whole profile can get wrong is told by the launcher."""
    with pytest.raises(ProfileError, match=said):
        plan_of(load(write(**keys)), tmp_path)


RUNNING = {"phase": "running", "exit": None}
DONE = {"phase": "exited", "exit": 0}
BOTH = frozenset({"node-0", "node-1"})


@pytest.mark.parametrize(
    ("seen", "joined", "state", "reason"),
    [
        ({}, BOTH, "pending", "every node"),
        ({"node-0": DONE, "node-1": {}}, BOTH, "running", "2 of 2"),
        ({"node-0": RUNNING, "node-1": RUNNING}, frozenset({"node-0"}), "pending", "waits for node-1"),
        ({"node-0": RUNNING, "node-1": RUNNING}, BOTH, "running", "2 of 2 nodes joined"),
        ({"node-0": DONE, "node-1": RUNNING}, BOTH, "running", "2 of 2"),
        ({"node-0": DONE, "node-1": DONE}, BOTH, "succeeded", "2 of 2 agents ended with 0"),
        (
            {"node-0": RUNNING, "node-1": {"phase": "exited", "exit": 7}},
            BOTH,
            "failed",
            "node-1 ended with exit code 7",
        ),
        ({"node-0": RUNNING, "node-1": {"phase": "exited", "exit": -9}}, BOTH, "failed", "killed by signal 9"),
        ({"node-0": RUNNING, "node-1": {"phase": "exited"}}, BOTH, "failed", "exit code None"),
        ({"node-0": RUNNING, "node-1": {"phase": "unkept"}}, BOTH, "failed", "the keeper of node-1 was killed"),
        ({"node-0": RUNNING, "node-1": {"phase": "absent"}}, BOTH, "gone", "removed by somebody else"),
        ({"node-0": RUNNING, "etcd": DONE}, BOTH, "failed", "the rendezvous store ended before the job"),
        ({"node-0": {"phase": "no such phase"}}, frozenset(), "pending", "waits for node-0"),
    ],
)
def test_status_follows_from_what_was_seen(seen: Any, joined: frozenset[str], state: str, reason: str) -> None:
    """The first bad end ends the job, success needs every agent, and the unknown is no success."""
    status = baremetal.read_status(Observation(seen, joined))
    assert (status.state, reason in status.reason) == (state, True), status


def test_short_names_differ_for_runs_of_one_minute() -> None:
    """Time-ordered ids, alike at their beginning, give different names."""
    ids = ("0190c7f0-1111-7000-8000-0000a1b2c3d4", "0190c7f0-1111-7000-8000-0000a1b2c3d5")
    assert len({Run(id=each, attempt=1, folder="").short for each in ids}) == 2
