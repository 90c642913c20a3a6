"""What holds for the plan of any profile that a launcher takes, whatever stands in it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.conftest import RUN_ID
from tests.drawn import PODS, RUNS, plan, profiles
from tests.test_prelude import kubelet
from torchyard.agents import process_env
from torchyard.model.errors import ProfileError
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import WITH_AGENT, Profile
from torchyard.model.requirements import Capacity, FreePort
from torchyard.model.run import Run

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # DNS-1123
SERVICE = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"  # DNS-1035: also the host name of a pod
VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
KEY = rf"({LABEL}(\.{LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
PORT = r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*"
# Volcano's plugin takes no arguments, the dispatcher's definition wants the key, and the rest is what a user writes.
MAY_BE_EMPTY = (
    r"spec\.plugins\.env",
    r".*\.emptyDir",
    r".*\.custompodresources\.0\.requests",
    r".*\.command\.\d+",
    r".*\.env\.\d+\.value",
    r".*\.(annotations|labels|nodeSelector|matchExpressions)\..+",
)


def planned(profile: Profile, run: Run) -> ManifestPlan:
    made = plan(profile, run)
    assert isinstance(made, ManifestPlan)
    return made


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a manifest, with the keys that lead there."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in children:
        here = f"{path}.{key}" if path else str(key)
        yield here, each
        yield from parts(each, here)


def at(made: ManifestPlan, ending: str) -> list[Any]:
    """What stands at the keys of this name, anywhere in the objects."""
    found = (each for document in (*made.store, *made.objects) for each in parts(document))
    return [value for path, value in found if re.fullmatch(rf"(.*\.)?{ending}", path)]


def pods(made: ManifestPlan) -> list[dict[str, str]]:
    """For each pod of the job, what its controller gives it: the node's number, and the rank where it has a master."""
    count = sum(made.tasks.values())
    indexes = [index for pods in made.tasks.values() for index in range(pods)]
    return [{process_env.NODE_VARIABLE: str(indexes[rank]), "RANK": str(rank)} for rank in range(count)]


def words(made: ManifestPlan, told: dict[str, str]) -> list[str]:
    container = next(each for each in made.pod["spec"]["containers"] if each["name"] == made.container)
    return [kubelet(word, told) for word in container["command"]]


MASTERS = ("pytorchjob", "appwrapper", "runai")  # whose pods are told a rank, where one of them is the master
IN_PODS = st.sampled_from(PODS).flatmap(profiles)
ANY = st.sampled_from([*PODS, "baremetal"]).flatmap(profiles)


@given(IN_PODS, RUNS)
def test_names_are_those_that_kubernetes_takes(profile: Profile, run: Run) -> None:
    """Objects and pods can be host names and Services; containers, volumes, variables and ports have lawful names."""
    made = planned(profile, run)
    pods = [f"{made.job}-{name}{'-abcde' if made.suffixed else ''}" for name in made.nodes]
    rules = {
        SERVICE: [*at(made, r"metadata\.name"), *pods],
        LABEL: [
            *at(made, r"(c|initC)ontainers\.\d+\.name"),
            *at(made, r"(volumes|volumeMounts|resourceClaims)\.\d+\.name"),
        ],
        VARIABLE: at(made, r"env\.\d+\.name"),
        PORT: at(made, r"ports\.\d+\.name"),
    }
    assert {name for rule, names in rules.items() for name in names if not re.fullmatch(rule, name)} == set()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"launcher": "jobset", "name": "n" * 40, "nodes": 2}, "leave out 5 of the profile's"),
        ({"launcher": "jobset", "name": "n" * 35, "nodes": 2, "attempts": 10}, "leave out 1 of the profile's"),
        ({"pod": {"init": [{"name": "worker", "image": "i:1"}]}}, "a second container cannot be called worker"),
        ({"pod": {"init": [{"name": "a", "image": image} for image in ("i:1", "i:2")]}}, "cannot be called a"),
        ({"env": {"TORCHYARD_NODE": "0"}}, "env.TORCHYARD_NODE: each pod has another one"),
    ],
)
def test_names_that_cannot_be_are_refused(keys: dict[str, Any], said: str) -> None:
    """What an API server would refuse, or what would hide a name of ours, is told before."""
    least = {"name": "a", "about": "a test", "launcher": "volcano", "image": "i:1", "program": "a.py"}
    with pytest.raises(ProfileError, match=re.escape(said)):
        plan(Profile.model_validate({**least, **keys}), Run(id=RUN_ID, attempt=1, folder="/runs/here"))


@given(IN_PODS, RUNS)
def test_labels_are_those_that_kubernetes_takes(profile: Profile, run: Run) -> None:
    """Keys of labels, selectors and annotations, and the values of the first two."""
    made = planned(profile, run)
    labels = [each for key in ("labels", "matchLabels", "nodeSelector", "selector") for each in at(made, key)]
    assert {key for each in (*labels, *at(made, "annotations")) for key in each if not re.fullmatch(KEY, key)} == set()
    assert {value for each in labels for value in each.values() if not re.fullmatch(VALUE, value)} == set()


@given(IN_PODS, RUNS)
def test_nothing_in_a_pod_is_named_twice(profile: Profile, run: Run) -> None:
    """Containers, volumes, variables and mounted paths: a second one would be refused, or would hide the first."""
    made = planned(profile, run)
    for spec in (made.pod["spec"], *(each["spec"] for each in made.store if each["kind"] == "Pod")):
        containers = [*spec["containers"], *spec.get("initContainers", [])]
        named = [containers, spec.get("volumes", []), *(each.get("env", []) for each in containers)]
        lists = [[each["name"] for each in rows] for rows in named]
        lists += [[each["mountPath"] for each in one.get("volumeMounts", [])] for one in containers]
        assert all(len(set(names)) == len(names) for names in lists)


