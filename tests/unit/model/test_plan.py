"""Properties of the plan of any profile: it is valid, and the same after JSON and when it is built again."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from tests.builders.generated_plans import POD_PROFILES, PROFILES, find_values, plan_pods, walk_values
from tests.builders.generated_profiles import RUNS, build_plan
from tests.conftest import RUN_ID, Planned, Write, command_plan_of, load, plan_of
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Capacity
from torchyard.model.run import Run

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # DNS-1123
SERVICE = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"  # DNS-1035: also the host name of a pod
VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
KEY = rf"({LABEL}(\.{LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
PORT = r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*"


# Volcano's plugin takes no arguments, the dispatcher requires its key, and the rest is written by users.
MAY_BE_EMPTY = (
    r"spec\.plugins\.env",
    r".*\.emptyDir",
    r".*\.custompodresources\.0\.requests",
    r".*\.command\.\d+",
    r".*\.env\.\d+\.value",
    r".*\.(annotations|labels|nodeSelector|matchExpressions)\..+",
)


@given(POD_PROFILES, RUNS)
def test_names_are_valid_in_kubernetes(profile: Profile, run: Run) -> None:
    """Names of objects and pods are valid as host names and Services, and other names are valid for their kind."""
    plan = plan_pods(profile, run)
    pods = [f"{pod}{'-abcde' if plan.has_random_suffix else ''}" for pod in plan.pods.values()]
    rules = {
        SERVICE: [*find_values(plan, r"metadata\.name"), *pods],
        LABEL: [
            *find_values(plan, r"(c|initC)ontainers\.\d+\.name"),
            *find_values(plan, r"(volumes|volumeMounts|resourceClaims)\.\d+\.name"),
        ],
        VARIABLE: find_values(plan, r"env\.\d+\.name"),
        PORT: find_values(plan, r"ports\.\d+\.name"),
    }
    assert {name for rule, names in rules.items() for name in names if not re.fullmatch(rule, name)} == set()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"launcher": "jobset", "name": "n" * 40, "nodes": 2}, "shorten the profile's name by 5"),
        ({"launcher": "jobset", "name": "n" * 35, "nodes": 2, "attempts": 10}, "shorten the profile's name by 1"),
        ({"pod": {"init": [{"name": "worker", "image": "i:1"}]}}, "a second container cannot be called worker"),
        ({"pod": {"init": [{"name": "a", "image": image} for image in ("i:1", "i:2")]}}, "cannot be called a"),
        ({"env": {"TORCHYARD_NODE": "0"}}, "env.TORCHYARD_NODE: torchyard sets this in each pod"),
    ],
)
def test_invalid_names_are_refused(keys: dict[str, Any], message: str) -> None:
    """A name that an API server would refuse, or that would hide one of ours, is refused in the profile."""
    fields = {"name": "a", "about": "a test", "launcher": "volcano", "image": "i:1", "program": "a.py"} | keys
    with pytest.raises(ProfileError, match=re.escape(message)):
        build_plan(Profile.model_validate(fields), Run(id=RUN_ID, attempt=1, folder="/runs/here"))


@given(POD_PROFILES, RUNS)
def test_labels_are_valid_in_kubernetes(profile: Profile, run: Run) -> None:
    """Keys of labels, selectors and annotations are valid, and so are the values of labels and selectors."""
    plan = plan_pods(profile, run)
    labels = [
        mapping for key in ("labels", "matchLabels", "nodeSelector", "selector") for mapping in find_values(plan, key)
    ]
    assert {
        key for mapping in (*labels, *find_values(plan, "annotations")) for key in mapping if not re.fullmatch(KEY, key)
    } == set()
    assert {value for mapping in labels for value in mapping.values() if not re.fullmatch(VALUE, value)} == set()


@given(POD_PROFILES, RUNS)
def test_names_in_a_pod_are_unique(profile: Profile, run: Run) -> None:
    """Containers, volumes, variables and mount paths are unique: a second one would be refused or hide the first."""
    plan = plan_pods(profile, run)
    for spec in (plan.pod["spec"], *(obj["spec"] for obj in plan.store if obj["kind"] == "Pod")):
        containers = [*spec["containers"], *spec.get("initContainers", [])]
        item_lists = [containers, spec.get("volumes", []), *(container.get("env", []) for container in containers)]
        lists = [[item["name"] for item in rows] for rows in item_lists]
        lists += [[mount["mountPath"] for mount in container.get("volumeMounts", [])] for container in containers]
        assert all(len(set(names)) == len(names) for names in lists)


@given(POD_PROFILES, RUNS)
def test_pods_of_a_job_add_up(profile: Profile, run: Run) -> None:
    """The number of pods is that of the nodes everywhere: in the manifest, for the agents and for the program."""
    plan = plan_pods(profile, run)
    nodes = profile.nodes
    counts = find_values(plan, r"(tasks\.\d+\.replicas|pytorchReplicaSpecs\.\w+\.replicas|spec\.completions)")
    assert sum(counts) == len(plan.pods) == nodes.max
    assert set(find_values(plan, "minAvailable")) <= {nodes.min}
    assert set(find_values(plan, "minReplicas")) <= {nodes.min}
    assert set(find_values(plan, "maxReplicas")) <= {nodes.max}
    assert set(find_values(plan, "nprocPerNode")) <= (
        {str(profile.processes)} if profile.resolved_agent == "none" else set()
    )
    assert {size for size in variables(plan, "WORLD_SIZE")} <= {str(nodes.max * profile.processes)}
    assert [requirement.pods for requirement in plan.requires if isinstance(requirement, Capacity)] == [nodes.min]


def variables(plan: ManifestPlan, name: str) -> list[str]:
    return [variable["value"] for variable in plan.pod["spec"]["containers"][0]["env"] if variable["name"] == name]


@given(POD_PROFILES, RUNS)
def test_manifest_has_no_empty_values(profile: Profile, run: Run) -> None:
    """A manifest has no null and no empty string, list or mapping, to which some controllers give their own meaning."""
    plan = plan_pods(profile, run)
    empty_paths = [
        path for obj in (*plan.store, *plan.objects) for path, value in walk_values(obj) if value in (None, "", [], {})
    ]
    assert [path for path in empty_paths if not any(re.fullmatch(rule, path) for rule in MAY_BE_EMPTY)] == []


@given(PROFILES, RUNS)
def test_plan_is_reproducible(profile: Profile, run: Run) -> None:
    """A plan that is saved and read back is the same, and so is one that is built again."""
    second = build_plan(profile, run)
    reader: TypeAdapter[Plan] = TypeAdapter(Plan)
    assert reader.validate_json(second.model_dump_json()) == second == build_plan(profile, run)


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_plan_survives_json(name: str) -> None:
    """A plan in JSON is read back as the same plan, of the same type."""
    plan = plan_of(load_profile(name), Path("/runs/RUN"))
    parsed = TypeAdapter[Plan](Plan).validate_json(plan.model_dump_json())
    assert (type(parsed), parsed.model_dump_json()) == (type(plan), plan.model_dump_json())


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        ("worker-0-2-x7k2p", "worker-0-2"),
        ("worker-0-3-x7k2p", "worker-0-3-x7k2p"),
        ("worker-0-02-x7k2p", "worker-0-02-x7k2p"),
        ("worker-0-²-x7k2p", "worker-0-²-x7k2p"),
        ("worker-1-0-x7k2p", "worker-1-0-x7k2p"),
        ("worker-0-2", "worker-0-2"),
    ],
)
def test_only_a_pod_of_a_node_loses_its_suffix(planned: Planned, pod: str, node: str) -> None:
    """A pod's name loses its random suffix only if what remains is a node of the job."""
    plan = planned(launcher="jobset", nodes=3)
    assert plan.node(f"{plan.job}-{pod}") == node


