"""torch's facts about collectives, read from a real torch in a separate process."""

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

# Three collectives of the default group, one of another, and then the module's results.
SCRIPT = """
import json, os, sys, time
from torchyard.host.black_box import torch_facts
before = torch_facts.count_collectives()
torch_facts.enable_flight_recorder()
import torch, torch.distributed as dist
calls = [torch_facts.count_calls()]
worlds = [torch_facts.read_world_size()]
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
    groups[name]["completed"] = groups[name]["enqueued"]
worlds.append(torch_facts.read_world_size())
dist.destroy_process_group()  # without it, torch can abort at exit on a loaded machine
calls.append(torch_facts.count_calls())
worlds.append(torch_facts.read_world_size())
os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
calls.append(torch_facts.count_calls())
results = {"before": before, "groups": groups, "wait": wait, "calls": calls, "worlds": worlds}
print(json.dumps(results), flush=True)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rendezvous_file = tmp_path_factory.mktemp("torch") / "meeting"
    argv = [sys.executable, "-c", SCRIPT, str(rendezvous_file)]
    process = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def test_program_without_process_groups_has_no_counts(results: Any) -> None:
    """Before torch.distributed is initialized there are no counts."""
    assert results["before"] == {}


def test_collectives_are_counted_by_group(results: Any) -> None:
    """Each group has its own counts, under the name that is the same in all ranks."""
    counts = {name: (group["enqueued"], group["completed"]) for name, group in results["groups"].items()}
    assert counts == {"0": (3, 3), "1": (1, 1)}


def test_calls_are_counted_after_the_groups_are_gone(results: Any) -> None:
    """All calls are known also after the groups are destroyed, and none are if the user has disabled the recorder."""
    assert results["calls"] == [0, 4, None]


def test_world_of_the_program_is_its_default_group(results: Any) -> None:
    """The program's number of ranks is known while it has a default group."""
    assert results["worlds"] == [None, 1, None]


def test_calls_of_an_old_torch_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that does not record the collectives of every backend, or none at all, proves nothing."""
    for core in (SimpleNamespace(_dump_nccl_trace_json=lambda *_: "{}"), None):
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", core)
        assert torch_facts.count_calls() is None


def test_members_are_listed_unless_they_are_all(results: Any) -> None:
    """A group of one of two ranks lists its member."""
    assert results["groups"]["1"]["ranks"] == [0]


def test_complete_collectives_are_not_pending(results: Any) -> None:
    """After all collectives are complete, there is no pending one."""
    assert results["wait"] is None


@pytest.mark.parametrize(
    ("version", "variable"), [("2.6.0", "TORCH_NCCL_TRACE_BUFFER_SIZE"), ("2.13.0+cu130", "TORCH_FR_BUFFER_SIZE")]
)
def test_flight_recorder_is_enabled_by_the_variable_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, variable: str
) -> None:
    """The variable is that of torch's version: a newer one warns of the older name, which an older one needs."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    spec = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        os.environ.pop(name, None)
    torch_facts.enable_flight_recorder()
    assert [name for name in os.environ if name.endswith("_BUFFER_SIZE")] == [variable]


