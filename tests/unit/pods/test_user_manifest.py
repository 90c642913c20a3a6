"""The user's own manifests are launched as they are, plus what makes them part of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Write, load, manifest_plan_of
from tests.inputs.user_manifests import JOB, MANIFESTS, PYTORCHJOB, Launched, change_spec, read_manifest
from torchyard.diagnosis.pod_facts import find_main_container
from torchyard.lint.manifest import lint_manifest
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Profile
from torchyard.model.requirements import Advice, Capacity, OpenQueue, Permission, ReferencedObject

ROWS = sorted(path.stem for path in MANIFESTS.glob("*.yaml"))
ALL = pytest.mark.parametrize("name", ROWS)
POD = {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {
        "replicatedJobs": [
            {"name": "lead", "template": {"spec": {"template": POD}}},
            {
                "name": "rest",
                "replicas": 2,
                "template": {"spec": {"parallelism": 3, "completions": 3, "template": POD}},
            },
        ],
    },
}
COMPONENTS: dict[str, Any] = {"spec": {"components": [{"template": PYTORCHJOB}]}}
GENERIC: dict[str, Any] = {"spec": {"resources": {"GenericItems": [{"generictemplate": PYTORCHJOB}]}}}
WRAPPERS = [
    {"apiVersion": api, "kind": "AppWrapper", "metadata": {"name": "outer"}} | spec
    for api, spec in {
        "workload.codeflare.dev/v1beta2": COMPONENTS,
        "workload.codeflare.dev/v1beta1": GENERIC,
        "mcad.ibm.com/v1beta1": GENERIC,
    }.items()
]


def strip_run_fields(value: Any) -> Any:
    """A document without empty values and without what a run adds: labels, and the rendezvous id."""
    if isinstance(value, list):
        return [strip_run_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    children = {
        key: strip_run_fields(child)
        for key, child in value.items()
        if not key.startswith("torchyard/") and key != "rdzvId"
    }
    return {key: child for key, child in children.items() if child not in (None, {})}


@ALL
def test_manifest_is_launched_as_it_is(launched: Launched, name: str) -> None:
    """A run adds only its name, its labels and a rendezvous id."""
    plan = launched(name)
    *companions, document = read_manifest(name)
    document["metadata"]["name"] = plan.job
    assert [strip_run_fields(obj) for obj in (*plan.store, plan.main)] == [
        strip_run_fields(obj) for obj in (*companions, document)
    ]


@ALL
def test_objects_and_pods_are_the_runs(launched: Launched, name: str) -> None:
    """The job has the run's name, all objects have the run's labels, and companions have a role label."""
    plan = launched(name)
    for obj in (*plan.store, plan.main, plan.pod):
        assert plan.labels.items() <= obj["metadata"]["labels"].items()
    assert {obj["metadata"]["labels"]["torchyard/role"] for obj in plan.store} <= {"companion"}
    assert (plan.main["metadata"]["name"], plan.pod["metadata"]["name"]) == (plan.job, f"{plan.job}-worker-0")


@ALL
def test_traps_are_advice(launched: Launched, name: str) -> None:
    """Preflight warns of every trap in the manifest, at its line, and fails because of none."""
    warnings = [requirement.finding for requirement in launched(name).requires if isinstance(requirement, Advice)]
    traps = [replace(warning, file="", line=None) for warning in warnings]
    assert (tuple(traps), bool(traps)) == (lint_manifest(read_manifest(name)), True)
    assert all(warning.file.endswith(f"{name}.yaml") and warning.line for warning in warnings)


@pytest.mark.parametrize(("name", "id_count"), [("pytorchjob-c10d", 2), ("pytorchjob-etcd", 2)])
def test_rendezvous_gets_an_id_for_each_attempt(launched: Launched, name: str, id_count: int) -> None:
    """Each attempt gets a rendezvous id: without one, all jobs would meet under the id `none`."""
    rendezvous_ids = {launched(name, attempt=attempt).main["spec"]["elasticPolicy"]["rdzvId"] for attempt in (1, 2)}
    assert len(rendezvous_ids) == id_count


def test_own_rendezvous_id_is_kept(launched: Launched) -> None:
    """A rendezvous id in the manifest is kept."""
    plan = launched(change_spec(PYTORCHJOB, elasticPolicy={"rdzvId": "mine"}))
    assert plan.main["spec"]["elasticPolicy"] == {"rdzvId": "mine"}


def test_every_task_is_followed(launched: Launched) -> None:
    """Each task of the job has its pods, with a log for each."""
    plan = launched(JOB)
    assert list(plan.nodes) == ["lead-0", "rest-0", "rest-1", "rest-2"]


def test_capacity_is_for_the_gang(launched: Launched) -> None:
    """A job needs capacity for minAvailable pods, and for all of its pods if it does not set that."""
    requirement_lists = [launched(change_spec(JOB, minAvailable=min_available)).requires for min_available in (3, 0)]
    assert [
        requirement.pods
        for requirements in requirement_lists
        for requirement in requirements
        if isinstance(requirement, Capacity)
    ] == [3, 4]


def test_operators_container_counts(launched: Launched) -> None:
    """In a Training Operator pod the container `pytorch` gives the log and exit code, at any position."""
    assert find_main_container(launched(PYTORCHJOB).pod) == "pytorch"


def test_replicas_that_are_left_out(launched: Launched) -> None:
    """Without replicas, the operator creates one pod and Volcano none."""
    assert list(launched(PYTORCHJOB).pods) == ["worker-0"]
    tasks = [*JOB["spec"]["tasks"], JOB["spec"]["tasks"][0] | {"name": "none", "replicas": None}]  # type: ignore[index]
    assert "none-0" not in launched(change_spec(JOB, tasks=tasks)).pods


def test_operators_port_is_one_of_the_node(launched: Launched) -> None:
    """The operator adds a port to every pod, so with the host network a node can hold only one of them."""
    assert [
        requirement.one_per_node for requirement in launched(PYTORCHJOB).requires if isinstance(requirement, Capacity)
    ] == [True]


def test_companions_need_permissions(launched: Launched) -> None:
    """Preflight checks the permission to create the objects beside the job."""
    plan = launched("volcano-etcd")
    rights = {
        permission.resource
        for permission in plan.requires
        if isinstance(permission, Permission) and "create" in permission.verbs
    }
    assert rights == {"jobs.batch.volcano.sh", "leases.coordination.k8s.io", "pods", "services"}


def test_namespace_of_the_manifest_is_the_jobs(launched: Launched) -> None:
    """A namespace in the manifest need not be repeated in the profile."""
    assert launched(JOB | {"metadata": {"name": "train", "namespace": "ml"}}).cluster.namespace == "ml"


def test_planning_leaves_the_profile_alone(write: Write, tmp_path: Path) -> None:
    """Planning does not change a profile's documents, so that a second attempt starts from the same ones."""
    profile = load(write(launcher="volcano", program=None, manifest=str(MANIFESTS / "volcano-etcd.yaml")))
    original = profile.model_copy(deep=True)
    manifest_plan_of(profile, tmp_path)
    assert profile == original


