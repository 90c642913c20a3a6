"""Overrides that make any profile small: they replace the guide's program with one of ours, on the CPU.

They keep what a profile is about (launcher, rendezvous, agent, how nodes get their names and ranks), and remove what
only its own cluster has. As JSON, for `-p overrides=…`: `python -m tests.cluster.small mnist-2x4`.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.loading.yaml_document import merge_overrides
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.pod import PLAIN_RESOURCES
from torchyard.model.profile import Profile
from torchyard.model.resolved import resolve
from torchyard.model.run import Run

Overrides = dict[str, Any]
COMMON_OVERRIDES: Overrides = json.loads((ROOT / "docs" / "small.json").read_text())
REAL_NODES = {"torchyard/node": "real"}
DEFAULT_PROGRAM = ("digits.py", ["--epochs=6"])
REPLACEMENTS = {  # a guide's program: ours, and its arguments
    "my_first_distributed_app.py": ("pi.py", ["--trials=2"]),
    "helloworld.py": ("pi.py", ["--trials=2"]),
    "all_reduce_bench.py": ("allreduce.py", ["--max-size=1M", "--trials=5"]),
    "allreduce.py": ("allreduce.py", ["--max-size=1M", "--trials=5"]),
}
NO_SOURCE = dict.fromkeys(("claim", "config_map", "secret", "scratch", "ephemeral", "storage_class"))
OPTIONS: dict[str, Overrides] = {"appwrapper": {"local_queue": None}, "runai": {"through": "kubernetes"}}
NEEDS_MCAD = {"fms-mcad": "it needs MCAD: cluster.py up --mcad"}  # profile: why it is skipped


def build_small_overrides(name: str, nodes: dict[str, str] | None = None) -> Overrides:
    """Overrides for a profile in pods, on nodes with these labels (default: the real nodes)."""
    profile = load_profile(name)
    pod: Overrides = {"networks": dict.fromkeys(profile.pod.networks, 0)}
    for key in ("env_from", "capabilities", "pull_secrets"):
        pod[key] = []
    for key in ("priority_class", "service_account", "scheduler"):
        pod[key] = None
    changes = choose_program(profile) | choose_size(profile)
    changes |= {
        "mounts": {path: NO_SOURCE | {"host": "/tmp"} for path in profile.mounts},
        "resources": {resource: "0" for resource in profile.resources if resource not in PLAIN_RESOURCES},
        "options": OPTIONS.get(profile.launcher, {}),
        "cluster": {"namespace": None},
        "pod": pod,
    }
    if needs_special_network(profile):
        changes |= {"hardware": None, "fabric": None}
    common = COMMON_OVERRIDES | {"pod": COMMON_OVERRIDES["pod"] | {"node_selector": nodes or REAL_NODES}}
    return merge_overrides(common, changes)


def choose_program(profile: Profile) -> Overrides:
    """Our program with the guide's rendezvous; a program that is not Python stays."""
    if not str(profile.program).endswith(".py"):
        return {"program": profile.program, "args": ["20"], "metrics": "none"}
    replacement, args = REPLACEMENTS.get(Path(str(profile.program)).name, DEFAULT_PROGRAM)
    if profile.program in profile.files:  # ours already, and from this machine
        return {"program": profile.program, "args": args}
    uses_init_method = any("{rendezvous}" in argument for argument in profile.args)
    rendezvous_args = ["--init-method={rendezvous}"] if uses_init_method else []
    return {"program": f"/opt/torchyard/programs/{replacement}", "args": [*args, *rendezvous_args]}


def choose_size(profile: Profile) -> Overrides:
    """At most two pods per node and two processes per pod; one process without an agent, as our programs start none."""
    pod_count = min(profile.nodes.max, 2 if resolve(profile).pod.spread or profile.values else 4)
    return {"nodes": pod_count, "processes": 1 if profile.resolved_agent == "none" else min(profile.processes, 2)}


def needs_special_network(profile: Profile) -> bool:
    """Whether the fabric needs devices or objects that only clusters with such a network have."""
    fabric = profile.network
    return bool(fabric and (fabric.pod.networks or fabric.pod.resources or fabric.pod.env_from or fabric.mounts))


def list_pod_profiles() -> Iterator[str]:
    """Yield every shipped profile that the test cluster can run in its small form."""
    for name in sorted(list_profiles().keys() - set(NEEDS_MCAD)):
        try:
            loaded_profile = load_profile(name, build_small_overrides(name))
            plan = registry.make_plan(loaded_profile, Run(id="0" * 8, attempt=1, folder="/runs"))
        except ProfileError:  # baremetal has no pods
            continue
        if isinstance(plan, ManifestPlan):
            yield name


def pick_one_per_kind(names: Iterable[str]) -> list[str]:
    """The first profile of each combination of launcher, rendezvous and agent."""
    by_kind: dict[tuple[str, str, str], str] = {}
    for name in names:
        profile = load_profile(name)
        by_kind.setdefault((profile.launcher, profile.rendezvous, profile.resolved_agent), name)
    return list(by_kind.values())


if __name__ == "__main__":
    print(json.dumps(build_small_overrides(sys.argv[1])))
