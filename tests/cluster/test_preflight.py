"""Preflight against a real API server and its controllers; each check is made to fail once.

TORCHYARD_TEST_KUBECONFIG names the cluster; every object created here is in one of the tests' own namespaces, or has
the name of one, and is deleted.
"""

import base64
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from torchyard.cluster.checks.cluster import check_cluster
from torchyard.kube import client, kubeconfig
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, PreflightError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    Check,
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
SPACE = f"torchyard-preflight-{uuid.uuid4().hex[:6]}"
STRICT = f"{SPACE}-baseline"
LABELS = {"torchyard/run": SPACE}
MARK = "torchyard.test/preflight"
JOBS = CrdServed(crd="jobs.batch.volcano.sh", version="v1alpha1", install="helm install volcano")
PODS_LOG = Permission(verbs=("get",), resource="pods/log")
OF_NO_NAMESPACE = ("Namespace", "Node", "Queue", "StorageClass", "ValidatingWebhookConfiguration")
Thing = dict[str, Any]
Make = Callable[..., Thing]


# --- the cluster


@pytest.fixture(scope="module")
def plane(plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The cluster, with two namespaces for these tests, and a kubeconfig with users and servers that do not work."""
    config = os.environ["KUBECONFIG"]
    with pytest.MonkeyPatch.context() as patch:
        client.get_cluster_client.cache_clear()
        api = client.get_cluster_client(Cluster(namespace=SPACE))
        try:
            for name, labels in ((SPACE, {}), (STRICT, {"pod-security.kubernetes.io/enforce": "baseline"})):
                post(api, "v1", "Namespace", name, labels=labels)
                wait(lambda name=name: api.get("v1", "ServiceAccount", "default", name))  # type: ignore[misc]
            more = tmp_path_factory.mktemp("kube") / "more.yaml"
            more.write_text(yaml.safe_dump(contexts(api)))
            patch.setenv("KUBECONFIG", f"{config}{os.pathsep}{more}")
            yield api
        finally:
            clear(api)
    client.get_cluster_client.cache_clear()


def contexts(api: Client) -> Thing:
    """`nobody` has no rights, `stranger` is unknown, `anyone` has no credentials, `closed` is a closed port."""
    post(api, "v1", "ServiceAccount", "nobody")
    path = api.path("v1", "ServiceAccount", "nobody") + "/token"
    token = api.request(
        "POST", path, body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    known, _ = kube_config.list_kube_config_contexts(kubeconfig.get_kubeconfig_paths())
    here = next(each["context"] for each in known if each["name"] == api.context)
    users = {"nobody": {"token": token["status"]["token"]}, "stranger": {"token": "no-such-token"}, "anyone": {}}
    return {
        "clusters": [
            {"name": "closed", "cluster": {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": name, "user": value} for name, value in users.items()],
        "contexts": [
            *({"name": name, "context": {"cluster": here["cluster"], "user": name}} for name in users),
            {"name": "closed", "context": {"cluster": "closed", "user": here["user"]}},
        ],
    }


def clear(api: Client) -> None:
    """Delete the namespaces, and wait until they are gone."""
    for name in (SPACE, STRICT):
        if api.get("v1", "Namespace", name, namespace=None):
            api.request("DELETE", api.path("v1", "Namespace", name, None))
    for name in (SPACE, STRICT):
        wait(lambda name=name: api.get("v1", "Namespace", name, namespace=None) is None)  # type: ignore[misc]


def wait(true: Callable[[], object], seconds: float = 40.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "the cluster does not get there"
        time.sleep(0.1)


def post(api: Client, version: str, kind: str, name: str, **more: Any) -> Thing:
    """Create an object in the namespace `place`, or in none if its kind is cluster-wide."""
    labels, place = more.pop("labels", {}), more.pop("place", SPACE)
    path = api.path(version, kind, namespace=None if kind in OF_NO_NAMESPACE else place)
    thing = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, **more}
    return {**thing, **api.request("POST", path, body=thing)}


@pytest.fixture
def make(plane: Client) -> Iterator[Make]:
    """Creates objects like `post`, and deletes them when the test ends."""
    made: list[Thing] = []

    def create(version: str, kind: str, name: str, **more: Any) -> Thing:
        made.append(post(plane, version, kind, name, **more))
        return made[-1]

    yield create
    for each in reversed(made):
        meta = each["metadata"]
        path = plane.path(each["apiVersion"], each["kind"], meta["name"], meta.get("namespace"))
        plane.request("DELETE", path)
        gone = (each["apiVersion"], each["kind"], meta["name"], meta.get("namespace"))
        wait(lambda gone=gone: plane.get(*gone) is None)  # type: ignore[misc]


# --- plans


def pod(**spec: Any) -> Thing:
    """The spec of a pod."""
    return {"containers": [{"name": "worker", "image": "registry.invalid/none:1"}], **spec}


def job_of(spec: Thing) -> Thing:
    """The smallest object that holds a pod template."""
    template = {"metadata": {}, "spec": spec}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "job"}, "template": template}


def config_map(name: str, **metadata: Any) -> Thing:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def vcjob(**spec: Any) -> Thing:
    """A Volcano Job of one task with two pods."""
    template = {"spec": pod(restartPolicy="Never")}
    tasks = [{"name": "worker", "replicas": 2, "template": template}]
    body = {"minAvailable": 2, "queue": "default", "schedulerName": "volcano", "tasks": tasks, **spec}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "job"}, "spec": body}


def plan(*requires: ClusterRequirement, context: str | None = None, space: str = SPACE, **parts: Any) -> ManifestPlan:
    place = Cluster(context=context, namespace=space)
    names = {"launcher": "volcano", "job": "job", "container": "worker", "folder": "/tmp/none", "lease": {}}
    parts = {"tasks": {"worker": 2}, "objects": (job_of(pod()),), "template_path": ("template",), "watch": (), **parts}
    return ManifestPlan(**names, labels=LABELS, cluster=place, requires=requires, **parts)


def only(need: ClusterRequirement, **parts: Any) -> Check:
    """The check of a single requirement."""
    (found,) = check_cluster(plan(need, **parts))
    return found


def refused(*objects: Thing, **parts: Any) -> Check:
    return only(AdmissionAccepted(target="objects"), objects=objects, **parts)


def needs_kind(api: Client, need: CrdServed) -> None:
    if only(need).verdict != "ok":
        pytest.fail(f"this cluster does not serve {need.crd}")


# --- the cluster itself


def test_closed_port_is_the_only_finding(plane: Client) -> None:
    """If no server answers, the only finding names the context and the address."""
    (found,) = check_cluster(plan(JOBS, AdmissionAccepted(target="pod"), context="closed"))
    assert (found.verdict, found.name) == ("failed", "cluster closed")
    assert "https://127.0.0.1:9 does not answer: " in found.detail


@pytest.mark.parametrize(("context", "said"), [("stranger", "Unauthorized"), ("anyone", 'User "system:anonymous"')])
def test_unknown_credentials_are_the_only_finding(plane: Client, context: str, said: str) -> None:
    """An unknown or missing token causes one finding, and no further checks."""
    (found,) = check_cluster(plan(JOBS, AdmissionAccepted(target="pod"), context=context))
    assert "refuses the credentials of the kubeconfig: " in found.detail
    assert said in found.detail


def test_unknown_context_lists_what_there_is(plane: Client) -> None:
    """The finding about an unknown context lists the kubeconfig's contexts."""
    (found,) = check_cluster(plan(JOBS, context="none"))
    assert "there is no such context; there are: " in found.detail
    assert {"anyone", "closed", "nobody", "stranger"} <= set(found.detail.rpartition(": ")[2].split(", "))


def test_missing_namespace_is_told_once(plane: Client) -> None:
    """If the namespace is missing, the checks within it are skipped, and all others run."""
    inside = (
        AdmissionAccepted(target="pod"),
        AdmissionAccepted(target="objects"),
        ReferencedObject(object_kind="Secret", name="key"),
    )
    found = check_cluster(plan(*inside, Advice(topic="image", detail="old"), space=f"{SPACE}-none"))
    assert [each.name for each in found] == [f"namespace {SPACE}-none", "image"]
    assert found[0].remedy == f"`kubectl create namespace {SPACE}-none`"


def test_all_findings_are_one_error(plane: Client, tmp_path: Path) -> None:
    """The step raises all failed checks of cluster and machine at once, and says how many checks there were."""
    folder = WritableFolder(host="localhost", path=str(tmp_path / "run"))
    missing = (
        ReferencedObject(object_kind="Secret", name="key"),
        ReferencedObject(object_kind="ConfigMap", name="settings"),
    )
    with pytest.raises(PreflightError) as error:
        preflight(
            plan(folder, Permission(verbs=("get",), resource="pods"), *missing, AdmissionAccepted(target="objects"))
        )
    assert "2 of 5 checks failed" in str(error.value)


def test_good_plan_has_one_check_a_requirement(plane: Client) -> None:
    """A good plan gets one passed check for all rights and one per other requirement, in their order."""
    rights = Permission(verbs=("create", "watch"), resource="pods"), PODS_LOG
    anywhere = Capacity(pods=1, labels={}, tolerations=(), resources={"cpu": "100m"}, one_per_node=True)
    account = ReferencedObject(object_kind="ServiceAccount", name="default")
    needs = (*rights, anywhere, account, AdmissionAccepted(target="objects"), AdmissionAccepted(target="pod"))
    found = check_cluster(plan(*needs))
    assert [each.verdict for each in found] == ["ok"] * (len(needs) - 1), found
    assert [each.name for each in found][:3] == ["rights", "room for 1 pod", "ServiceAccount default"]
    assert found[0].detail == "all 3 are granted"


# --- rights


def test_missing_rights_name_the_verbs_and_the_user(plane: Client) -> None:
    """A single finding lists the missing verbs by resource, and its remedy names the role that has them."""
    jobs, logs = Permission(verbs=("create", "watch"), resource="jobs.batch.volcano.sh"), PODS_LOG
    (found,) = check_cluster(plan(jobs, logs, context="nobody"))
    who = f"system:serviceaccount:{SPACE}:nobody"
    lacks = "create, watch jobs.batch.volcano.sh, nor get pods/log"
    assert found.detail == f"{who} may not {lacks} in namespace {SPACE}"
    assert "`kubectl apply -f deploy/kubernetes/rbac.yaml`" in found.remedy


def test_only_missing_verbs_are_told(plane: Client, make: Make) -> None:
    """A granted verb, also of a subresource, is not listed as missing."""
    group = "rbac.authorization.k8s.io"
    make(f"{group}/v1", "Role", "logs", rules=[{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}])
    account = {"kind": "ServiceAccount", "name": "nobody", "namespace": SPACE}
    role = {"apiGroup": group, "kind": "Role", "name": "logs"}
    make(f"{group}/v1", "RoleBinding", "logs", roleRef=role, subjects=[account])
    need = Permission(verbs=("get", "watch"), resource="pods/log")
    wait(lambda: "may not watch pods/log" in only(need, context="nobody").detail)
    assert only(PODS_LOG, context="nobody").verdict == "ok"


def test_what_may_not_be_looked_at_is_a_warning(plane: Client) -> None:
    """Without the right to list nodes, Deployments, queues or Secrets, a check is a warning that says so."""
    room = Capacity(pods=1, labels={}, tolerations=(), resources={}, one_per_node=False)
    looks = (
        room,
        Controller(label="app=x"),
        OpenQueue(name="default"),
        ReferencedObject(object_kind="Secret", name="key"),
    )
    found = check_cluster(plan(*looks, AdmissionAccepted(target="pod"), context="nobody"))
    assert [each.verdict for each in found] == ["warning"] * 5
    assert all("cannot be checked: " in each.detail and "is forbidden: User" in each.detail for each in found)


def test_job_that_this_user_may_not_create_is_refused(plane: Client) -> None:
    """A missing right to create the job itself is a failure, because submit would fail."""
    assert "cannot create resource" in refused(config_map("job"), context="nobody").detail


def test_missing_right_is_not_told_twice(plane: Client) -> None:
    """A missing right that the rights check reports is only a warning in the dry run."""
    right = Permission(verbs=("create",), resource="configmaps")
    job = config_map("job")
    found = check_cluster(plan(right, AdmissionAccepted(target="objects"), objects=(job,), context="nobody"))
    assert [each.verdict for each in found] == ["failed", "warning"]
    assert "without the right to create it" in found[1].detail


# --- kinds, controllers, queues


def test_kind_that_is_not_installed_tells_how_to_install_it(plane: Client) -> None:
    """The remedy for a missing API group is the command that installs it."""
    found = only(CrdServed(crd="jobs.none.example.com", version="v1", install="helm install none"))
    assert (found.detail[:16], found.remedy) == ("is not installed", "helm install none")


def test_kind_in_another_version_lists_those_that_are_served(plane: Client) -> None:
    """If a kind is served only in other versions, the finding lists them."""
    needs_kind(plane, JOBS)
    assert only(JOBS.model_copy(update={"version": "v9"})).detail == "is served as v1alpha1 only"


def test_kind_of_another_group_is_not_taken_for_it(plane: Client) -> None:
    """The legacy AppWrapper is not taken for the new one, although both have the same plural."""
    needs_kind(plane, CrdServed(crd="appwrappers.workload.codeflare.dev", version="v1beta2", install="-"))
    found = only(CrdServed(crd="appwrappers.mcad.ibm.com", version="v1beta1", install="-"))
    assert "appwrappers.workload.codeflare.dev is another kind of the same name" in found.detail


def test_controller_without_a_pod_is_told(plane: Client, make: Make) -> None:
    """A controller whose Deployment has no available pod fails the check."""
    labels = {MARK: "controller"}
    body: Thing = {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    body["template"] |= {"spec": {"containers": [{"name": "a", "image": "registry.invalid/a:v1.2"}]}}
    make("apps/v1", "Deployment", "controller", labels=labels, spec=body)
    found = only(Controller(label=f"{MARK}=controller"))
    assert (found.verdict, found.detail) == ("failed", f"{SPACE}/controller v1.2 has no available pod")


def test_controller_that_is_nowhere_is_told(plane: Client) -> None:
    """If no namespace has a Deployment with the controller's label, the check fails."""
    assert only(Controller(label="app=no-such-controller")).verdict == "failed"


def test_gang_flag_is_looked_for(plane: Client) -> None:
    """An operator without the flag for gang scheduling is a warning; one with it passes."""
    operator = "control-plane=kubeflow-training-operator"
    if only(Controller(label=operator)).verdict != "ok":
        pytest.fail("this cluster has no training operator")
    verdicts = [only(Controller(label=operator, gang=flag)) for flag in ("--gang-scheduler-name", "--no-such-flag")]
    assert [each.verdict for each in verdicts] == ["ok", "warning"]
    assert "pods may start one by one" in verdicts[1].detail


def test_missing_queue_names_the_open_ones(plane: Client) -> None:
    """The finding about a missing queue lists the open queues."""
    needs_kind(plane, JOBS)
    found = only(OpenQueue(name="no-such-queue"))
    assert found.detail.startswith("there is no such queue; open queues: default")


def test_closed_queue_is_told(plane: Client, make: Make) -> None:
    """A queue that Volcano's controller has closed fails the check, and the finding lists the open queues."""
    needs_kind(plane, JOBS)
    queue = make("scheduling.volcano.sh/v1beta1", "Queue", SPACE, spec={"weight": 1})
    wait(lambda: only(OpenQueue(name=SPACE)).verdict == "ok")
    target = {"apiVersion": queue["apiVersion"], "kind": "Queue", "name": SPACE, "uid": queue["metadata"]["uid"]}
    post(
        plane, "bus.volcano.sh/v1alpha1", "Command", "close", action="CloseQueue", target={**target, "controller": True}
    )
    wait(lambda: only(OpenQueue(name=SPACE)).detail.startswith("is Closed; open queues: default"))


# --- room


def node(name: str, usable: int, **spec: Any) -> Thing:
    """A node of this test, tainted against all other pods."""
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", "example.com/rdma": "2"}
    status = {"capacity": amounts, "allocatable": {**amounts, "example.com/rdma": str(usable)}}
    status["conditions"] = [{"type": "Ready", "status": "True"}]  # type: ignore[assignment]
    taint = {"key": MARK, "value": SPACE, "effect": "NoSchedule"}
    return {"name": f"{SPACE}-{name}", "labels": {MARK: SPACE}, "spec": {"taints": [taint], **spec}, "status": status}


def room(pods: int, tolerations: tuple[str, ...] = (MARK,), **resources: str) -> Capacity:
    asked = {name.replace("_", "/").replace("example", "example.com"): amount for name, amount in resources.items()}
    known = {"labels": {MARK: SPACE}, "tolerations": tolerations, "resources": asked}
    return Capacity.model_validate({"pods": pods, "one_per_node": True, "device_plugin": f"{MARK}=plugin", **known})


@pytest.fixture
def nodes(plane: Client, make: Make) -> None:
    """Three nodes: one healthy, one cordoned, one with lost devices."""
    for each in (node("a", 2), node("b", 2, unschedulable=True), node("c", 0)):
        make("v1", "Node", **each)
    wait(lambda: only(room(2, cpu="1")).verdict == "ok")


@pytest.mark.usefixtures("nodes")
def test_nodes_that_do_not_fit_are_grouped_by_what_they_lack(plane: Client) -> None:
    """The finding says how many pods fit, and for every other node why no pod fits there."""
    found = only(room(2, example_rdma="2"))
    assert found.detail.startswith("2 needed, one per node, 1 fits; ")
    assert "1 node: cordoned" in found.detail
    assert "1 node: example.com/rdma 0 of 2 usable, its devices are lost or unhealthy" in found.detail
    assert "no label" in found.detail
    assert f"`kubectl uncordon {SPACE}-b`" in found.remedy


@pytest.mark.usefixtures("nodes")
def test_taint_that_is_not_tolerated_is_told(plane: Client) -> None:
    """The finding about a taint names its key, and the remedy the profile key that tolerates it."""
    found = only(room(2, tolerations=(), cpu="1"))
    assert f"2 nodes: taint {MARK}" in found.detail
    assert "`pod.tolerations`" in found.remedy


@pytest.mark.usefixtures("nodes")
def test_device_plugin_that_is_missing_is_told(plane: Client) -> None:
    """The finding about a resource that no node offers names the label of the missing device plugin."""
    found = only(room(1, example_vf="16"))
    assert f"nothing offers example.com/vf: no namespace has a DaemonSet with the label {MARK}=plugin" in found.detail


@pytest.mark.usefixtures("nodes")
def test_device_plugin_that_is_there_tells_its_pods(plane: Client, make: Make) -> None:
    """If no node offers a resource although its plugin is installed, the finding counts the plugin's ready pods."""
    labels = {MARK: "plugin"}
    template = {"metadata": {"labels": labels}, "spec": pod(nodeSelector={MARK: "nowhere"})}
    make(
        "apps/v1",
        "DaemonSet",
        "plugin",
        labels=labels,
        spec={"selector": {"matchLabels": labels}, "template": template},
    )
    found = only(room(1, example_vf="16"))
    assert f"nothing offers example.com/vf: its device plugin {SPACE}/plugin has 0 of 0 pods ready" in found.detail


def test_label_that_no_node_has_is_told(plane: Client) -> None:
    """If no node has the label, the remedy is the command that lists the nodes' values of it."""
    found = only(Capacity(pods=1, labels={MARK: "none"}, tolerations=(), resources={}, one_per_node=True))
    assert f"no label {MARK}=none" in found.detail
    assert f"`kubectl get nodes -L {MARK}`" in found.remedy


# --- objects that the pods refer to


@pytest.mark.parametrize("what", ["ConfigMap", "Secret", "PersistentVolumeClaim", "ServiceAccount"])
def test_missing_object_is_told(plane: Client, what: Any) -> None:
    """The finding about a missing object names its namespace, and has a remedy."""
    found = only(ReferencedObject(object_kind=what, name="none"))
    assert found.detail.startswith(f"is not in namespace {SPACE}; there are: ")
    assert found.remedy


def test_missing_network_lists_the_networks_of_its_namespace(plane: Client, make: Make) -> None:
    """A secondary network is looked up in the namespace that the pods name."""
    version = "k8s.cni.cncf.io/v1"
    try:
        make(version, "NetworkAttachmentDefinition", "rdma-vf", place=STRICT, spec={"config": "{}"})
    except ClusterError:
        pytest.fail("this cluster has no secondary networks")
    found = only(ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma-fv", namespace=STRICT))
    assert found.detail == f"is not in namespace {STRICT}; there are: rdma-vf"
    assert (
        only(ReferencedObject(object_kind="NetworkAttachmentDefinition", name="rdma-vf", namespace=STRICT)).verdict
        == "ok"
    )


def test_missing_key_is_told_without_any_value(plane: Client, make: Make) -> None:
    """The finding about a missing key of a Secret lists the Secret's keys, and shows no values."""
    hidden = base64.b64encode(b"not-to-be-shown").decode()
    make("v1", "Secret", "keys", data={"user": hidden})
    found = only(ReferencedObject(object_kind="Secret", name="keys", required_entries=("user", "token")))
    assert found.detail == "has no key token; there are: user"
    assert hidden not in str(found)
    assert only(ReferencedObject(object_kind="Secret", name="keys", required_entries=("user",))).detail == "has user"


def claim(storage_class: str, mode: str) -> Thing:
    return {
        "storageClassName": storage_class,
        "accessModes": [mode],
        "resources": {"requests": {"storage": "1Gi"}},
    }


def test_claim_that_waits_for_its_pod_is_good(plane: Client, make: Make) -> None:
    """A pending claim passes if its volume is bound with the first pod, and else is a warning."""
    for mode in ("WaitForFirstConsumer", "Immediate"):
        name = f"{SPACE}-{mode.lower()}"
        kind = {"provisioner": "example.com/none", "volumeBindingMode": mode}
        make("storage.k8s.io/v1", "StorageClass", name, **kind)
        make("v1", "PersistentVolumeClaim", mode.lower(), spec=claim(name, "ReadWriteMany"))
    found = only(ReferencedObject(object_kind="PersistentVolumeClaim", name="waitforfirstconsumer"))
    assert (found.verdict, found.detail) == ("ok", "is Pending, until its first pod")
    assert only(ReferencedObject(object_kind="PersistentVolumeClaim", name="immediate")).verdict == "warning"


def test_claim_of_one_node_is_a_warning_for_two_pods(plane: Client, make: Make) -> None:
    """For a job of two nodes, the check of a volume that only one node can mount says so."""
    make("v1", "PersistentVolumeClaim", "single", spec=claim("none", "ReadWriteOnce"))
    plane.request(
        "PATCH", plane.path("v1", "PersistentVolumeClaim", "single") + "/status", body={"status": {"phase": "Bound"}}
    )
    assert "is Bound and ReadWriteOnce: its 2 pods must share one node" in only(CLAIM).detail


def test_lost_claim_is_told(plane: Client, make: Make) -> None:
    """The finding about a claim whose volume is gone says that the claim is lost."""
    spec = {**claim("", "ReadWriteMany"), "volumeName": "no-such-volume"}
    annotations = {"pv.kubernetes.io/bind-completed": "yes"}
    meta = {"name": "single", "annotations": annotations}
    make("v1", "PersistentVolumeClaim", "single", metadata=meta, spec=spec)
    wait(lambda: only(CLAIM).detail == "is Lost: its volume is gone")


CLAIM = ReferencedObject(object_kind="PersistentVolumeClaim", name="single")


# --- admission


def test_pod_security_is_told_with_its_remedy(plane: Client) -> None:
    """A namespace with level baseline refuses a pod on the host's network; the finding quotes the server."""
    found = only(AdmissionAccepted(target="pod"), space=STRICT, objects=[job_of(pod(hostNetwork=True))])
    assert 'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)' in found.detail
    level = "pod-security.kubernetes.io/enforce=privileged"
    assert found.remedy == f"`kubectl label namespace {STRICT} {level} --overwrite`"


def test_same_pod_is_taken_where_it_is_allowed(plane: Client) -> None:
    """A namespace without a level accepts a pod on the host's network, and the dry run leaves no pod."""
    assert only(AdmissionAccepted(target="pod"), objects=[job_of(pod(hostNetwork=True))]).verdict == "ok"
    assert plane.list("v1", "Pod") == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"serviceAccountName": "none"}, 'serviceaccount "none" not found'),
        ({"priorityClassName": "none"}, "no PriorityClass with name none was found"),
        ({"hostNetwork": "yes"}, "cannot unmarshal string"),
        ({"hostNetworks": True}, 'unknown field "spec.hostNetworks"'),
    ],
)
def test_pod_is_refused_in_the_servers_words(plane: Client, spec: Thing, said: str) -> None:
    """The finding about a refused pod quotes the server."""
    found = only(AdmissionAccepted(target="pod"), objects=[job_of(pod(**spec))])
    assert (found.verdict, said in found.detail) == ("failed", True), found.detail