UNNAMED = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"image": "a:1"}]}}}
OTHER = {"name": "o", "replicas": 1, "template": {"spec": {"containers": [{"name": "other", "image": "a:1"}]}}}
REFUSED_MANIFESTS = [
    ((JOB, JOB), {}, r"holds 2 of kind Job \(train, train\), and a run has one job: write a profile for each"),
    (
        (JOB | {"apiVersion": "batch/v2"},),
        {},
        r"holds no Job of batch.volcano.sh/v1alpha1.* Job of batch/v2 is not",
    ),
    (
        (JOB | {"apiVersion": "batch.volcano.sh/v1"},),
        {},
        "Job is of batch.volcano.sh/v1, a version that is",
    ),
    ((JOB,), {"launcher": "pytorchjob"}, "batch.volcano.sh/v1alpha1 is of another launcher: write launcher: volcano"),
    (
        (change_spec(JOB, tasks=[UNNAMED]),),
        {},
        r"spec.tasks\[0\].template.spec.containers\[0\].name: the container",
    ),
    ((change_spec(JOB, tasks=None),), {}, "Job train, spec.tasks: it is missing; describe the pods of the job there"),
    ((change_spec(JOB, tasks=[{"name": "a", "replicas": 1}]),), {}, r"spec.tasks\[0\]: it has no pod template"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": "many"}]),), {}, "`many` is a text, not a number; write a number"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": "3"}]),), {}, r"spec.tasks\[0\].replicas: `3` is a text.* write 3"),
    (
        (change_spec(JOB, tasks=[OTHER | {"replicas": "$N_NODES"}]),),
        {},
        r"`\$N_NODES` contains \$N_NODES, a placeholder .*envsubst",
    ),
    (
        (change_spec(JOB, minAvailable="{{ .Values.n }}"),),
        {},
        r"spec.minAvailable: .*\{\{ .Values.n \}\}, a placeh",
    ),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": -1}]),), {}, r"replicas: `-1` is not a whole number of at least 0"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": 1.5}]),), {}, r"replicas: `1.5` is not a whole number"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": True}]),), {}, r"replicas: `true` is not a whole number"),
    ((change_spec(JOB, minAvailable=-2),), {}, r"spec.minAvailable: `-2` is not a whole number"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": 0}]),), {}, "it has no pods: all of its replicas are 0"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": None}]),), {}, r"spec.tasks\[0\].replicas: it is empty"),
    ((change_spec(JOB, tasks=[OTHER | {"name": ["a"]}]),), {}, "it has no pods that could be read"),
    ((change_spec(JOB, tasks=[OTHER | {"replicas": 10**9}]),), {}, "has 1000000000 pods: at most 10000 are supported"),
    ((change_spec(JOB, tasks=[OTHER | {"name": "a" * 45}]),), {}, "has a name of 65 characters, and at most 63"),
    (
        (JOB, {"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {}}}),
        {},
        "Service: it has no name: write metadata.name",
    ),
    (
        (JOB | {"metadata": {"name": "train", "namespace": "${NAMESPACE}"}},),
        {},
        r"Job train, metadata.namespace: `\$\{NAMESPACE\}` contains",
    ),
    ((JOB | {"metadata": {"generateName": "a"}},), {"manifest_name": "keep"}, "the job has no name to keep"),
    (
        (JOB | {"metadata": {"name": "train", "namespace": "ml"}},),
        {"cluster": {"namespace": "dev"}},
        "named are dev, ml",
    ),
]


@pytest.mark.parametrize("case", REFUSED_MANIFESTS, ids=lambda case: case[-1])
def test_manifest_that_cannot_be_launched_is_refused(launched: Launched, case: tuple[Any, Any, str]) -> None:
    """Errors in a manifest are reported before any request to a cluster."""
    documents, keys, message = case
    with pytest.raises(ProfileError, match=message):
        launched(*documents, **keys)


def test_document_without_metadata_is_refused(tmp_path: Path) -> None:
    """A profile that is built without a file may have a document without metadata, which is one clear error."""
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {}}
    profile = Profile(name="sample", about="a test", launcher="volcano", manifest=(JOB, pod))
    with pytest.raises(ProfileError, match="Pod: it has no metadata: write a mapping with its name"):
        manifest_plan_of(profile, tmp_path)


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
    """Profile keys that the manifest itself decides are refused, all at once."""
    with pytest.raises(ProfileError) as error:
        launched(JOB, **IGNORED)
    assert sorted(finding.where for finding in error.value.findings) == sorted(IGNORED)


