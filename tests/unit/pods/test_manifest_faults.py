"""Why a manifest's job cannot be launched. Most faults are tested with whole manifests in test_user_manifest.py."""

import re

import pytest

from tests.inputs.user_manifests import JOB, PYTORCHJOB, Launched, change_spec
from torchyard.model.errors import ProfileError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Advice

OTHER_CLUSTER = "kueue.x-k8s.io/multikueue"
TRAIN_JOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"containers": []}}},
}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (TRAIN_JOB, r"it has: TrainJob \(trainer.kubeflow.org/v1alpha1\); supported are PyTorchJob"),
        (DEPLOYMENT, "the Deployment of apps/v1 is not supported; supported are PyTorchJob"),
        (PYTORCHJOB, "the PyTorchJob of kubeflow.org/v1 is of another launcher: write launcher: pytorchjob"),
    ],
)
def test_other_kind_is_named(launched: Launched, document: dict[str, object], message: str) -> None:
    """A manifest without a job of the launcher is refused with the kind that it has, and the launcher of that."""
    with pytest.raises(ProfileError, match=message):
        launched(document, launcher="volcano")


def test_job_without_a_template_is_named_beside_objects_with_one(launched: Launched) -> None:
    """Every object is named if none is a job of a launcher: the job may get its pods from another object."""
    runtime = DEPLOYMENT | {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime"}
    with pytest.raises(
        ProfileError, match=r"it has: TrainingRuntime \(.*\), TrainJob \(.*\); supported are PyTorchJob"
    ):
        launched(runtime, TRAIN_JOB, launcher="jobset")


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ("jobset.sigs.k8s.io/v1alpha2", "no JobSet is of jobset.sigs.k8s.io/v1alpha2; write jobset.x-k8s.io/v1alpha2"),
        ("jobset.x-k8s.io/v1", "is of jobset.x-k8s.io/v1, a version that .*; rewrite it for jobset.x-k8s.io/v1alpha2"),
    ],
)
def test_other_api_of_the_kind_has_the_line_of_the_manifest(launched: Launched, api: str, message: str) -> None:
    """A job of the launcher's kind in another group or version is reported at its apiVersion."""
    document = {"apiVersion": api, "kind": "JobSet", "metadata": {"name": "train"}, "spec": {}}
    with pytest.raises(ProfileError, match=rf"job.yaml:1: JobSet train, apiVersion: .*{message}"):
        launched(document)


@pytest.mark.parametrize(("kind", "launcher"), [("PytorchJob", "pytorchjob"), ("Jobs", "volcano")])
def test_misspelled_kind_has_the_line_of_the_manifest(launched: Launched, kind: str, launcher: str) -> None:
    """A kind that is almost that of the launcher, in its API, is reported with the right spelling."""
    document = PYTORCHJOB if launcher == "pytorchjob" else JOB
    message = (
        rf"job.yaml:\d+: {kind} train, kind: {document['apiVersion']} has no kind {kind}; write {document['kind']}"
    )
    with pytest.raises(ProfileError, match=message):
        launched(document | {"kind": kind}, launcher=launcher)


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ({"spec": {}, "tasks": []}, ["tasks: tasks is not a field .*; write it in spec"]),
        ({"specs": JOB["spec"], "spec": None}, ["specs: specs is not a field .*; remove it, or write one of .* spec"]),
        ({"spec": [JOB["spec"]]}, ["spec: it must be a mapping, whose keys do not begin with `-`"]),
        ({"spec": None}, ["spec: it is missing"]),
        ({"spec": "tasks"}, ["spec: it must be a mapping; describe the job there"]),
        (
            {"spec": {"tasks": [{"replicas": 1, "templates": {"spec": {}}}]}},
            [r"spec.tasks\[0\].templates: .*; write template"],
        ),
        (
            {"spec": {"tasks": [{"replicas": 1, "template": {"spec": {"containers": {"name": "a"}}}}]}},
            [r"spec.tasks\[0\].template.spec.containers: it must be a list"],
        ),
    ],
    ids=["not indented", "misspelled", "a list", "empty", "a text", "template", "containers"],
)
def test_key_that_hides_the_pods_is_the_only_finding(
    launched: Launched, keys: dict[str, object], messages: list[str]
) -> None:
    """If no pods can be read because of a key in a wrong place, spelling or type, that key is reported, once."""
    with pytest.raises(ProfileError) as error:
        launched(JOB | keys)
    findings = [str(finding) for finding in error.value.findings]
    assert len(findings) == len(messages)
    for finding, message in zip(findings, messages, strict=True):
        assert re.search(rf"job.yaml:\d+: Job train, {message}", finding)


