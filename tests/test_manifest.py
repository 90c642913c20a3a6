"""Manifests of the user's own: launched as they are, with what makes them a run's."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Planned, Write, load, manifest_plan_of
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice, Capacity, OpenQueue, Permission
from torchyard.pods.lint import lint_manifest

MANIFESTS = Path(__file__).parent / "manifests"
ROWS = sorted(path.stem for path in MANIFESTS.glob("*.yaml"))
ALL = pytest.mark.parametrize("row", ROWS)
Launched = Callable[..., ManifestPlan]
JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "minAvailable": 3,
        "queue": "research",
        "tasks": [
            {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}},
            {"name": "rest", "replicas": 3, "template": {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}},
        ],
    },
}
PYTORCHJOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "train"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Worker": {
                "template": {
                    "spec": {
                        "hostNetwork": True,
                        "containers": [{"name": "logs", "image": "b:1"}, {"name": "pytorch", "image": "a:1"}],
                    }
                }
            }
        }
    },
}

POD = {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {
        "replicatedJobs": [
            {"name": "lead", "template": {"spec": {"template": POD}}},
            {"name": "rest", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": POD}}},
        ],
    },
}
COMPONENTS: dict[str, Any] = {"spec": {"components": [{"template": PYTORCHJOB}]}}
GENERIC: dict[str, Any] = {"spec": {"resources": {"GenericItems": [{"generictemplate": PYTORCHJOB}]}}}
WRAPPERS = [
    {"apiVersion": api, "kind": "AppWrapper", "metadata": {"name": "outer"}, **spec}
    for api, spec in {
        "workload.codeflare.dev/v1beta2": COMPONENTS,
        "workload.codeflare.dev/v1beta1": GENERIC,
        "mcad.ibm.com/v1beta1": GENERIC,
    }.items()
]
KINDS = {"PyTorchJob": "pytorchjob", "JobSet": "jobset", "AppWrapper": "appwrapper"}


def read(row: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{row}.yaml").read_text()))


def bare(value: Any) -> Any:
    """A document without empty values and without what a run adds: labels, and the id of the rendezvous."""
    if isinstance(value, list):
        return [bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: bare(each) for key, each in value.items() if not key.startswith("torchyard/") and key != "rdzvId"}
    return {key: each for key, each in kept.items() if each not in (None, {})}


def changed(job: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**job, "spec": {**copy.deepcopy(job["spec"]), **spec}}


@pytest.fixture
def launched(planned: Planned, tmp_path: Path) -> Launched:
    """Plan a manifest of these documents, or of a row of the guide."""

    def launch(*documents: Any, **keys: Any) -> ManifestPlan:
        row = isinstance(documents[0], str)
        path = MANIFESTS / f"{documents[0]}.yaml" if row else tmp_path / "job.yaml"
        if not row:
            path.write_text(yaml.safe_dump_all(documents))
        kinds = [document["kind"] for document in (read(documents[0]) if row else documents)]
        launcher = next((KINDS[kind] for kind in kinds if kind in KINDS), "volcano")
        return planned(**{"launcher": launcher, "image": None, "program": None, "manifest": str(path), **keys})

    return launch


@ALL
def test_manifest_is_launched_as_it_is(launched: Launched, row: str) -> None:
    """All that a run adds is its name, its labels and an id of the rendezvous."""
    plan = launched(row)
    *companions, job = read(row)
    job["metadata"]["name"] = plan.job
    assert [bare(each) for each in (*plan.store, plan.main)] == [bare(each) for each in (*companions, job)]


@ALL
def test_objects_and_pods_are_the_runs(launched: Launched, row: str) -> None:
    """The job is called like the run, and all of it carries the run's labels; what is beside it says so."""
    plan = launched(row)
    for thing in (*plan.store, plan.main, plan.pod):
        assert plan.labels.items() <= thing["metadata"]["labels"].items()
    assert {each["metadata"]["labels"]["torchyard/role"] for each in plan.store} <= {"companion"}
    assert (plan.main["metadata"]["name"], plan.pod["metadata"]["name"]) == (plan.job, f"{plan.job}-worker-0")


@ALL
def test_traps_are_advice(launched: Launched, row: str) -> None:
    """Preflight warns of every trap of the manifest, and fails for none."""
    advised = [need.detail for need in launched(row).requires if isinstance(need, Advice)]
    assert (tuple(advised), bool(advised)) == (lint_manifest(read(row)), True)