# --- AppWrappers and JobSets


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: str(wrapper["apiVersion"]))
def test_users_own_wrapper_is_launched(launched: Launched, wrapper: dict[str, Any]) -> None:
    """An AppWrapper and the PyTorchJob inside get the run's name, and the pods get its labels."""
    plan = launched(wrapper)
    component = plan.main["spec"].get("components", plan.main["spec"].get("resources", {}).get("GenericItems"))[0]
    (job,) = (value for key, value in component.items() if key.endswith("template"))
    assert job["metadata"]["name"] == plan.main["metadata"]["name"] == plan.job
    assert plan.pod["metadata"]["labels"].items() >= plan.labels.items()
    assert plan.main["apiVersion"] == wrapper["apiVersion"] == plan.watch[0].api


def test_users_own_jobset_is_launched(launched: Launched) -> None:
    """Every Job of a JobSet is a task, by name and number; pods are matched without the random end of their name."""
    plan = launched(JOBSET)
    assert [node.rpartition("-")[0] for node in plan.pods] == ["lead-0", *["rest-0"] * 3, *["rest-1"] * 3]
    assert plan.node(f"{plan.job}-rest-1-2-abcde") == "rest-1-2"


SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "outer-hosts"}, "spec": {"clusterIP": "None"}}
POD_OBJECT = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "outer-a"}} | POD