@pytest.mark.parametrize("name", ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"])
def test_flight_recorder_of_the_user_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A size that the user has set, by either name, stays the only one: torch prefers the newer name."""
    for variable in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "20")
    torch_facts.enable_flight_recorder()
    assert {variable for variable in os.environ if variable.endswith("_BUFFER_SIZE")} == {name}


def test_oldest_collective_that_is_not_complete_is_found() -> None:
    """Entries that are retired or older than the last completion are not pending."""
    entries = [
        {"collective_seq_id": 6, "retired": True},
        {"collective_seq_id": 7, "retired": False},
        {"collective_seq_id": 8, "retired": False},
    ]
    common = {
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "pg_id": 0,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
    }
    groups = {"0": {"enqueued": 8, "completed": 6, "ranks": []}}
    wait = torch_facts.find_oldest_wait([common | entry for entry in entries], groups)
    assert wait == {"group": "0", "sequence": 7, "operation": "all_reduce", "sizes": [[4]], "dtypes": ["Float"]}


@pytest.mark.parametrize(
    ("last", "settled"), [({"retired": True}, ["0"]), ({"retired": False}, []), ({"collective_seq_id": 2}, [])]
)
def test_count_that_fell_back_is_settled(last: dict[str, object], settled: list[str]) -> None:
    """Only entries up to the last call, all of them retired, show that torch has counted too few."""
    common: dict[str, object] = {"process_group": ["0", "default_pg"], "pg_id": 0, "retired": True}
    entries = [common | {"collective_seq_id": 2}, common | {"collective_seq_id": 3} | last]
    assert torch_facts.list_settled_groups(entries, {"0": {"enqueued": 3, "completed": 1, "ranks": []}}) == settled


def enter_collective(signature: str, *args: Any) -> Any:
    """The frame of a function of torch.distributed with this signature that was called with these arguments."""
    scope: dict[str, Any] = {"sys": sys}
    code = compile(f"def {signature}:\n    return sys._getframe()", "torch/distributed/distributed_c10d.py", "exec")
    exec(code, scope)
    return scope[signature.partition("(")[0]](*args)


@pytest.mark.parametrize(
    ("signature", "args", "call"),
    [
        ("recv(tensor, src=None)", (None, 3), {"group": "0", "sequence": 0, "operation": "recv", "peer": 3}),
        (
            "broadcast(tensor, src=None, group=None, group_src=None)",
            (None, 2),
            {"operation": "broadcast", "unrecorded": None, "root": 2},
        ),
        (
            "reduce(tensor, dst=None, group=None, group_dst=None)",
            (None, None, "mine", 1),
            {"operation": "reduce", "unrecorded": None, "root": 3},
        ),
        (
            "new_group(ranks=None)",
            ([0, 1],),
            {"group": "set-up", "sequence": 0, "operation": "new_group", "members": [0, 1]},
        ),
        ("all_gather_into_tensor(tensor)", (None,), {"operation": "all_gather_base", "unrecorded": None}),
        ("all_gather_object(obj)", (None,), None),
    ],
    ids=["recv", "broadcast", "reduce", "new_group", "all_gather_into_tensor", "all_gather_object"],
)
def test_call_is_read_from_the_stack(
    monkeypatch: pytest.MonkeyPatch, signature: str, args: tuple[Any, ...], call: Any
) -> None:
    """A frame of torch contains a call's operation, peer or root, also by its number in the group, and new members."""
    world = SimpleNamespace(pg_group_ranks={"mine": {2: 0, 3: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    assert torch_facts.find_call([enter_collective(signature, *args)]) == call


@pytest.mark.parametrize(
    ("backend", "dump", "has_group"),
    [
        ("nccl", "_dump_nccl_trace_json", True),
        ("cpu:gloo,cuda:nccl", "_dump_fr_trace_json", True),
        ("undefined", "_dump_fr_trace_json", True),
        ("undefined", "_dump_nccl_trace_json", False),
        ("gloo", "_dump_fr_trace_json", False),
    ],
)
def test_group_of_a_call_that_nccl_has_not_recorded(
    monkeypatch: pytest.MonkeyPatch, backend: str, dump: str, *, has_group: bool
) -> None:
    """Only NCCL blocks in a call before torch records it; an older torch records no call of gloo at all."""
    world = SimpleNamespace(
        pg_names={"mine": "7"}, pg_group_ranks={"mine": {3: 0, 2: 1}}, pg_map={"mine": (backend, None)}
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**{dump: None}))
    call: Any = torch_facts.find_call([enter_collective("all_reduce(tensor, group=None)", None, "mine")])
    assert call["unrecorded"] == ("7" if has_group else None)


def dump_calls(name: str, count: int) -> Any:
    """A dump of torch's flight recorder: its group 0, called `name`, has so many calls."""
    status = {"0": {"last_enqueued_collective": str(count), "last_completed_collective": str(count)}}
    entries = [{"pg_id": 0, "process_group": [name, "undefined"]}]
    return lambda has_entries, _: json.dumps({"pg_status": status, "entries": entries if has_entries else []})


@pytest.mark.parametrize(
    ("backends", "gloo_group", "counts"),
    [
        ({"0": "nccl", "1": "gloo"}, "1", {"0": 60, "1": 5}),
        ({"0": "cpu:gloo,cuda:nccl"}, "0", {"0": 60, "0 of gloo": 5}),
        ({"0": "undefined"}, "0", {"0": 60, "0 of gloo": 5}),
    ],
    ids=["two groups", "one group of both", "one group without a backend"],
)
def test_backends_number_their_groups_alone(
    monkeypatch: pytest.MonkeyPatch, backends: dict[str, str], gloo_group: str, counts: dict[str, int]
) -> None:
    """NCCL's group 0 is another than gloo's, and a group of both backends has two counts."""
    world = SimpleNamespace(
        pg_names={name: name for name in backends},
        pg_map={name: (backend, None) for name, backend in backends.items()},
        pg_group_ranks={name: {0: 0, 1: 1} for name in backends},
    )
    core = SimpleNamespace(
        ProcessGroupNCCL=object,
        _dump_fr_trace_json=dump_calls(gloo_group, 5),
        _dump_nccl_trace_json=dump_calls("0", 60),
    )
    c10d = SimpleNamespace(_world=world, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", core)
    groups = torch_facts.GroupNames().build_groups(torch_facts.count_collectives(), 4)
    assert {name: (group["enqueued"], group["ranks"]) for name, group in groups.items()} == {
        name: (count, [0, 1]) for name, count in counts.items()
    }


def test_group_without_this_rank_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rank that is not in a new group, torch keeps that group's members under a placeholder without a name."""
    world = SimpleNamespace(pg_names={"mine": "7"}, pg_group_ranks={"mine": {1: 0, 0: 1}, -100: {2: 0, 3: 1}})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())
    assert torch_facts.GroupNames().build_groups({"7": (5, 4)}, 4) == {
        "7": {"ranks": [0, 1], "enqueued": 5, "completed": 4}
    }