@pytest.mark.parametrize(("row", "ids"), [("pytorchjob-c10d", 2), ("pytorchjob-etcd", 2)])
def test_rendezvous_gets_an_id_for_each_attempt(launched: Launched, row: str, ids: int) -> None:
    """An elasticPolicy without an id would meet as `none`, whoever else does."""
    found = {launched(row, attempt=attempt).main["spec"]["elasticPolicy"]["rdzvId"] for attempt in (1, 2)}
    assert len(found) == ids


def test_own_rendezvous_id_is_kept(launched: Launched) -> None:
    """An id that the manifest has is the user's choice."""
    plan = launched(changed(PYTORCHJOB, elasticPolicy={"rdzvId": "mine"}))
    assert plan.main["spec"]["elasticPolicy"] == {"rdzvId": "mine"}


def test_every_task_is_followed(launched: Launched) -> None:
    """Each task of the job has its pods, with a log for each."""
    plan = launched(JOB)
    assert plan.tasks == {"lead": 1, "rest": 3}
    assert list(plan.nodes) == ["lead-0", "rest-0", "rest-1", "rest-2"]


def test_room_is_for_the_gang(launched: Launched) -> None:
    """A job that starts with fewer pods than it has needs room for those, and for all where it says none."""
    rooms = [launched(changed(JOB, minAvailable=least)).requires for least in (3, 0)]
    assert [need.pods for needs in rooms for need in needs if isinstance(need, Capacity)] == [3, 4]


def test_queue_is_that_of_the_manifest(launched: Launched) -> None:
    """Preflight looks at the queue that the job names, or at the one that Volcano takes instead."""
    plans = [launched(JOB), launched(changed(JOB, queue=None))]
    assert [need.name for plan in plans for need in plan.requires if isinstance(need, OpenQueue)] == [
        "research",
        "default",
    ]


def test_queue_of_a_pytorchjob_is_that_of_its_gang(launched: Launched) -> None:
    """Preflight looks at the queue of a PyTorchJob's PodGroup, where the manifest names one."""
    policy = {"schedulingPolicy": {"queue": "research"}}
    plans = [launched(changed(PYTORCHJOB, runPolicy=policy)), launched(PYTORCHJOB)]
    found = [[need.name for need in plan.requires if isinstance(need, OpenQueue)] for plan in plans]
    assert found == [["research"], []]


def test_operators_container_counts(launched: Launched) -> None:
    """In a pod of the Training Operator the log and exit code are those of `pytorch`, wherever it stands."""
    assert launched(PYTORCHJOB).container == "pytorch"


def test_replicas_that_are_left_out(launched: Launched) -> None:
    """The operator makes one pod where no number stands; Volcano makes none."""
    assert launched(PYTORCHJOB).tasks == {"worker": 1}
    tasks = [*JOB["spec"]["tasks"], {**JOB["spec"]["tasks"][0], "name": "none", "replicas": None}]  # type: ignore[index]
    assert launched(changed(JOB, tasks=tasks)).tasks["none"] == 0


def test_operators_port_is_one_of_the_node(launched: Launched) -> None:
    """The operator adds a port to every pod: under the host's network a node has room for one."""
    assert [need.alone for need in launched(PYTORCHJOB).requires if isinstance(need, Capacity)] == [True]


def test_companions_need_rights(launched: Launched) -> None:
    """What stands beside the job is created too, and preflight asks whether that is allowed."""
    plan = launched("volcano-etcd")
    rights = {need.resource for need in plan.requires if isinstance(need, Permission) and "create" in need.verbs}
    assert rights == {"jobs.batch.volcano.sh", "leases.coordination.k8s.io", "pods", "services"}


def test_namespace_of_the_manifest_is_the_jobs(launched: Launched) -> None:
    """A namespace that stands in the manifest need not stand in the profile."""
    assert launched({**JOB, "metadata": {"name": "train", "namespace": "ml"}}).cluster.namespace == "ml"


def test_planning_leaves_the_profile_alone(write: Write, tmp_path: Path) -> None:
    """The documents of a profile are not written to: a second attempt begins with the same ones."""
    profile = load(write(launcher="volcano", program=None, manifest=str(MANIFESTS / "volcano-etcd.yaml")))
    before = profile.model_copy(deep=True)
    manifest_plan_of(profile, tmp_path)
    assert profile == before


