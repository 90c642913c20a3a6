"""Checks that must pass before a cluster is ready to use: nodes, queue, controllers, webhooks."""

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

from tests.cluster import objects
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.plane import ClusterError


def is_served(api: Api, definition: Object) -> bool:
    """Whether discovery lists a CRD; reading the CRD or its objects would cost the API server a tenth of a second."""
    spec = definition["spec"]
    try:
        response = api.call("GET", f"/apis/{spec['group']}/{spec['versions'][0]['name']}")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return any(resource["name"] == spec["names"]["plural"] for resource in response["resources"])


def iter_readiness_checks(api: Api, dispatcher: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield every condition of a ready cluster, with the function that checks it."""
    yield "nodes that are Ready", partial(all_nodes_are_ready, api)
    yield "an open queue", lambda: read_queue_state(api) == "Open"
    account = build_sample("v1", "ServiceAccount", name="default")
    yield "a ServiceAccount in namespace default", partial(object_exists, api, account)
    for deployment in objects.build_deployments(dispatcher):
        yield f"Deployment {deployment['metadata']['name']}", partial(is_available, api, deployment)
    for obj in build_samples(dispatcher):
        yield f"the webhook of {obj['kind']}", partial(is_admitted, api, obj)


def all_nodes_are_ready(api: Api) -> bool:
    return all(has_condition(node, "Ready") for node in api.call("GET", "/api/v1/nodes")["items"])


def build_samples(dispatcher: str) -> list[Object]:
    """One object of each kind that has a webhook, for a dry run."""
    pod = {"spec": {"containers": [{"name": "pytorch", "image": "busybox:1"}], "restartPolicy": "Never"}}
    replicas = {"Master": {"replicas": 1, "template": pod}}
    volcano_spec = {"minAvailable": 1, "tasks": [{"name": "one", "replicas": 1, "template": pod}]}
    job_spec = {"spec": {"template": pod}}
    pytorchjob = build_sample("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas})
    samples = [build_sample("batch.volcano.sh/v1alpha1", "Job", volcano_spec), pytorchjob]
    if dispatcher == "appwrapper":
        wrapper_spec = {"components": [{"template": pytorchjob}]}
        samples.append(build_sample("workload.codeflare.dev/v1beta2", "AppWrapper", wrapper_spec))
    jobset_spec = {"replicatedJobs": [{"name": "node", "template": job_spec}]}
    samples.append(build_sample("jobset.x-k8s.io/v1alpha2", "JobSet", jobset_spec))
    return samples


def build_sample(api_version: str, kind: str, spec: Object | None = None, name: str = "sample") -> Object:
    obj: Object = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "default"}}
    if spec:
        obj["spec"] = spec
    return obj


def is_admitted(api: Api, obj: Object) -> bool:
    """Whether a dry run passes; until the webhook is up, the API server answers 500. ClusterError if it is refused."""
    try:
        api.dry_run(obj)
    except ApiError as error:
        if error.status < 500:
            raise ClusterError(f"a sample {obj['kind']} is refused: {error.message}") from error
        return False
    return True


def object_exists(api: Api, obj: Object) -> bool:
    """Whether an object exists; raises ApiError if the read fails with another status than 404."""
    try:
        api.get(obj)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def read_queue_state(api: Api) -> str:
    """The state of Volcano's queue `default`, such as "Open"; "" if it has none yet."""
    queue = api.call("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/default")
    return str(queue.get("status", {}).get("state", ""))


def is_available(api: Api, deployment: Object) -> bool:
    """Whether a Deployment has an available replica."""
    return bool(api.get(deployment).get("status", {}).get("availableReplicas"))


def has_condition(obj: Object, kind: str) -> bool:
    """Whether a condition of this type is True."""
    conditions = obj.get("status", {}).get("conditions") or []
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)


def responds_ok(url: str) -> bool:
    """Whether an address answers 200; certificates are not verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False
