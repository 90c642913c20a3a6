"""Preflight against a real API server and its controllers; each check is made to fail once.

TORCHYARD_TEST_KUBECONFIG is the cluster; every object created here is in one of the tests' own namespaces, or has the
name of one, and is deleted.
"""

import base64
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from tests.support.waiting import wait_until
from torchyard.cluster.checks.cluster import check_cluster
from torchyard.kube import client, kubeconfig
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, PreflightError
from torchyard.model.finding import Finding, warning_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    ClusterRequirement,
    Controller,
    CrdServed,
    OpenQueue,
    Permission,
    ReferencedObject,
    WritableFolder,
)
from torchyard.steps.preflight import preflight

pytestmark = pytest.mark.cluster
NAMESPACE = f"torchyard-preflight-{uuid.uuid4().hex[:6]}"
STRICT_NAMESPACE = f"{NAMESPACE}-baseline"
LABELS = {"torchyard/run": NAMESPACE}
TEST_LABEL = "torchyard.test/preflight"
VOLCANO_JOBS = CrdServed(crd="jobs.batch.volcano.sh", version="v1alpha1", install="helm install volcano")
PODS_LOG = Permission(verbs=("get",), resource="pods/log")
CLUSTER_WIDE_KINDS = ("Namespace", "Node", "Queue", "StorageClass", "ValidatingWebhookConfiguration")
Manifest = dict[str, Any]
Create = Callable[..., Manifest]


# --- the cluster