def test_placeholder_in_several_keys_is_one_finding(launched: Launched) -> None:
    """A variable that is not filled in is reported once, with the keys that have it."""
    amounts = {"requests": {"nvidia.com/gpu": "$GPUS"}, "limits": {"nvidia.com/gpu": "$GPUS"}}
    container = {"name": "main", "image": "a:1", "resources": amounts}
    task = {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    with pytest.raises(ProfileError) as error:
        launched(change_spec(JOB, tasks=[task]))
    (finding,) = error.value.findings
    path = "spec.tasks[0].template.spec.containers[0].resources"
    assert finding.where.endswith(f"Job train, {path}.limits.nvidia.com/gpu, {path}.requests.nvidia.com/gpu")


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (None, r"limits.nvidia.com/gpu: it is empty; write an amount"),
        ("$GPU_PER_NODE", r"`\$GPU_PER_NODE` contains \$GPU_PER_NODE, a placeholder that is not filled in"),
        ("<n>", "`<n>` contains <n>, a placeholder"),
    ],
)
def test_amount_is_a_number(launched: Launched, amount: str | None, message: str) -> None:
    """An amount of a resource that is empty, or a placeholder, is refused with its key."""
    container = {"name": "main", "image": "a:1", "resources": {"limits": {"nvidia.com/gpu": amount}}}
    task = {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    with pytest.raises(ProfileError, match=message):
        launched(change_spec(JOB, tasks=[task]))


def test_label_may_have_the_name_of_a_count(launched: Launched) -> None:
    """The keys of labels and annotations are the user's, and their values are texts."""
    template = {"metadata": {"labels": {"replicas": "2"}}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}}
    plan = launched(change_spec(JOB, tasks=[{"name": "lead", "replicas": 2, "template": template}]))
    assert len(plan.pods) == 2


def test_other_version_of_another_launcher_is_reported_at_once(launched: Launched) -> None:
    """A job of another launcher, in a version that this one would refuse too, gets both remedies."""
    remedy = "write launcher: pytorchjob, and rewrite it for kubeflow.org/v1$"
    with pytest.raises(ProfileError, match=remedy):
        launched(PYTORCHJOB | {"apiVersion": "kubeflow.org/v1alpha2"}, launcher="job")


def test_name_in_a_wrapper_is_filled_in(launched: Launched) -> None:
    """A placeholder in the name of a wrapped object is refused like one in the name of the wrapper."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "<NAME>-1", "namespace": "a"}}
    pod |= {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}
    wrapper = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "outer"}}
    with pytest.raises(ProfileError, match=r"AppWrapper outer, Pod <NAME>-1, metadata.name: .* not filled in"):
        launched(wrapper | {"spec": {"components": [{"template": pod}]}})


def test_faults_of_several_objects_have_the_line_of_the_manifest(launched: Launched) -> None:
    """Two jobs, and two namespaces, are reported at the second one's line in the manifest."""
    second = JOB | {"metadata": {"name": "second"}}
    with pytest.raises(ProfileError, match=r"job.yaml:\d+: Job second: the manifest holds 2 of kind Job"):
        launched(JOB, second, launcher="volcano")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "one"}}
    document = JOB | {"metadata": {"name": "train", "namespace": "two"}}
    with pytest.raises(ProfileError, match=r"job.yaml:\d+: Job train, metadata.namespace: all objects .* one, two"):
        launched(service, document, launcher="volcano")


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"imagePullSecrets": [{"name": "$MY_SECRET"}]}, "imagePullSecrets[0].name"),
        ({"volumes": [{"name": "a", "csi": {"volumeAttributes": {"bucketName": "${BUCKET}"}}}]}, "bucketName"),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "<claim>"}}]}, "claimName"),
    ],
)
def test_reference_is_filled_in(launched: Launched, spec: dict[str, object], key: str) -> None:
    """The name of another object that is a placeholder is refused with its key: the pods could not start."""
    pod = {"containers": [{"name": "main", "image": "a:1", "command": ["sh", "-c", "echo $NAME"]}]} | spec
    task = {"name": "lead", "replicas": 1, "template": {"spec": pod}}
    with pytest.raises(ProfileError, match=rf"{re.escape(key)}: .* a placeholder that is not filled in"):
        launched(change_spec(JOB, tasks=[task]))


