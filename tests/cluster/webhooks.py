"""The webhook configurations of the controllers, pointed at processes on loopback."""

from tests.cluster.api import Object
from tests.cluster.certificates import encode_base64
from tests.cluster.components import APPWRAPPER_PORT, VOLCANO_WEBHOOKS
from tests.cluster.plane import Plane

RESOURCES = {  # of Volcano's webhooks: group and version, and the operations that are validated
    "jobs": ("batch.volcano.sh/v1alpha1", ["CREATE", "UPDATE"]),
    "cronjobs": ("batch.volcano.sh/v1alpha1", ["CREATE", "UPDATE"]),
    "queues": ("scheduling.volcano.sh/v1beta1", ["CREATE", "UPDATE", "DELETE"]),
    "podgroups": ("scheduling.volcano.sh/v1beta1", ["CREATE"]),
    "hypernodes": ("topology.volcano.sh/v1alpha1", ["CREATE", "UPDATE"]),
}
KUBEBUILDER = (("Mutating", "mutate", ["CREATE"]), ("Validating", "validate", ["CREATE", "UPDATE"]))


def build_webhooks(plane: Plane) -> list[Object]:
    dispatcher = build_appwrapper_webhooks(plane) if plane.dispatcher == "appwrapper" else []
    return [
        *build_volcano_webhooks(plane),
        build_training_operator_webhook(plane),
        *dispatcher,
        *build_jobset_webhooks(plane),
    ]


def build_volcano_webhooks(plane: Plane) -> list[Object]:
    """One configuration for each path, under the name that the webhook manager looks for."""
    base = f"https://127.0.0.1:{plane.record['ports']['vc-webhook-manager']}"
    configurations = []
    for path in VOLCANO_WEBHOOKS:
        resource, verb = path.strip("/").split("/")
        version, operations = RESOURCES[resource]
        rule = build_rule(version, resource, operations if verb == "validate" else ["CREATE"])
        name = f"{verb}{resource.removesuffix('s')}.volcano.sh"
        hook = build_webhook(name, base + path, plane.read_certificate("ca").certificate, rule)
        # As in the chart: Volcano's own namespace stays usable while its webhooks are down.
        not_system = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["volcano-system", "kube-system"],
        }
        hook["namespaceSelector"] = {"matchExpressions": [not_system]}
        kind = "Mutating" if verb == "mutate" else "Validating"
        configurations.append(build_configuration(kind, "volcano-admission-service" + path.replace("/", "-"), [hook]))
    return configurations


def build_training_operator_webhook(plane: Plane) -> Object:
    base = f"https://127.0.0.1:{plane.record['ports']['training-operator']}"
    authority = plane.read_certificate("training-operator-ca").certificate
    hook = build_webhook(
        "validator.pytorchjob.training-operator.kubeflow.org",
        f"{base}/validate-kubeflow-org-v1-pytorchjob",
        authority,
        build_rule("kubeflow.org/v1", "pytorchjobs", ["CREATE", "UPDATE"]),
    )
    return build_configuration("Validating", "validator.training-operator.kubeflow.org", [hook])


def build_appwrapper_webhooks(plane: Plane) -> list[Object]:
    configurations = []
    for kind, verb, operations in KUBEBUILDER:
        rule = build_rule("workload.codeflare.dev/v1beta2", "appwrappers", operations)
        url = f"https://127.0.0.1:{APPWRAPPER_PORT}/{verb}-workload-codeflare-dev-v1beta2-appwrapper"
        hook = build_webhook(
            f"{verb[0]}appwrapper.kb.io", url, plane.read_certificate("appwrapper-ca").certificate, rule
        )
        configurations.append(build_configuration(kind, f"appwrapper-{kind.lower()}-webhook-configuration", [hook]))
    return configurations


def build_jobset_webhooks(plane: Plane) -> list[Object]:
    """The webhooks of JobSets, and of the pods that belong to one."""
    base = f"https://127.0.0.1:{plane.record['ports']['jobset']}"
    authority = plane.read_certificate("ca").certificate
    pods = build_rule("v1", "pods", ["CREATE"])
    of_jobset = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
    configurations = []
    for kind, verb, operations in KUBEBUILDER:
        rule = build_rule("jobset.x-k8s.io/v1alpha2", "jobsets", operations)
        job = build_webhook(f"{verb[0]}jobset.kb.io", f"{base}/{verb}-jobset-x-k8s-io-v1alpha2-jobset", authority, rule)
        pod = build_webhook(f"{verb[0]}pod.kb.io", f"{base}/{verb}--v1-pod", authority, pods)
        hooks = [job, pod | {"objectSelector": of_jobset}]
        configurations.append(build_configuration(kind, f"jobset-{kind.lower()}-webhook-configuration", hooks))
    return configurations


def build_configuration(kind: str, name: str, hooks: list[Object]) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": hooks,
    }


def build_webhook(name: str, url: str, authority: bytes, rule: Object) -> Object:
    return {
        "name": name,
        "clientConfig": {"url": url, "caBundle": encode_base64(authority)},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 10,
    }


def build_rule(api_version: str, resource: str, operations: list[str]) -> Object:
    group, _, version = api_version.rpartition("/")
    return {"apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": operations}