@pytest.fixture(scope="module")
def admin_client(admin_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The cluster, with two namespaces for these tests, and a kubeconfig with users and servers that do not work."""
    config = os.environ["KUBECONFIG"]
    with pytest.MonkeyPatch.context() as patch:
        client.get_cluster_client.cache_clear()
        preflight_client = client.get_cluster_client(Cluster(namespace=NAMESPACE))
        try:
            for name, labels in (
                (NAMESPACE, {}),
                (STRICT_NAMESPACE, {"pod-security.kubernetes.io/enforce": "baseline"}),
            ):
                create_object(preflight_client, "v1", "Namespace", name, labels=labels)
                wait_until(lambda name=name: preflight_client.get("v1", "ServiceAccount", "default", name))  # type: ignore[misc]
            extra_kubeconfig = tmp_path_factory.mktemp("kube") / "more.yaml"
            extra_kubeconfig.write_text(yaml.safe_dump(build_contexts(preflight_client)))
            patch.setenv("KUBECONFIG", f"{config}{os.pathsep}{extra_kubeconfig}")
            yield preflight_client
        finally:
            delete_namespaces(preflight_client)
    client.get_cluster_client.cache_clear()


def build_contexts(client: Client) -> Manifest:
    """A kubeconfig: `nobody` has no rights, `stranger` is unknown, `anyone` has no credentials, `closed` no server."""
    create_object(client, "v1", "ServiceAccount", "nobody")
    path = client.path("v1", "ServiceAccount", "nobody") + "/token"
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = client.request("POST", path, body=token_request)["status"]["token"]
    entries, _ = kube_config.list_kube_config_contexts(kubeconfig.get_kubeconfig_paths())
    (current,) = (entry["context"] for entry in entries if entry["name"] == client.context)

    users: Manifest = {"nobody": {"token": token}, "stranger": {"token": "no-such-token"}, "anyone": {}}
    closed_port = {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}
    contexts = [{"name": name, "context": {"cluster": current["cluster"], "user": name}} for name in users]
    contexts.append({"name": "closed", "context": {"cluster": "closed", "user": current["user"]}})
    return {
        "clusters": [{"name": "closed", "cluster": closed_port}],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": contexts,
    }


def delete_namespaces(client: Client) -> None:
    """Delete the namespaces, and wait until they do not exist."""
    for name in (NAMESPACE, STRICT_NAMESPACE):
        if client.get("v1", "Namespace", name, namespace=None):
            client.request("DELETE", client.path("v1", "Namespace", name, None))
    for name in (NAMESPACE, STRICT_NAMESPACE):
        wait_until(lambda name=name: client.get("v1", "Namespace", name, namespace=None) is None)  # type: ignore[misc]


def create_object(
    client: Client,
    version: str,
    kind: str,
    name: str,
    *,
    namespace: str = NAMESPACE,
    labels: dict[str, str] | None = None,
    **fields: Any,
) -> Manifest:
    """Create an object, in no namespace if its kind is cluster-wide; return it with its metadata from the server."""
    path = client.path(version, kind, namespace=None if kind in CLUSTER_WIDE_KINDS else namespace)
    obj: Manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels or {}}}
    obj |= fields
    return obj | client.request("POST", path, body=obj)


@pytest.fixture
def create(admin_client: Client) -> Iterator[Create]:
    """Creates objects like `create_object`, and deletes them when the test ends."""
    objects: list[Manifest] = []

    def create_and_record(version: str, kind: str, name: str, **fields: Any) -> Manifest:
        objects.append(create_object(admin_client, version, kind, name, **fields))
        return objects[-1]

    yield create_and_record
    for obj in reversed(objects):
        metadata = obj["metadata"]
        reference = (obj["apiVersion"], obj["kind"], metadata["name"], metadata.get("namespace"))
        admin_client.request("DELETE", admin_client.path(*reference))
        wait_until(lambda reference=reference: admin_client.get(*reference) is None)  # type: ignore[misc]


# --- plans


def build_pod_spec(**spec: Any) -> Manifest:
    """The spec of a pod whose image does not exist."""
    return {"containers": [{"name": "worker", "image": "registry.invalid/none:1"}]} | spec


def build_pod_template(spec: Manifest) -> Manifest:
    """The smallest object that contains a pod template."""
    template = {"metadata": {}, "spec": spec}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "job"}, "template": template}


def build_config_map(name: str, **metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name} | metadata}


def build_volcano_job(**spec: Any) -> Manifest:
    """A Volcano Job of one task with two pods."""
    template = {"spec": build_pod_spec(restartPolicy="Never")}
    tasks = [{"name": "worker", "replicas": 2, "template": template}]
    body = {"minAvailable": 2, "queue": "default", "schedulerName": "volcano", "tasks": tasks} | spec
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "job"}, "spec": body}


def build_plan(
    *requires: ClusterRequirement, context: str | None = None, namespace: str = NAMESPACE, **fields: Any
) -> ManifestPlan:
    """A plan with these requirements; `fields` replace the plan's other fields."""
    cluster = Cluster(context=context, namespace=namespace)
    names = {"launcher": "volcano", "job": "job", "folder": "/tmp/none", "lease": {}}
    fields = {
        "pods": {"worker-0": "job-worker-0", "worker-1": "job-worker-1"},
        "objects": (build_pod_template(build_pod_spec()),),
        "watch": (),
        "on_hang": "off",
    } | fields
    template = fields["objects"][-1].get("template", {"spec": build_pod_spec()})
    fields["pod"] = {"apiVersion": "v1", "kind": "Pod"} | template | {"metadata": {"name": "job-worker-0"}}
    return ManifestPlan(**names, labels=LABELS, cluster=cluster, requires=requires, **fields)


def run_check(requirement: ClusterRequirement, **fields: Any) -> Finding:
    """The check of a single requirement."""
    (check,) = check_cluster(build_plan(requirement, **fields))
    return check


def check_admission(*objects: Manifest, **fields: Any) -> Finding:
    """The check that the API server accepts these objects."""
    return run_check(AdmissionAccepted(target="objects"), objects=objects, **fields)


def require_kind(client: Client, requirement: CrdServed) -> None:
    """Fail the test if the cluster does not serve a kind."""
    if run_check(requirement).verdict != "ok":
        pytest.fail(f"this cluster does not serve {requirement.crd}")


# --- the cluster itself


def test_closed_port_is_the_only_finding(admin_client: Client) -> None:
    """If no server answers, the only finding names the context and the address."""
    (check,) = check_cluster(build_plan(VOLCANO_JOBS, AdmissionAccepted(target="pod"), context="closed"))
    assert (check.verdict, check.where) == ("failed", "cluster closed")
    assert "https://127.0.0.1:9 does not respond: " in check.what


@pytest.mark.parametrize(("context", "message"), [("stranger", "Unauthorized"), ("anyone", 'User "system:anonymous"')])
def test_unknown_credentials_are_the_only_finding(admin_client: Client, context: str, message: str) -> None:
    """An unknown or missing token causes one finding, and no other check runs."""
    (check,) = check_cluster(build_plan(VOLCANO_JOBS, AdmissionAccepted(target="pod"), context=context))
    assert "refuses the credentials of the kubeconfig: " in check.what
    assert message in check.what


def test_unknown_context_lists_the_contexts(admin_client: Client) -> None:
    """The finding about an unknown context lists the kubeconfig's contexts."""
    (check,) = check_cluster(build_plan(VOLCANO_JOBS, context="none"))
    assert "there is no such context; there are: " in check.what
    assert {"anyone", "closed", "nobody", "stranger"} <= set(check.what.rpartition(": ")[2].split(", "))


def test_missing_namespace_is_reported_once(admin_client: Client) -> None:
    """If the namespace is missing, the checks within it are skipped, and all others run."""
    requirements = (
        AdmissionAccepted(target="pod"),
        AdmissionAccepted(target="objects"),
        ReferencedObject(object_kind="Secret", name="key"),
    )
    checks = check_cluster(
        build_plan(*requirements, Advice(finding=warning_check("image", "old")), namespace=f"{NAMESPACE}-none")
    )
    assert [check.where for check in checks] == [f"namespace {NAMESPACE}-none", "image"]
    assert checks[0].remedy == f"`kubectl create namespace {NAMESPACE}-none`"


def test_all_findings_are_one_error(admin_client: Client, tmp_path: Path) -> None:
    """The step raises all failed checks of cluster and machine in one error, with the number of checks."""
    folder = WritableFolder(host="localhost", path=str(tmp_path / "run"))
    missing = (
        ReferencedObject(object_kind="Secret", name="key"),
        ReferencedObject(object_kind="ConfigMap", name="settings"),
    )
    with pytest.raises(PreflightError) as error:
        preflight(
            build_plan(
                folder, Permission(verbs=("get",), resource="pods"), *missing, AdmissionAccepted(target="objects")
            )
        )
    assert "2 of 5 checks failed" in str(error.value)


def test_valid_plan_has_one_check_per_requirement(admin_client: Client) -> None:
    """A valid plan gets one passed check for all rights and one per other requirement, in their order."""
    rights = Permission(verbs=("create", "watch"), resource="pods"), PODS_LOG
    anywhere = Capacity(pods=1, labels={}, tolerations=(), resources={"cpu": "100m"}, one_per_node=True)
    account = ReferencedObject(object_kind="ServiceAccount", name="default")
    requirements = (*rights, anywhere, account, AdmissionAccepted(target="objects"), AdmissionAccepted(target="pod"))
    checks = check_cluster(build_plan(*requirements))
    assert [check.verdict for check in checks] == ["ok"] * (len(requirements) - 1), checks
    assert [check.where for check in checks][:3] == ["rights", "room for 1 pod", "ServiceAccount default"]
    assert checks[0].what == "all 3 are granted"


# --- rights


def test_missing_rights_name_the_verbs_and_the_user(admin_client: Client) -> None:
    """A single finding lists the missing verbs by resource, and its remedy names the role that has them."""
    jobs = Permission(verbs=("create", "watch"), resource="jobs.batch.volcano.sh")
    logs = PODS_LOG
    (check,) = check_cluster(build_plan(jobs, logs, context="nobody"))
    user_name = f"system:serviceaccount:{NAMESPACE}:nobody"
    missing = "create, watch jobs.batch.volcano.sh, nor get pods/log"
    assert check.what == f"{user_name} may not {missing} in namespace {NAMESPACE}"
    assert "`kubectl apply -f deploy/kubernetes/rbac.yaml`" in check.remedy


def test_only_missing_verbs_are_reported(admin_client: Client, create: Create) -> None:
    """A granted verb, also of a subresource, is not listed as missing."""
    group = "rbac.authorization.k8s.io"
    create(f"{group}/v1", "Role", "logs", rules=[{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}])
    account = {"kind": "ServiceAccount", "name": "nobody", "namespace": NAMESPACE}
    role = {"apiGroup": group, "kind": "Role", "name": "logs"}
    create(f"{group}/v1", "RoleBinding", "logs", roleRef=role, subjects=[account])
    permission = Permission(verbs=("get", "watch"), resource="pods/log")
    wait_until(lambda: "may not watch pods/log" in run_check(permission, context="nobody").what)
    assert run_check(PODS_LOG, context="nobody").verdict == "ok"


def test_check_without_read_access_is_a_warning(admin_client: Client) -> None:
    """Without the right to list nodes, Deployments, queues or Secrets, a check is a warning with that reason."""
    room = Capacity(pods=1, labels={}, tolerations=(), resources={}, one_per_node=False)
    requirements = (
        room,
        Controller(label="app=x"),
        OpenQueue(name="default"),
        ReferencedObject(object_kind="Secret", name="key"),
    )
    checks = check_cluster(build_plan(*requirements, AdmissionAccepted(target="pod"), context="nobody"))
    assert [check.verdict for check in checks] == ["warning"] * 5
    assert all("cannot be checked: " in check.what and "is forbidden: User" in check.what for check in checks)


def test_job_that_this_user_may_not_create_is_refused(admin_client: Client) -> None:
    """A missing right to create the job itself is a failure, because submit would fail."""
    assert "cannot create resource" in check_admission(build_config_map("job"), context="nobody").what


def test_missing_right_is_not_reported_twice(admin_client: Client) -> None:
    """A missing right that the rights check reports is only a warning in the dry run."""
    permission = Permission(verbs=("create",), resource="configmaps")
    job = build_config_map("job")
    checks = check_cluster(
        build_plan(permission, AdmissionAccepted(target="objects"), objects=(job,), context="nobody")
    )
    assert [check.verdict for check in checks] == ["failed", "warning"]
    assert "without the right to create it" in checks[1].what


# --- kinds, controllers, queues


def test_kind_that_is_not_installed_has_an_install_command(admin_client: Client) -> None:
    """The remedy for a missing API group is the command that installs it."""
    check = run_check(CrdServed(crd="jobs.none.example.com", version="v1", install="helm install none"))
    assert (check.what[:16], check.remedy) == ("is not installed", "helm install none")


def test_kind_in_another_version_lists_those_that_are_served(admin_client: Client) -> None:
    """If a kind is served only in other versions, the finding lists them."""
    require_kind(admin_client, VOLCANO_JOBS)
    assert run_check(VOLCANO_JOBS.model_copy(update={"version": "v9"})).what == "is served as v1alpha1 only"


def test_kind_of_another_group_is_not_taken_for_it(admin_client: Client) -> None:
    """The legacy AppWrapper is not mistaken for the new one, although both have the same plural."""
    require_kind(admin_client, CrdServed(crd="appwrappers.workload.codeflare.dev", version="v1beta2", install="-"))
    check = run_check(CrdServed(crd="appwrappers.mcad.ibm.com", version="v1beta1", install="-"))
    assert "appwrappers.workload.codeflare.dev is another kind of the same name" in check.what


def test_controller_without_a_pod_fails(admin_client: Client, create: Create) -> None:
    """A controller whose Deployment has no available pod fails the check."""
    labels = {TEST_LABEL: "controller"}
    body: Manifest = {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    body["template"] |= {"spec": {"containers": [{"name": "a", "image": "registry.invalid/a:v1.2"}]}}
    create("apps/v1", "Deployment", "controller", labels=labels, spec=body)
    check = run_check(Controller(label=f"{TEST_LABEL}=controller"))
    assert (check.verdict, check.what) == ("failed", f"{NAMESPACE}/controller v1.2 has no available pod")


def test_missing_controller_fails(admin_client: Client) -> None:
    """If no namespace has a Deployment with the controller's label, the check fails."""
    assert run_check(Controller(label="app=no-such-controller")).verdict == "failed"


def test_missing_gang_flag_is_a_warning(admin_client: Client) -> None:
    """An operator without the flag for gang scheduling is a warning; one with it passes."""
    operator = "control-plane=kubeflow-training-operator"
    if run_check(Controller(label=operator)).verdict != "ok":
        pytest.fail("this cluster has no training operator")
    checks = [run_check(Controller(label=operator, gang=flag)) for flag in ("--gang-scheduler-name", "--no-such-flag")]
    assert [check.verdict for check in checks] == ["ok", "warning"]
    assert "pods may start one by one" in checks[1].what


def test_missing_queue_names_the_open_ones(admin_client: Client) -> None:
    """The finding about a missing queue lists the open queues."""
    require_kind(admin_client, VOLCANO_JOBS)
    check = run_check(OpenQueue(name="no-such-queue"))
    assert check.what.startswith("does not exist; open queues: default")


def test_closed_queue_fails(admin_client: Client, create: Create) -> None:
    """A queue that Volcano's controller has closed fails the check, and the finding lists the open queues."""
    require_kind(admin_client, VOLCANO_JOBS)
    queue = create("scheduling.volcano.sh/v1beta1", "Queue", NAMESPACE, spec={"weight": 1})
    wait_until(lambda: run_check(OpenQueue(name=NAMESPACE)).verdict == "ok")
    target = {"apiVersion": queue["apiVersion"], "kind": "Queue", "name": NAMESPACE, "uid": queue["metadata"]["uid"]}
    create_object(
        admin_client,
        "bus.volcano.sh/v1alpha1",
        "Command",
        "close",
        action="CloseQueue",
        target=target | {"controller": True},
    )
    wait_until(lambda: run_check(OpenQueue(name=NAMESPACE)).what.startswith("is Closed; open queues: default"))


# --- room


def build_node(name: str, usable: int, **spec: Any) -> Manifest:
    """A node of this test, tainted against all other pods."""
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", "example.com/rdma": "2"}
    status = {
        "capacity": amounts,
        "allocatable": amounts | {"example.com/rdma": str(usable)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    taint = {"key": TEST_LABEL, "value": NAMESPACE, "effect": "NoSchedule"}
    return {
        "name": f"{NAMESPACE}-{name}",
        "labels": {TEST_LABEL: NAMESPACE},
        "spec": {"taints": [taint]} | spec,
        "status": status,
    }


def build_capacity(pods: int, tolerations: tuple[str, ...] = (TEST_LABEL,), **resources: str) -> Capacity:
    """The requirement of room for pods on this test's nodes; `example_rdma="2"` requests 2 of example.com/rdma."""
    requests = {name.replace("_", "/").replace("example", "example.com"): amount for name, amount in resources.items()}
    return Capacity(
        pods=pods,
        labels={TEST_LABEL: NAMESPACE},
        tolerations=tolerations,
        resources=requests,
        one_per_node=True,
        device_plugin=f"{TEST_LABEL}=plugin",
    )


@pytest.fixture
def nodes(admin_client: Client, create: Create) -> None:
    """Three nodes: one healthy, one cordoned, one with lost devices."""
    for fields in (build_node("a", 2), build_node("b", 2, unschedulable=True), build_node("c", 0)):
        create("v1", "Node", **fields)
    wait_until(lambda: run_check(build_capacity(2, cpu="1")).verdict == "ok")


@pytest.mark.usefixtures("nodes")
def test_nodes_that_do_not_fit_are_grouped_by_reason(admin_client: Client) -> None:
    """The finding contains how many pods fit, and for every other node why no pod fits there."""
    check = run_check(build_capacity(2, example_rdma="2"))
    assert check.what.startswith("needs room for 2 pods, one per node, found room for 1; ")
    assert "1 node: cordoned" in check.what
    assert "1 node: example.com/rdma 0 of 2 usable, its devices are lost or unhealthy" in check.what
    assert "no label" in check.what
    assert f"`kubectl uncordon {NAMESPACE}-b`" in check.remedy


@pytest.mark.usefixtures("nodes")
def test_taint_that_is_not_tolerated_is_reported(admin_client: Client) -> None:
    """The finding about a taint names its key, and the remedy the profile key that tolerates it."""
    check = run_check(build_capacity(2, tolerations=(), cpu="1"))
    assert f"2 nodes: taint {TEST_LABEL}" in check.what
    assert "`pod.tolerations`" in check.remedy


@pytest.mark.usefixtures("nodes")
def test_missing_device_plugin_is_reported(admin_client: Client) -> None:
    """The finding about a resource that no node offers names the label of the missing device plugin."""
    check = run_check(build_capacity(1, example_vf="16"))
    assert (
        f"no node offers example.com/vf: no namespace has a DaemonSet with the label {TEST_LABEL}=plugin" in check.what
    )


@pytest.mark.usefixtures("nodes")
def test_installed_device_plugin_reports_its_pods(admin_client: Client, create: Create) -> None:
    """If no node offers a resource although its plugin is installed, the finding counts the plugin's ready pods."""
    labels = {TEST_LABEL: "plugin"}
    template = {"metadata": {"labels": labels}, "spec": build_pod_spec(nodeSelector={TEST_LABEL: "nowhere"})}
    create(
        "apps/v1",
        "DaemonSet",
        "plugin",
        labels=labels,
        spec={"selector": {"matchLabels": labels}, "template": template},
    )
    check = run_check(build_capacity(1, example_vf="16"))
    assert f"no node offers example.com/vf: its device plugin {NAMESPACE}/plugin has 0 of 0 pods ready" in check.what


def test_label_that_no_node_has_is_reported(admin_client: Client) -> None:
    """If no node has the label, the remedy is the command that lists the nodes' values of it."""
    check = run_check(Capacity(pods=1, labels={TEST_LABEL: "none"}, tolerations=(), resources={}, one_per_node=True))
    assert f"no label {TEST_LABEL}=none" in check.what
    assert f"`kubectl get nodes -L {TEST_LABEL}`" in check.remedy


# --- objects that the pods refer to


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "PersistentVolumeClaim", "ServiceAccount"])
def test_missing_object_is_reported(admin_client: Client, kind: Any) -> None:
    """The finding about a missing object names its namespace, and has a remedy."""
    check = run_check(ReferencedObject(object_kind=kind, name="none"))
    assert check.what.startswith(f"is not in namespace {NAMESPACE}; there are: ")
    assert check.remedy


def test_missing_network_lists_the_networks_of_its_namespace(admin_client: Client, create: Create) -> None:
    """A secondary network is looked up in the namespace that the pods name."""
    version = "k8s.cni.cncf.io/v1"
    try:
        create(version, "NetworkAttachmentDefinition", "rdma-vf", namespace=STRICT_NAMESPACE, spec={"config": "{}"})
    except ClusterError:
        pytest.fail("this cluster has no secondary networks")
    check = run_check(
        ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma-fv", namespace=STRICT_NAMESPACE)
    )
    assert check.what == f"is not in namespace {STRICT_NAMESPACE}; there are: rdma-vf"
    assert (
        run_check(
            ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma-vf", namespace=STRICT_NAMESPACE)
        ).verdict
        == "ok"
    )


def test_missing_key_is_reported_without_any_value(admin_client: Client, create: Create) -> None:
    """The finding about a missing key of a Secret lists the Secret's keys, and shows no values."""
    secret_value = base64.b64encode(b"not-to-be-shown").decode()
    create("v1", "Secret", "keys", data={"user": secret_value})
    check = run_check(ReferencedObject(object_kind="Secret", name="keys", required_entries=("user", "token")))
    assert check.what == "has no key token; there are: user"
    assert secret_value not in str(check)
    assert run_check(ReferencedObject(object_kind="Secret", name="keys", required_entries=("user",))).what == "has user"


def build_claim_spec(storage_class: str, mode: str) -> Manifest:
    """The spec of a claim of 1 GiB."""
    return {
        "storageClassName": storage_class,
        "accessModes": [mode],
        "resources": {"requests": {"storage": "1Gi"}},
    }


def test_claim_that_waits_for_its_pod_passes(admin_client: Client, create: Create) -> None:
    """A pending claim passes if its volume is bound with the first pod, and else is a warning."""
    for mode in ("WaitForFirstConsumer", "Immediate"):
        name = f"{NAMESPACE}-{mode.lower()}"
        fields = {"provisioner": "example.com/none", "volumeBindingMode": mode}
        create("storage.k8s.io/v1", "StorageClass", name, **fields)
        create("v1", "PersistentVolumeClaim", mode.lower(), spec=build_claim_spec(name, "ReadWriteMany"))
    check = run_check(ReferencedObject(object_kind="PersistentVolumeClaim", name="waitforfirstconsumer"))
    assert (check.verdict, check.what) == ("ok", "is Pending, until its first pod")
    assert run_check(ReferencedObject(object_kind="PersistentVolumeClaim", name="immediate")).verdict == "warning"


def test_claim_of_one_node_is_a_warning_for_two_pods(admin_client: Client, create: Create) -> None:
    """For a job of two nodes, the check warns of a volume that only one node can mount."""
    create("v1", "PersistentVolumeClaim", "single", spec=build_claim_spec("none", "ReadWriteOnce"))
    admin_client.request(
        "PATCH",
        admin_client.path("v1", "PersistentVolumeClaim", "single") + "/status",
        body={"status": {"phase": "Bound"}},
    )
    assert "is Bound and ReadWriteOnce: its 2 pods must share one node" in run_check(SINGLE_CLAIM).what


def test_lost_claim_is_reported(admin_client: Client, create: Create) -> None:
    """The finding about a claim whose volume is deleted reports that the claim is lost."""
    spec = build_claim_spec("", "ReadWriteMany") | {"volumeName": "no-such-volume"}
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    metadata = {"name": "single", "annotations": annotations}
    create("v1", "PersistentVolumeClaim", "single", metadata=metadata, spec=spec)
    wait_until(lambda: run_check(SINGLE_CLAIM).what == "is Lost: its volume is gone")


SINGLE_CLAIM = ReferencedObject(object_kind="PersistentVolumeClaim", name="single")


# --- admission


def test_pod_security_is_reported_with_its_remedy(admin_client: Client) -> None:
    """A namespace with level baseline refuses a pod on the host's network; the finding quotes the server."""
    check = run_check(
        AdmissionAccepted(target="pod"),
        namespace=STRICT_NAMESPACE,
        objects=[build_pod_template(build_pod_spec(hostNetwork=True))],
    )
    assert 'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)' in check.what
    level = "pod-security.kubernetes.io/enforce=privileged"
    assert check.remedy == f"`kubectl label namespace {STRICT_NAMESPACE} {level} --overwrite`"


def test_same_pod_is_accepted_where_it_is_allowed(admin_client: Client) -> None:
    """A namespace without a level accepts a pod on the host's network, and the dry run leaves no pod."""
    assert (
        run_check(
            AdmissionAccepted(target="pod"), objects=[build_pod_template(build_pod_spec(hostNetwork=True))]
        ).verdict
        == "ok"
    )
    assert admin_client.list("v1", "Pod") == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"serviceAccountName": "none"}, 'serviceaccount "none" not found'),
        ({"priorityClassName": "none"}, "no PriorityClass with name none was found"),
        ({"hostNetwork": "yes"}, "cannot unmarshal string"),
        ({"hostNetworks": True}, 'unknown field "spec.hostNetworks"'),
    ],
)
def test_refused_pod_quotes_the_server(admin_client: Client, spec: Manifest, message: str) -> None:
    """The finding about a refused pod quotes the server."""
    check = run_check(AdmissionAccepted(target="pod"), objects=[build_pod_template(build_pod_spec(**spec))])
    assert (check.verdict, message in check.what) == ("failed", True), check.what


