"""The objects of a cluster with job controllers and a network operator installed."""

import json
from typing import Any

import yaml

from tests.cluster import build, fake
from tests.cluster.api import Object
from tests.cluster.certificates import encode_base64
from tests.cluster.components import OPERATORS
from tests.cluster.plane import Plane
from torchyard.kube.client import Client

NAMESPACES = ("default", "volcano-system", "kubeflow", "appwrapper-system", "jobset-system", fake.PLUGIN_NAMESPACE)
# No test creates them, but Volcano's informers need their definitions.
UNUSED_CRDS = ("cronjobs.batch.volcano.sh", "jobflows.flow.volcano.sh", "jobtemplates.flow.volcano.sh")
USER = "torchyard"
FLOW_SCHEMA = "torchyard-user"
RBAC_FILE = fake.ROOT / "deploy" / "kubernetes" / "rbac.yaml"  # what a user of torchyard needs


def build_namespaces() -> list[Object]:
    """The namespaces of the components and of secondary networks; the API server itself creates kube-system."""
    network_namespaces = {network["metadata"]["namespace"] for network in build_networks()} - {"kube-system"}
    names = dict.fromkeys((*NAMESPACES, *sorted(network_namespaces)))
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]


def load_crds(dispatcher: str) -> list[Object]:
    """Every CRD: those kept by the build, and the one of secondary networks."""
    crds: list[Object] = []
    for path in build.list_crd_files(dispatcher):
        crd = json.loads(path.read_text())
        crds.append(drop_schema(crd) if crd["metadata"]["name"] in UNUSED_CRDS else crd)
    return [*crds, build_network_crd()]


def drop_schema(definition: Object) -> Object:
    """A CRD that accepts anything: each schema with a pod in it costs the API server half a second."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [version | {"schema": schema} for version in definition["spec"]["versions"]]
    return definition | {"spec": definition["spec"] | {"versions": versions}}


def build_network_crd() -> Object:
    """The CRD of NetworkAttachmentDefinitions; its schema holds only what the API specifies."""
    names = {"kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions"}
    names |= {"singular": "network-attachment-definition"}
    config = {"type": "object", "properties": {"config": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": config}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {"group": "k8s.cni.cncf.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def build_networks() -> list[Object]:
    """The secondary networks that the hardware files' pods name; those without a namespace are in `default`."""
    full_names: set[str] = set()
    for hardware in fake.read_hardware_files().values():
        for fabric in hardware["fabrics"].values():
            full_names.update(fabric.get("pod", {}).get("networks", {}))
    networks = []
    for full_name in sorted(full_names):
        namespace, _, name = full_name.rpartition("/")
        networks.append(build_network(namespace or "default", name))
    return networks


def build_network(namespace: str, name: str) -> Object:
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"config": json.dumps({"cniVersion": "0.3.1", "name": name, "type": "sriov"})},
    }


def build_priority_class(name: str) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1}


def build_queues() -> list[Object]:
    """Volcano's initial queues, as its scheduler would create them; the webhook of queues is registered later."""
    spec: Object = {"reclaimable": False, "weight": 1}
    return [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec | extra_spec,
        }
        for name, extra_spec in (("root", {}), ("default", {"parent": "root", "reclaimable": True}))
    ]


def build_operator_secrets(plane: Plane) -> list[Object]:
    """The certificates of the operators' webhooks: complete sets, which their rotation does not replace."""
    names = {"training-operator": "training-operator-webhook-cert", "appwrapper": "appwrapper-webhook-server-cert"}
    secrets = []
    for operator, name in names.items():
        authority = plane.read_certificate(f"{operator}-ca")
        certificate = plane.read_certificate(operator)
        data = {"ca.crt": authority.certificate, "ca.key": authority.key}
        data |= {"tls.crt": certificate.certificate, "tls.key": certificate.key}
        secrets.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": OPERATORS[operator].namespace},
                "data": {key: encode_base64(value) for key, value in data.items()},
            }
        )
    return secrets