@given(IN_PODS, RUNS)
def test_pods_of_a_job_add_up(profile: Profile, run: Run) -> None:
    """As many pods as nodes, wherever a manifest says how many, and what the agents and the program are told."""
    made, nodes = planned(profile, run), profile.nodes
    counts = at(made, r"(tasks\.\d+\.replicas|pytorchReplicaSpecs\.\w+\.replicas|spec\.completions)")
    assert sum(counts) == sum(made.tasks.values()) == nodes.max
    assert set(at(made, "minAvailable")) <= {nodes.min}
    assert set(at(made, "minReplicas")) <= {nodes.min}
    assert set(at(made, "maxReplicas")) <= {nodes.max}
    assert set(at(made, "nprocPerNode")) <= {str(profile.processes)}
    assert {size for size in variables(made, "WORLD_SIZE")} <= {str(nodes.max * profile.processes)}
    assert [each.pods for each in made.requires if isinstance(each, Capacity)] == [nodes.min]


def variables(made: ManifestPlan, name: str) -> list[str]:
    return [each["value"] for each in made.pod["spec"]["containers"][0]["env"] if each["name"] == name]


@given(ANY, RUNS)
def test_agents_are_told_the_same_job(profile: Profile, run: Run) -> None:
    """Every agent gets the number of nodes and of processes."""
    assume(profile.starter != "none")
    made = plan(profile, run)
    told = [words(made, each) for each in pods(made)[:3]] if isinstance(made, ManifestPlan) else argvs(made)
    for each in told:
        assert [word for word in each if word.startswith(("--nnodes=", "--nproc_per_node="))][:2] == [
            f"--nnodes={profile.nodes}",
            f"--nproc_per_node={profile.processes}",
        ]


def argvs(made: CommandPlan) -> list[list[str]]:
    return [block.submit.input["argv"] for block in made.on if block.submit and block.submit.input]


@given(ANY, RUNS)
def test_each_node_has_one_place(profile: Profile, run: Run) -> None:
    """Exactly one node is the first, by its number or by its rank, and no two have the same."""
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
        told = [str(node) for node in range(len(made.on))]
        ranks = [re.findall(r"--node_rank=(\d+)", " ".join(each)) for each in argvs(made)]
        hosts = [re.findall(r"is_host=(\d)", " ".join(each)) for each in argvs(made)]
        assert sorted("".join(each) for each in hosts if each) == (
            ["0"] * (len(told) - 1) + ["1"] if profile.rendezvous == "c10d" else []
        )
    assert sorted(map(int, told)) == list(range(profile.nodes.max))
    static = profile.rendezvous == "static" and profile.starter != "none"
    assert ranks == ([[rank] for rank in told] if static else [[]] * len(told))


@given(IN_PODS, RUNS)
def test_pods_of_one_node_share_no_port(profile: Profile, run: Run) -> None:
    """Under the host's network a port is the node's: two such pods keep apart, or preflight asks for a node each."""
    host = profile.pod.model_copy(update={"host_network": True})
    made = planned(profile.model_copy(update={"pod": host}), run)
    ports = [port for each in made.pod["spec"]["containers"] for port in each.get("ports", [])]
    room = next(each for each in made.requires if isinstance(each, Capacity))
    assert made.pod["spec"]["hostNetwork"]
    assert room.alone or not ports
    assert all("hostNetwork" not in each["spec"] for each in made.store)


@given(IN_PODS, RUNS)
def test_nothing_in_a_manifest_is_empty(profile: Profile, run: Run) -> None:
    """Neither null nor an empty text, list or mapping: each means something of its own to some controller."""
    made = planned(profile, run)
    found = [
        path for each in (*made.store, *made.objects) for path, value in parts(each) if value in (None, "", [], {})
    ]
    assert [path for path in found if not any(re.fullmatch(rule, path) for rule in MAY_BE_EMPTY)] == []


@given(ANY, RUNS)
def test_plan_is_the_same_again(profile: Profile, run: Run) -> None:
    """A plan that is written down and read back is the same, and so is one that is made anew."""
    made = plan(profile, run)
    reader: TypeAdapter[Plan] = TypeAdapter(Plan)
    assert reader.validate_json(made.model_dump_json()) == made == plan(profile, run)


@given(ANY, RUNS)
def test_two_attempts_share_no_name(profile: Profile, run: Run) -> None:
    """Objects, folders, rendezvous ids and ports of a try are its own: the one before may still be going away."""
    assume("port" not in profile.options)
    first, second = (
        names(plan(profile, run.model_copy(update={"attempt": try_}))) for try_ in (run.attempt, run.attempt + 1)
    )
    assert first & second == set()


def names(made: Plan) -> set[str]:
    ids = set(re.findall(r"--rdzv_id=([\w-]+)|'rdzvId': '([\w-]+)'", str(made)))
    if isinstance(made, ManifestPlan):
        return {*map(str, ids), made.folder, *at(made, r"metadata\.name")}
    own = {f"port {each.port}" for each in made.requires if isinstance(each, FreePort)}
    return {*map(str, ids), made.label, *made.logs.values(), *own}