def test_quota_fails(admin_client: Client, create: Create) -> None:
    """A pod that would exceed a quota fails the check, and the remedy shows the quota."""
    create("v1", "ResourceQuota", "none", spec={"hard": {"pods": "0"}})
    wait_until(lambda: "exceeded quota: none, requested: pods=1" in run_check(AdmissionAccepted(target="pod")).what)
    assert "describe quota" in run_check(AdmissionAccepted(target="pod")).remedy


def test_refusal_by_a_controllers_webhook_is_quoted(admin_client: Client) -> None:
    """The finding about a refused Job quotes Volcano's webhook."""
    require_kind(admin_client, VOLCANO_JOBS)
    check = check_admission(build_volcano_job(minAvailable=3))
    assert "Job job is refused: admission webhook" in check.what
    assert "'minAvailable' should not be greater than total replicas in tasks" in check.what


def test_valid_job_is_accepted_and_not_created(admin_client: Client) -> None:
    """A dry run of a valid Job passes the webhooks and creates no Job."""
    require_kind(admin_client, VOLCANO_JOBS)
    assert check_admission(build_volcano_job()).verdict == "ok"
    assert admin_client.list("batch.volcano.sh/v1alpha1", "Job") == []


def test_every_refused_object_is_reported(admin_client: Client) -> None:
    """One finding has a sentence for each of two refused objects, and none for the valid one."""
    unknown_field = build_config_map("b") | {"dada": {}}
    check = check_admission(build_config_map("a"), unknown_field, build_config_map("C"))
    assert 'unknown field "dada"' in check.what
    assert 'ConfigMap "C" is invalid' in check.what
    assert "ConfigMap a" not in check.what


