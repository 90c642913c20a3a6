"""What torch says of collectives, asked of a real torch in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchyard.common.project_root import ROOT
from torchyard.host.black_box import torch_facts

# Three collectives of the default group, one of another, and then what the module says.
ASKS = """
import json, os, sys, time
from torchyard.host.black_box import torch_facts
before = torch_facts.count_collectives()
torch_facts.enable_flight_recorder()
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
other = dist.new_group([0])
for _ in range(3):
    dist.all_reduce(torch.ones(5))
dist.barrier(group=other)
counts = torch_facts.count_collectives()
names = torch_facts.GroupNames()
groups = names.build_groups(counts, 2)
end = time.monotonic() + 30
while (wait := torch_facts.find_oldest_wait(torch_facts.list_entries(), {})) and time.monotonic() < end:
    time.sleep(0.01)  # gloo's threads retire a call after its waiter has gone on
for name in torch_facts.list_settled_groups(torch_facts.list_entries(), groups):
    groups[name]["completed"] = groups[name]["called"]
told = {"before": before, "groups": groups, "wait": wait}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    meeting = tmp_path_factory.mktemp("torch") / "meeting"
    words = [sys.executable, "-c", ASKS, str(meeting)]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(said.stdout.splitlines()[-1])


def test_program_without_process_groups_has_no_counts(told: Any) -> None:
    """Before torch.distributed is used there is nothing to count."""
    assert told["before"] == {}


def test_collectives_are_counted_by_group(told: Any) -> None:
    """Each group has its own numbers, under the name that all ranks know."""
    counts = {name: (group["called"], group["completed"]) for name, group in told["groups"].items()}
    assert counts == {"0": (3, 3), "1": (1, 1)}


def test_members_are_listed_unless_they_are_all(told: Any) -> None:
    """A group of one of two ranks names its member."""
    assert told["groups"]["1"]["ranks"] == [0]


def test_nothing_is_waited_for(told: Any) -> None:
    """Complete collectives are no wait."""
    assert told["wait"] is None


@pytest.mark.parametrize(
    ("version", "variable"), [("2.6.0", "TORCH_NCCL_TRACE_BUFFER_SIZE"), ("2.13.0+cu130", "TORCH_FR_BUFFER_SIZE")]
)
def test_recorder_is_switched_on_by_the_name_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, variable: str
) -> None:
    """A newer torch warns of the older name, and an older one does not know the newer."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    spec = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        os.environ.pop(name, None)
    torch_facts.enable_flight_recorder()
    assert [name for name in os.environ if name.endswith("_BUFFER_SIZE")] == [variable]


def test_oldest_collective_that_is_not_complete_is_found() -> None:
    """Of torch's entries, those that are retired or older than the last completion do not count."""
    entries = [
        {"collective_seq_id": 6, "retired": True},
        {"collective_seq_id": 7, "retired": False},
        {"collective_seq_id": 8, "retired": False},
    ]
    common = {"process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "pg_id": 0}
    whole = [{**common, **entry, "input_sizes": [[4]], "input_dtypes": ["Float"]} for entry in entries]
    found = torch_facts.find_oldest_wait(whole, {"0": {"called": 8, "completed": 6, "ranks": []}})
    assert found == {"group": "0", "sequence": 7, "operation": "all_reduce", "sizes": [[4]], "dtypes": ["Float"]}


@pytest.mark.parametrize(
    ("last", "settled"), [({"retired": True}, ["0"]), ({"retired": False}, []), ({"collective_seq_id": 2}, [])]
)
def test_count_that_fell_back_is_settled(last: dict[str, object], settled: list[str]) -> None:
    """Only entries up to the last call, all of them retired, show that torch has counted too few."""
    common = {"process_group": ["0", "default_pg"], "pg_id": 0, "retired": True}
    entries = [{**common, "collective_seq_id": 2}, {**common, "collective_seq_id": 3, **last}]
    assert torch_facts.list_settled_groups(entries, {"0": {"called": 3, "completed": 1, "ranks": []}}) == settled


def test_receive_names_its_peer() -> None:
    """A frame of torch's recv tells from which rank it waits for data."""
    scope: dict[str, Any] = {"sys": sys}
    code = compile(
        "def recv(tensor, src=None):\n    return sys._getframe()", "torch/distributed/distributed_c10d.py", "exec"
    )
    exec(code, scope)
    assert torch_facts.find_transfer(scope["recv"](None, 3)) == {
        "group": "0",
        "sequence": 0,
        "operation": "recv",
        "peer": 3,
    }


def test_group_of_others_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rank that is not in a new group, torch keeps that group's members under a placeholder without a name."""
    world = SimpleNamespace(pg_names={"mine": "7"}, pg_group_ranks={"mine": {1: 0, 0: 1}, -100: {2: 0, 3: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())
    assert torch_facts.GroupNames().build_groups({"7": (5, 4)}, 4) == {
        "7": {"ranks": [0, 1], "called": 5, "completed": 4}
    }
