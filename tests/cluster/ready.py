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


def served(api: Api, definition: Object) -> bool:
    """Whether discovery shows a CRD; reading a CRD or its objects would cost the API server a tenth of a second."""
    spec = definition["spec"]
    try:
        found = api.call("GET", f"/apis/{spec['group']}/{spec['versions'][0]['name']}")
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return any(one["name"] == spec["names"]["plural"] for one in found["resources"])


def signs(api: Api, dispatcher: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Every condition of a ready cluster, with the function that checks it."""
    yield (
        "nodes that are Ready",
        lambda: all(has_condition(one, "Ready") for one in api.call("GET", "/api/v1/nodes")["items"]),
    )
    yield "an open queue", lambda: queue_state(api) == "Open"
    yield "a ServiceAccount in namespace default", partial(exists, api, sample("v1", "ServiceAccount", name="default"))
    for one in objects.deployments(dispatcher):
        yield f"Deployment {one['metadata']['name']}", partial(is_available, api, one)
    for one in samples(dispatcher):
        yield f"the webhook of {one['kind']}", partial(admitted, api, one)


def samples(dispatcher: str) -> list[Object]:
    """One object of each kind that has a webhook, for a dry run."""
    pod = {"spec": {"containers": [{"name": "pytorch", "image": "busybox:1"}], "restartPolicy": "Never"}}
    replicas = {"Master": {"replicas": 1, "template": pod}}
    job = {"minAvailable": 1, "tasks": [{"name": "one", "replicas": 1, "template": pod}]}
    inner = {"spec": {"template": pod}}
    wrapped = sample("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas})
    wrapper = sample("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": wrapped}]})
    return [
        sample("batch.volcano.sh/v1alpha1", "Job", job),
        wrapped,
        *([wrapper] if dispatcher == "appwrapper" else []),
        sample("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "node", "template": inner}]}),
    ]


def sample(version: str, kind: str, spec: Object | None = None, name: str = "sample") -> Object:
    named = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}}
    return named | ({"spec": spec} if spec else {})


def admitted(api: Api, thing: Object) -> bool:
    """Whether a dry run passes; until the webhook is up, the API server answers 500."""
    try:
        api.dry_run(thing)
    except ApiError as error:
        if error.status < 500:
            raise ClusterError(f"a sample {thing['kind']} is refused: {error.message}") from error
        return False
    return True


def exists(api: Api, thing: Object) -> bool:
    try:
        api.get(thing)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def queue_state(api: Api) -> str:
    queue = api.call("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/default")
    return str(queue.get("status", {}).get("state", ""))


def is_available(api: Api, deployment: Object) -> bool:
    return bool(api.get(deployment).get("status", {}).get("availableReplicas"))


def has_condition(thing: Object, kind: str) -> bool:
    conditions = thing.get("status", {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def answers(url: str) -> bool:
    """Whether an address answers 200; certificates are not verified."""
    try:
        with urllib.request.urlopen(url, timeout=2, context=ssl._create_unverified_context()) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False