def test_webhook_that_does_not_answer_is_reported(admin_client: Client, create: Create) -> None:
    """If a webhook's Service does not exist, all its objects are refused, and the remedy names the Service."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    webhook: Manifest = {"name": "lost.torchyard.test", "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    webhook |= {"clientConfig": {"service": {"namespace": NAMESPACE, "name": "nowhere"}}, "rules": [rule]}
    webhook |= {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}}
    webhook |= {"objectSelector": {"matchLabels": {TEST_LABEL: "webhook"}}}
    create("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", NAMESPACE, webhooks=[webhook])
    labelled = build_config_map("a", labels={TEST_LABEL: "webhook"})
    wait_until(lambda: 'failed calling webhook "lost.torchyard.test"' in check_admission(labelled).what)
    assert f"`kubectl -n {NAMESPACE} get endpoints nowhere`" in check_admission(labelled).remedy


def test_taken_name_is_reported_with_its_owner(admin_client: Client, create: Create) -> None:
    """If a name is taken, the finding names the run that owns it; the run's own object passes."""
    create("v1", "ConfigMap", "theirs", labels={"torchyard/run": "another"})
    create("v1", "ConfigMap", "foreign")
    create("v1", "ConfigMap", "ours", labels=LABELS | {"more": "yes"})
    assert (
        "ConfigMap theirs already exists, and belongs to the run another"
        in check_admission(build_config_map("theirs")).what
    )
    assert (
        "ConfigMap foreign already exists, and does not belong to this run"
        in check_admission(build_config_map("foreign")).what
    )
    check = check_admission(build_config_map("ours"))
    assert (check.verdict, check.what) == ("ok", "ConfigMap ours already exists, and belongs to this run")


def test_advice_is_a_warning(admin_client: Client) -> None:
    """Advice is reported as a warning, which does not fail the preflight."""
    assert run_check(Advice(finding=warning_check("image a:latest", "has no fixed tag"))).verdict == "warning"