def build_wrapper(*components: dict[str, Any]) -> dict[str, Any]:
    wrapper = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "outer"}}
    return wrapper | {"spec": {"components": [{"template": component} for component in components]}}


def test_job_may_be_any_component_of_a_wrapper(launched: Launched) -> None:
    """The job of an AppWrapper may follow other components, which get the run's labels and are awaited at the end."""
    plan = launched(build_wrapper(SERVICE, PYTORCHJOB))
    service, job = (component["template"] for component in plan.main["spec"]["components"])
    assert (plan.wrapped, list(plan.pods)) == (job, ["worker-0"])
    assert (service["metadata"]["name"], job["metadata"]["name"]) == (f"{plan.job}-hosts", plan.job)
    assert service["metadata"]["labels"]["torchyard/role"] == "companion"
    assert ("v1", "Service") in [(kind.api, kind.kind) for kind in plan.made]


def test_jobset_in_a_wrapper_is_launched(launched: Launched) -> None:
    """A JobSet in an AppWrapper has the pods of a JobSet, with the random end of their names."""
    plan = launched(build_wrapper(JOBSET))
    assert plan.pods == launched(JOBSET).pods
    assert plan.node(f"{plan.job}-rest-1-2-abcde") == "rest-1-2"
    assert [kind.kind for kind in plan.watch] == ["AppWrapper", "JobSet", "Pod"]


def test_plain_pods_in_a_wrapper_are_launched(launched: Launched) -> None:
    """Plain Pods in an AppWrapper are its job: each gets a name of the run, and is a node."""
    second = POD_OBJECT | {"metadata": {"name": "b"}}
    plan = launched(build_wrapper(POD_OBJECT, second))
    names = [component["template"]["metadata"]["name"] for component in plan.main["spec"]["components"]]
    assert plan.pods == {"a": f"{plan.job}-a", "b": f"{plan.job}-b"}
    replaced = [requirement.finding.what for requirement in plan.requires if isinstance(requirement, Advice)]
    assert f"b becomes {plan.job}-b" in replaced
    assert (names, plan.wrapped) == (list(plan.pods.values()), None)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ((PYTORCHJOB, JOBSET), "it contains the PyTorchJob train and the JobSet train, and a run has one job"),
        (
            (POD_OBJECT | {"apiVersion": "apps/v1", "kind": "Deployment"},),
            "Deployment outer-a: the pods of a Deployment of apps/v1 cannot be followed",
        ),
        ((SERVICE,), "AppWrapper outer: it contains no job, but Service: write a PyTorchJob"),
    ],
)
def test_wrapper_that_cannot_be_watched_is_refused(
    launched: Launched, components: tuple[dict[str, Any], ...], message: str
) -> None:
    """An AppWrapper with two jobs, with pods that cannot be followed, or without a job is refused by name."""
    with pytest.raises(ProfileError, match=message):
        launched(build_wrapper(*components))


# --- the name


def test_kept_name(launched: Launched) -> None:
    """With `manifest_name: keep` the job and its references keep their names, and an attempt is told by its labels."""
    first, second = (launched(JOB, manifest_name="keep", attempt=attempt) for attempt in (1, 2))
    assert first.job == second.job == first.main["metadata"]["name"] == "train"
    assert list(first.pods.values()) == ["train-lead-0", "train-rest-0", "train-rest-1", "train-rest-2"]
    assert first.labels != second.labels


