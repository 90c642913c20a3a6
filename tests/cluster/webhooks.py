"""The webhook configurations of the controllers, pointed at processes on loopback."""

from tests.cluster.api import Object
from tests.cluster.certificates import text
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


def webhooks(plane: Plane) -> list[Object]:
    dispatcher = appwrapper(plane) if plane.dispatcher == "appwrapper" else []
    return [*volcano(plane), training_operator(plane), *dispatcher, *jobset(plane)]


def volcano(plane: Plane) -> list[Object]:
    """One configuration for each path, under the name that the webhook manager looks for."""
    base = f"https://127.0.0.1:{plane.facts['ports']['vc-webhook-manager']}"
    found = []
    for path in VOLCANO_WEBHOOKS:
        resource, verb = path.strip("/").split("/")
        version, operations = RESOURCES[resource]
        rule = rule_for(version, resource, operations if verb == "validate" else ["CREATE"])
        name = f"{verb}{resource.removesuffix('s')}.volcano.sh"
        hook = webhook(name, base + path, plane.pair("ca").certificate, rule)
        # As in the chart: Volcano's own namespace stays usable while its webhooks are down.
        hidden = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["volcano-system", "kube-system"],
        }
        hook["namespaceSelector"] = {"matchExpressions": [hidden]}
        kind = "Mutating" if verb == "mutate" else "Validating"
        found.append(configuration(kind, "volcano-admission-service" + path.replace("/", "-"), [hook]))
    return found


def training_operator(plane: Plane) -> Object:
    base = f"https://127.0.0.1:{plane.facts['ports']['training-operator']}"
    authority = plane.pair("training-operator-ca").certificate
    hook = webhook(
        "validator.pytorchjob.training-operator.kubeflow.org",
        f"{base}/validate-kubeflow-org-v1-pytorchjob",
        authority,
        rule_for("kubeflow.org/v1", "pytorchjobs", ["CREATE", "UPDATE"]),
    )
    return configuration("Validating", "validator.training-operator.kubeflow.org", [hook])


def appwrapper(plane: Plane) -> list[Object]:
    found = []
    for kind, verb, operations in KUBEBUILDER:
        rule = rule_for("workload.codeflare.dev/v1beta2", "appwrappers", operations)
        url = f"https://127.0.0.1:{APPWRAPPER_PORT}/{verb}-workload-codeflare-dev-v1beta2-appwrapper"
        hook = webhook(f"{verb[0]}appwrapper.kb.io", url, plane.pair("appwrapper-ca").certificate, rule)
        found.append(configuration(kind, f"appwrapper-{kind.lower()}-webhook-configuration", [hook]))
    return found


def jobset(plane: Plane) -> list[Object]:
    """The webhooks of JobSets, and of the pods that belong to one."""
    base, authority = f"https://127.0.0.1:{plane.facts['ports']['jobset']}", plane.pair("ca").certificate
    pods = rule_for("v1", "pods", ["CREATE"])
    member = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
    found = []
    for kind, verb, operations in KUBEBUILDER:
        rule = rule_for("jobset.x-k8s.io/v1alpha2", "jobsets", operations)
        job = webhook(f"{verb[0]}jobset.kb.io", f"{base}/{verb}-jobset-x-k8s-io-v1alpha2-jobset", authority, rule)
        pod = webhook(f"{verb[0]}pod.kb.io", f"{base}/{verb}--v1-pod", authority, pods)
        hooks = [job, pod | {"objectSelector": member}]
        found.append(configuration(kind, f"jobset-{kind.lower()}-webhook-configuration", hooks))
    return found


def configuration(kind: str, name: str, hooks: list[Object]) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": hooks,
    }


def webhook(name: str, url: str, authority: bytes, rule: Object) -> Object:
    return {
        "name": name,
        "clientConfig": {"url": url, "caBundle": text(authority)},
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 10,
    }


def rule_for(version: str, resource: str, operations: list[str]) -> Object:
    group, _, number = version.rpartition("/")
    return {"apiGroups": [group], "apiVersions": [number], "resources": [resource], "operations": operations}