@pytest.mark.parametrize(
    ("launcher", "kind", "suffix"),
    [
        ("volcano", "Job", ""),
        ("volcano", "PodGroup", "-7c6f0a51-3b5e-4c8e-9d0a-0f1e2d3c4b5a"),
        ("jobset", "Job", "-worker-0"),
        ("pytorchjob", "PodGroup", ""),
    ],
)
def test_objects_of_a_job_are_known_by_their_names(planned: Planned, launcher: str, kind: str, suffix: str) -> None:
    """Besides the job itself, its PodGroup and the Jobs between it and its pods belong to it."""
    plan = planned(launcher=launcher, nodes=2)
    assert plan.is_job_object(kind, f"{plan.job}{suffix}")


def test_store_starts_before_the_agents(write: Write, tmp_path: Path) -> None:
    """The etcd is the first process and has a log, but is not a node."""
    plan = command_plan_of(load(write(nodes=2, rendezvous="etcd-v2")), tmp_path)
    assert [block.name for block in plan.all_processes] == list(plan.logs) == ["etcd", "node-0", "node-1"]
    assert list(plan.nodes) == ["node-0", "node-1"]


def test_processes_of_one_host_share_its_folder(write: Write, tmp_path: Path) -> None:
    """A host behind ssh has one folder for all its processes, and this machine has none."""
    hosts = ["gpu1", "gpu1", {"host": "localhost", "address": "10.0.0.1"}]
    plan = command_plan_of(load(write(nodes=3, options={"hosts": hosts})), tmp_path)
    assert [site.host for site in plan.sites] == ["gpu1"]