def test_service_of_the_run_selects_only_its_pods(launched: Launched) -> None:
    """A Service with the job's name, and a selector by the user's labels, selects by labels that the pods get."""
    labels = {"app": "train", "role": "lead"}
    container = {"name": "main", "image": "a:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "train-lead"},
        "spec": {"selector": dict(labels)},
    }
    for attempt in (1, 2):
        task = {"name": "lead", "replicas": 1, "template": template}
        plan = launched(service, change_spec(JOB, tasks=[task], minAvailable=1), attempt=attempt)
        (new_service,) = plan.store
        pod_labels = plan.main["spec"]["tasks"][0]["template"]["metadata"]["labels"]
        assert new_service["spec"]["selector"] == labels | plan.labels
        assert new_service["spec"]["selector"].items() <= pod_labels.items()


def test_replacements_and_doubts_are_in_the_plan(launched: Launched) -> None:
    """The plan shows each reference to the job that follows its name, and each that may be one."""
    container = {"name": "main", "image": "a:1", "command": ["sh", "-c", "ping train-lead-0; ping train-ps-0"]}
    task = {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    plan = launched(change_spec(JOB, tasks=[task], minAvailable=1))
    findings = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    where = "Job train, spec.tasks[0].template.spec.containers[0].command[2]"
    of_script = {finding.verdict: finding.what for finding in findings if finding.where == where}
    assert of_script["ok"] == f"train-lead-0 becomes {plan.job}-lead-0"
    assert "`train-ps-0` stays as it is" in of_script["warning"]


def test_object_of_a_server_is_launched_as_a_new_one(launched: Launched) -> None:
    """What `kubectl get -o yaml` prints is launched without what the server had added, and one line reports it."""
    metadata = {"name": "train", "uid": "1", "resourceVersion": "2", "generateName": "t"}
    plan = launched(JOB | {"metadata": metadata, "status": {"state": {"phase": "Completed"}}})
    findings = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    assert plan.main["metadata"].keys() == {"name", "labels"}
    assert "status" not in plan.main
    reports = [finding.what for finding in findings if finding.where == "Job train" and finding.verdict == "ok"]
    dropped = "status, metadata.uid, metadata.resourceVersion, metadata.generateName"
    assert reports == [f"left out is what a server or kubectl has added: {dropped}"]


def test_each_role_may_have_its_own_container(launched: Launched) -> None:
    """Roles may have containers of different names; the main one of each counts, also beside a mesh's proxy."""
    pod = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "trainer"}},
        "spec": {"containers": [{"name": "proxy", "image": "p:1"}, {"name": "trainer", "image": "a:1"}]},
    }
    tasks = [*JOB["spec"]["tasks"], {"name": "other", "replicas": 1, "template": pod}]  # type: ignore[index]
    plan = launched(change_spec(JOB, tasks=tasks))
    templates = [task["template"] for task in plan.main["spec"]["tasks"]]
    assert [find_main_container(template) for template in templates] == ["main", "main", "trainer"]


def test_trap_in_a_manifest_has_its_line(write: Write, tmp_path: Path) -> None:
    """What a plan reports about the manifest has the file and the line, in every attempt; other advice has none."""
    lines = [
        "apiVersion: batch.volcano.sh/v1alpha1",
        "kind: Job",
        "metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: team}}",
        "spec:",
        "  minAvailable: 0",
        "  tasks:",
        "    - replicas: 2",
        "      template: {spec: {restartPolicy: Never, containers: [{name: a, image: a, command: [date]}]}}",
    ]
    (tmp_path / "job.yaml").write_text("\n".join(lines))
    path = write("sample", launcher="volcano", program=None, manifest="job.yaml")
    plan = manifest_plan_of(load(path), tmp_path, 2)
    findings = {advice.finding.where: advice.finding for advice in plan.requires if isinstance(advice, Advice)}
    lines_by_key = {"spec.minAvailable": 5, "metadata.labels": 3, "spec.tasks[0].template.spec.containers[0].image": 8}
    for key, line in lines_by_key.items():
        finding = findings[f"Job train, {key}"]
        assert (finding.file, finding.line) == (str(tmp_path / "job.yaml"), line)