@pytest.mark.parametrize("keys", [{"managedBy": OTHER_CLUSTER}, {"runPolicy": {"managedBy": OTHER_CLUSTER}}])
def test_job_of_another_cluster_is_refused(launched: Launched, keys: dict[str, object]) -> None:
    """Kueue creates the pods of such a job in another cluster, where this run would not find them."""
    with pytest.raises(ProfileError, match="multikueue creates the pods in another cluster"):
        launched(change_spec(PYTORCHJOB, **keys))


def test_several_jobs_that_train_together_are_one(launched: Launched) -> None:
    """Two jobs in one manifest are refused, with what to do if they are one training."""
    with pytest.raises(ProfileError, match="a profile for each, or one job with several sets of pods"):
        launched(JOB, JOB | {"metadata": {"name": "other"}})


def test_long_name_of_a_companion_is_refused(launched: Launched) -> None:
    """A Service whose name follows the run's, and becomes too long for that, is refused before anything is created."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"train-{'x' * 50}"}, "spec": {}}
    with pytest.raises(ProfileError, match=r"the Service .* at most 63 are allowed; shorten the profile's name by"):
        launched(service, JOB)


def list_host_name_warnings(plan: ManifestPlan) -> list[str]:
    findings = [str(requirement.finding) for requirement in plan.requires if isinstance(requirement, Advice)]
    return [finding for finding in findings if "setHostnameAsFQDN" in finding]


def test_long_full_name_of_a_pod_is_reported(launched: Launched) -> None:
    """A kubelet starts no pod whose full name is longer than a host name; without a subdomain the name is short."""
    pod = {"setHostnameAsFQDN": True, "containers": [{"name": "main", "image": "a:1"}]}
    job = {"name": f"workers-{'x' * 20}", "template": {"spec": {"template": {"spec": pod}}}}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [job]},
    }
    (warning,) = list_host_name_warnings(launched(jobset))
    assert "replicatedJobs[0].template.spec.template.spec.setHostnameAsFQDN: the full name" in warning
    assert "a kubelet starts no pod with more than 64" in warning
    short_job = {"name": "w", "template": {"spec": {"template": {"spec": pod}}}}
    assert not list_host_name_warnings(launched(change_spec(jobset, replicatedJobs=[short_job]), manifest_name="keep"))


def test_variable_may_have_any_name(launched: Launched) -> None:
    """The name of a variable with double underscores, as pydantic and Airflow read it, is not a placeholder."""
    variable = {"name": "TRAINER__OPTIM__LR", "value": "1"}
    container = {"name": "main", "image": "a:1", "env": [variable]}
    launched(
        change_spec(JOB, tasks=[{"name": "lead", "replicas": 1, "template": {"spec": {"containers": [container]}}}])
    )


@pytest.mark.parametrize("amount", ["129e6", "100u", "1.5Gi", 0.5, ".5", "2."])
def test_every_amount_of_kubernetes_is_taken(launched: Launched, amount: str | float) -> None:
    """An amount may have an exponent, or a unit down to billionths; another text is refused at its key."""
    container = {"name": "main", "image": "a:1", "resources": {"limits": {"memory": amount}}}
    task = {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    launched(change_spec(JOB, tasks=[task]))
    container["resources"] = {"limits": {"memory": "lots"}}
    with pytest.raises(ProfileError, match=r"limits.memory: `lots` is not an amount of Kubernetes; write 64, 500m"):
        launched(change_spec(JOB, tasks=[task]))