def test_quota_is_told(plane: Client, make: Make) -> None:
    """A pod that would exceed a quota fails the check, and the remedy shows the quota."""
    make("v1", "ResourceQuota", "none", spec={"hard": {"pods": "0"}})
    wait(lambda: "exceeded quota: none, requested: pods=1" in only(AdmissionAccepted(target="pod")).detail)
    assert "describe quota" in only(AdmissionAccepted(target="pod")).remedy


def test_refusal_of_a_controllers_webhook_is_told_as_it_came(plane: Client) -> None:
    """The finding about a refused Job quotes Volcano's webhook."""
    needs_kind(plane, JOBS)
    found = refused(vcjob(minAvailable=3))
    assert "Job job is refused: admission webhook" in found.detail
    assert "'minAvailable' should not be greater than total replicas in tasks" in found.detail


def test_good_job_is_accepted_and_not_made(plane: Client) -> None:
    """A dry run of a good Job passes the webhooks and creates no Job."""
    needs_kind(plane, JOBS)
    assert refused(vcjob()).verdict == "ok"
    assert plane.list("batch.volcano.sh/v1alpha1", "Job") == []


def test_every_refused_object_is_told(plane: Client) -> None:
    """One finding has a sentence for each of two bad objects, and none for the good one."""
    bad = {**config_map("b"), "dada": {}}, {**config_map("C")}
    found = refused(config_map("a"), *bad)
    assert 'unknown field "dada"' in found.detail
    assert 'ConfigMap "C" is invalid' in found.detail
    assert "ConfigMap a" not in found.detail