def test_hosts_of_a_volcano_job_follow_its_name(launched: Launched) -> None:
    """The ConfigMap of the plugin svc is called after the job, so pods that mount it follow the run's name."""
    pod: dict[str, Any] = {"containers": POD["spec"]["containers"], "volumes": [{"configMap": {"name": "train-svc"}}]}
    tasks = [{"name": "worker", "replicas": 1, "template": {"spec": pod}}]
    plan = launched(change_spec(JOB, tasks=tasks, minAvailable=1), launcher="volcano")
    (volume,) = plan.objects[-1]["spec"]["tasks"][0]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == f"{plan.job}-svc"


def test_companion_of_the_cluster_needs_few_rights(launched: Launched) -> None:
    """An object without a namespace is created or read, and neither changed nor deleted, by a run."""
    priority_class = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}}
    permission = Permission(verbs=("create", "get"), resource="priorityclasses.scheduling.k8s.io")
    assert permission in launched(priority_class, JOB).requires


VOLCANO_QUEUE = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "research"}}


@pytest.mark.parametrize(
    ("companion", "is_required"),
    [
        (VOLCANO_QUEUE, False),
        (VOLCANO_QUEUE | {"metadata": {"name": "other"}}, True),
        (VOLCANO_QUEUE | {"apiVersion": "example.com/v1"}, True),
    ],
)
def test_queue_that_the_manifest_creates_need_not_exist(
    launched: Launched, companion: dict[str, Any], is_required: bool
) -> None:
    """Preflight requires a queue of Volcano unless the manifest creates the one of this kind and name."""
    assert (OpenQueue(name="research") in launched(companion, JOB).requires) is is_required


def test_local_queue_that_the_manifest_creates_need_not_exist(launched: Launched) -> None:
    """Preflight does not require a LocalQueue of Kueue that the manifest creates before the job."""
    metadata = {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "team"}}
    required = ReferencedObject(object_kind="LocalQueue", name="team")
    assert required in launched(PYTORCHJOB | {"metadata": metadata}).requires
    assert required not in launched(queue, PYTORCHJOB | {"metadata": metadata}).requires


def list_references(plan: ManifestPlan) -> set[tuple[str, str]]:
    references = [requirement for requirement in plan.requires if isinstance(requirement, ReferencedObject)]
    return {(reference.object_kind, reference.name) for reference in references}


def test_objects_that_the_pods_need_must_exist(launched: Launched) -> None:
    """Preflight requires what the pods refer to, unless the manifest or a controller creates it or it is optional."""
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    pod = {
        "containers": POD["spec"]["containers"],
        "initContainers": [{"name": "setup", "image": "a:1", "env": [variable]}],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "high",
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "channel"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "coco"}},
            {"name": "own", "configMap": {"name": "script"}},
            {"name": "hosts", "configMap": {"name": "train-svc"}},
            {"name": "extra", "secret": {"secretName": "maybe", "optional": True}},
        ],
    }
    job = change_spec(JOB, tasks=[{"name": "worker", "replicas": 2, "template": {"spec": pod}}])
    needed = {("Secret", "hub"), ("PersistentVolumeClaim", "coco"), ("PriorityClass", "high")}
    created = {("ConfigMap", "script"), ("ResourceClaimTemplate", "channel")}
    assert list_references(launched(job, launcher="volcano")) == needed | created
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}}
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "domain"},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "channel"}}},
    }
    assert list_references(launched(script, domain, job, launcher="volcano")) == needed


def test_repeated_key_is_advice_of_the_plan(write: Write, tmp_path: Path) -> None:
    """A key that the manifest repeats with one value is a warning of the plan, at its line."""
    text = yaml.safe_dump(JOB).replace("  queue: research\n", "  queue: research\n  queue: research\n")
    (tmp_path / "job.yaml").write_text(text)
    plan = manifest_plan_of(load(write(launcher="volcano", program=None, manifest="job.yaml")), tmp_path)
    findings = [requirement.finding for requirement in plan.requires if isinstance(requirement, Advice)]
    lines = [finding.line for finding in findings if "spec.queue appears here a second time" in finding.what]
    assert lines == [text.splitlines().index("  queue: research") + 2]