UNNAMED = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"image": "a:1"}]}}}
OTHER = {"name": "o", "replicas": 1, "template": {"spec": {"containers": [{"name": "other", "image": "a:1"}]}}}
BAD = [
    ((JOB, JOB), {}, "holds 2 of kind Job"),
    (({**JOB, "apiVersion": "batch/v1"},), {}, r"holds 0 of kind Job \(batch.volcano.sh/v1alpha1\), .* it has: Job"),
    ((JOB,), {"launcher": "pytorchjob"}, "holds 0 of kind PyTorchJob .* it has: Job"),
    ((changed(JOB, tasks=[UNNAMED]),), {}, "no task with replicas and a pod template with a named container"),
    ((changed(JOB, tasks=None),), {}, "no task with replicas and a pod template"),
    ((changed(JOB, tasks=[{**OTHER, "replicas": "many"}]),), {}, "no task with replicas and a pod template"),
    ((changed(JOB, tasks=[{**OTHER, "replicas": 0}]),), {}, "no task with replicas and a pod template"),
    ((changed(JOB, tasks=[*JOB["spec"]["tasks"], OTHER]),), {}, "need one name; they are main, other"),  # type: ignore[index]
    ((changed(JOB, tasks=[{**OTHER, "name": "a" * 45}]),), {}, "name of over 63 characters"),
    (
        ({**JOB, "metadata": {"name": "train", "namespace": "ml"}},),
        {"cluster": {"namespace": "dev"}},
        "named are dev, ml",
    ),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[-1])
def test_manifest_that_cannot_be_launched_is_refused(launched: Launched, case: tuple[Any, Any, str]) -> None:
    """What is wrong with a manifest is told before anything is asked of a cluster."""
    documents, keys, said = case
    with pytest.raises(ProfileError, match=said):
        launched(*documents, **keys)


IGNORED = {
    "args": ["--epochs=1"],
    "env": {"A": "b"},
    "image": "train:v1",
    "nodes": 4,
    "options": {"queue": "research"},
    "pod": {"privileged": True},
    "processes": 8,
    "rendezvous": "etcd-v2",
    "resources": {"gpus": 1},
    "setup": ["true"],
}


def test_keys_that_would_be_ignored_are_refused(launched: Launched) -> None:
    """What the manifest says itself is not to be said beside it, and all such keys are told at once."""
    with pytest.raises(ProfileError) as error:
        launched(JOB, **IGNORED)
    assert sorted(found.partition(":")[0] for found in error.value.findings) == sorted(IGNORED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: [", "job.yaml:2: did not find"),
        ("- a\n- b\n", "job.yaml: each document is an object with apiVersion, kind and metadata: 1"),
        ("apiVersion: v1\nkind: Pod\nmetadata: name\n", "job.yaml: each document is an object"),
        ("---\n---\n", "job.yaml: each document is an object .*: there is none"),
        (None, "sample.yaml:.*: manifest: there is no file .*/job.yaml"),
    ],
)
def test_file_that_is_no_manifest_is_told(planned: Planned, tmp_path: Path, text: str | None, said: str) -> None:
    """A manifest that is missing, no YAML or no objects is told with its file; it stands beside the profile."""
    if text is not None:
        (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ProfileError, match=said):
        planned(image=None, program=None, manifest="job.yaml")


def test_manifest_is_looked_for_beside_the_profile(planned: Planned, tmp_path: Path) -> None:
    """A relative manifest is one of the profile's folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "job.yaml").write_text(yaml.safe_dump(JOB))
    assert planned(image=None, program=None, manifest="sub/job.yaml").tasks == {"lead": 1, "rest": 3}


# --- jobs around and beside the two


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda each: str(each["apiVersion"]))
def test_wrapper_of_the_users_own_is_taken(launched: Launched, wrapper: dict[str, Any]) -> None:
    """An AppWrapper and the PyTorchJob in it are called like the run, and the pods carry its labels."""
    plan = launched(wrapper)
    inner = plan.main["spec"].get("components", plan.main["spec"].get("resources", {}).get("GenericItems"))[0]
    (job,) = (value for key, value in inner.items() if key.endswith("template"))
    assert job["metadata"]["name"] == plan.main["metadata"]["name"] == plan.job
    assert plan.pod["metadata"]["labels"].items() >= plan.labels.items()
    assert plan.main["apiVersion"] == wrapper["apiVersion"] == plan.watch[0].api


def test_set_of_the_users_own_is_taken(launched: Launched) -> None:
    """Every Job of a JobSet counts, by its name and number; its pods are known without their random end."""
    plan = launched(JOBSET)
    assert plan.tasks == {"lead-0": 1, "rest-0": 3, "rest-1": 3}
    assert plan.node(f"{plan.job}-rest-1-2-abcde") == "rest-1-2"