def test_webhook_that_does_not_answer_is_told(plane: Client, make: Make) -> None:
    """If a webhook's Service is gone, all its objects are refused, and the remedy names the Service."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
    hook: Thing = {"name": "lost.torchyard.test", "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    hook |= {"clientConfig": {"service": {"namespace": SPACE, "name": "nowhere"}}, "rules": [rule]}
    hook |= {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SPACE}}}
    hook |= {"objectSelector": {"matchLabels": {MARK: "webhook"}}}
    make("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", SPACE, webhooks=[hook])
    marked = config_map("a", labels={MARK: "webhook"})
    wait(lambda: 'failed calling webhook "lost.torchyard.test"' in refused(marked).detail)
    assert f"`kubectl -n {SPACE} get endpoints nowhere`" in refused(marked).remedy


def test_name_that_is_taken_tells_by_whom(plane: Client, make: Make) -> None:
    """If a name is taken, the finding says by which run; the run's own object passes."""
    make("v1", "ConfigMap", "theirs", labels={"torchyard/run": "another"})
    make("v1", "ConfigMap", "foreign")
    make("v1", "ConfigMap", "ours", labels={**LABELS, "more": "yes"})
    assert "ConfigMap theirs already exists, and belongs to the run another" in refused(config_map("theirs")).detail
    assert "ConfigMap foreign already exists, and does not belong to this run" in refused(config_map("foreign")).detail
    found = refused(config_map("ours"))
    assert (found.verdict, found.detail) == ("ok", "ConfigMap ours already exists, and belongs to this run")


def test_advice_is_a_warning(plane: Client) -> None:
    """Advice is reported as a warning, which does not fail the preflight."""
    assert only(Advice(topic="image a:latest", detail="has no fixed tag")).verdict == "warning"