def build_appwrapper_settings(plane: Plane) -> Object:
    """AppWrapper's settings: its defaults except for its addresses and the folder of its certificate."""
    ports = plane.record["ports"]
    certificate_folder = plane.state_folder / "tmp/appwrapper/k8s-webhook-server/serving-certs"
    settings = {
        "controllerManager": {
            "health": {"bindAddress": f"127.0.0.1:{ports['appwrapper-health']}"},
            "metrics": {"bindAddress": "0"},
            "leaderElection": False,
        },
        "certManagement": {"certificateDir": str(certificate_folder)},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "appwrapper-operator-config", "namespace": "appwrapper-system"},
        "data": {"config.yaml": yaml.safe_dump(settings)},
    }


# --- the Deployments by which preflight finds the controllers --------------------------------------------------------


# The pin, the Deployment, its label, and its image.
CONTROLLERS = (
    ("volcano", "volcano-system/volcano-scheduler", "app=volcano-scheduler", "volcanosh/vc-scheduler"),
    ("volcano", "volcano-system/volcano-controllers", "app=volcano-controller", "volcanosh/vc-controller-manager"),
    ("volcano", "volcano-system/volcano-admission", "app=volcano-admission", "volcanosh/vc-webhook-manager"),
    (
        "training-operator",
        "kubeflow/training-operator",
        "control-plane=kubeflow-training-operator",
        "kubeflow/training-operator",
    ),
    (
        "appwrapper",
        "appwrapper-system/appwrapper-controller-manager",
        "app.kubernetes.io/name=appwrapper",
        "quay.io/ibm/appwrapper",
    ),
    (
        "mcad",
        "kube-system/mcad-controller",
        "app=custom-metrics-apiserver",
        "quay.io/project-codeflare/mcad-controller",
    ),
    (
        "jobset",
        "jobset-system/jobset-controller-manager",
        "app.kubernetes.io/name=jobset",
        "registry.k8s.io/jobset/jobset",
    ),
)
CONTROLLER_ARGS = {"training-operator": ["--gang-scheduler-name=volcano"]}


def build_deployments(dispatcher: str) -> list[Object]:
    """The controllers' Deployments, with fake pods; the real controllers run as processes."""
    components = build.select_components(dispatcher)
    return [
        build_deployment(
            full_name, label, f"{image}:{build.read_module_version(components[pin])}", CONTROLLER_ARGS.get(pin)
        )
        for pin, full_name, label, image in CONTROLLERS
        if pin in components
    ]


def build_deployment(full_name: str, label: str, image: str, args: list[str] | None = None) -> Object:
    """A Deployment `namespace/name` with a `key=value` label and one container."""
    namespace, _, name = full_name.partition("/")
    key, _, value = label.partition("=")
    container: Object = {"name": name, "image": image}
    if args:
        container["args"] = args
    template = {
        "metadata": {"labels": {key: value}},
        "spec": {"nodeSelector": fake.FAKE_LABEL, "containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {key: value}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {key: value}}, "template": template},
    }


# --- the user --------------------------------------------------------------------------------------------------------


def build_user_rights() -> list[Object]:
    """The rights of user torchyard, those of deploy/kubernetes/rbac.yaml, and a flow schema that counts its requests.

    apiserver_flowcontrol_dispatched_requests_total{flow_schema="torchyard-user"} counts only this user's requests.
    """
    rights: list[Object] = []
    bindings: list[Object] = []
    documents = yaml.safe_load_all(RBAC_FILE.read_text()) if RBAC_FILE.exists() else ()
    for document in documents:
        if document:
            rights.append(document)
            if document["kind"] == "ClusterRole":
                bindings.append(build_binding(document["metadata"]["name"]))
    return [*rights, *bindings, build_flow_schema()]


def build_binding(role: str) -> Object:
    """A binding of a ClusterRole to user torchyard, in all namespaces."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{role}-of-user-{USER}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
    }


def build_flow_schema() -> Object:
    all_requests: dict[str, Any] = {
        "subjects": [{"kind": "User", "user": {"name": USER}}],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
        ],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": FLOW_SCHEMA},
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-low"},
            "matchingPrecedence": 500,
            "rules": [all_requests],
        },
    }


def delete_by_name(client: Client, api_version: str, kind: str, name: str, *, force: bool = False) -> bool:
    """Delete an object as another user would; return False if there is none."""
    obj = client.get(api_version, kind, name)
    return obj is not None and client.delete(obj, force=force)
