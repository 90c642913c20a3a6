"""Does the cluster have all that the plan needs? Requirements are checked in parallel; each makes one finding."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_never

from torchyard.cluster.checks.admission import check_admission
from torchyard.cluster.checks.capacity import check_capacity
from torchyard.cluster.checks.permissions import RBAC_COMMAND, check_permissions
from torchyard.cluster.checks.references import check_reference
from torchyard.common.local_errors import START_TIMEOUT_S, retry_step
from torchyard.kube import client
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    Check,
    Controller,
    CrdServed,
    OpenQueue,
    Permission,
    ReferencedObject,
    WritableFolder,
    failed_check,
    passed_check,
    warning_check,
)

_MAX_PARALLEL_CHECKS = 8
CheckedRequirement = CrdServed | Controller | OpenQueue | Capacity | ReferencedObject | AdmissionAccepted | Advice


def check_cluster(plan: ManifestPlan) -> tuple[Check, ...]:
    """One check for all rights and one per requirement; a single one if the cluster is away or rejects this user."""
    try:
        api = client.get_cluster_client(plan.cluster)
    except ClusterError as error:
        return (failed_check(error.host, f"{error.action}: {error.message}", ""),)
    if closed := _check_connection(api):
        return (closed,)
    missing = _check_namespace(api)
    rights = [need for need in plan.requires if isinstance(need, Permission)]
    needs = [need for need in plan.requires if not isinstance(need, WritableFolder | Permission)]
    asked = [need for need in needs if not (missing and _is_namespaced(need))]
    with ThreadPoolExecutor(_MAX_PARALLEL_CHECKS) as pool:
        granted = pool.submit(check_permissions, api, rights)
        found = pool.map(lambda need: _check_requirement(api, plan, need), asked)
        checks = (*granted.result(), *found)
    return (missing, *checks) if missing else checks


def _is_namespaced(need: CheckedRequirement) -> bool:
    """Whether a requirement cannot be checked without the namespace."""
    return isinstance(need, AdmissionAccepted) or (isinstance(need, ReferencedObject) and need.namespace is None)


def _check_requirement(api: Client, plan: ManifestPlan, need: CheckedRequirement) -> Check:
    """The finding of one requirement; what this user may not read is a warning."""
    try:
        return _query_requirement(api, plan, need)
    except ClusterError as error:
        if error.status == 403:
            return warning_check(
                _requirement_title(need),
                f"cannot be checked: {error.message}",
                f"{RBAC_COMMAND} makes a role that may read it",
            )
        return failed_check(_requirement_title(need), f"cannot be checked: {error.action}: {error.message}", "")


def _query_requirement(api: Client, plan: ManifestPlan, need: CheckedRequirement) -> Check:
    """What the cluster says about one requirement. Raises ClusterError if it does not answer."""
    name = _requirement_title(need)
    match need:
        case CrdServed():
            found = _check_crd_served(api, need, name)
        case Controller():
            found = _check_controller(api, need, name)
        case OpenQueue():
            found = check_queue(api, need, name)
        case Capacity():
            found = check_capacity(api, need, name)
        case ReferencedObject():
            found = check_reference(api, need, name, sum(plan.tasks.values()))
        case AdmissionAccepted():
            found = check_admission(api, need, name, plan)
        case Advice():
            found = warning_check(name, need.detail)
        case _:
            assert_never(need)
    return found


def _requirement_title(need: CheckedRequirement) -> str:
    """The name of a requirement in reports."""
    match need:
        case CrdServed():
            name = f"kind {need.crd} {need.version}"
        case Controller():
            name = f"controller {need.label}"
        case OpenQueue():
            name = f"queue {need.name}"
        case Capacity():
            name = f"room for {need.pods} {'pod' if need.pods == 1 else 'pods'}"
        case ReferencedObject():
            name = f"{need.object_kind} {need.namespace + '/' if need.namespace else ''}{need.name}"
        case AdmissionAccepted():
            name = "admission of the job" if need.target == "objects" else "admission of its pods"
        case Advice():
            name = need.topic
        case _:
            assert_never(need)
    return name


# --- the cluster itself


def await_api_server(plan: ManifestPlan) -> None:
    """Wait for an API server that is away, as every other step does; if it stays away, its check reports it."""
    with contextlib.suppress(ClusterError):
        api = client.get_cluster_client(plan.cluster)
        retry_step(START_TIMEOUT_S)(api.ping)()


def _check_connection(api: Client) -> Check | None:
    """The finding that the cluster cannot be queried at all; None if it can."""
    name = f"cluster {api.context or api.host}"
    try:
        api.ping()
    except ClusterError as error:
        flags = f" --context {api.context}" if api.context else ""
        if error.status == 0 or error.status >= 429:  # away, or busy
            return failed_check(
                name, f"{api.host} does not answer: {error.message}", f"see `kubectl{flags} cluster-info`"
            )
        if error.status == 401 or "system:anonymous" in error.message:
            detail = f"{api.host} refuses the credentials of the kubeconfig: {error.message}"
            return failed_check(name, detail, f"log in again; `kubectl{flags} auth whoami` shows whether that helped")
    return None


def _check_namespace(api: Client) -> Check | None:
    """The finding that the namespace is missing or being deleted; None if it exists, or may not be read."""
    name, create = f"namespace {api.namespace}", f"`kubectl create namespace {api.namespace}`"
    try:
        found = api.get("v1", "Namespace", api.namespace, namespace=None)
    except ClusterError:
        return None
    if found is None:
        return failed_check(name, "there is no such namespace", create)
    if found.get("status", {}).get("phase") == "Terminating":
        return failed_check(name, "is being deleted", f"wait until it is gone, then {create}")
    return None


# --- kinds and their controllers


def _check_crd_served(api: Client, need: CrdServed, name: str) -> Check:
    plural, _, group = need.crd.partition(".")
    if plural in _list_resources(api, f"{group}/{need.version}"):
        return passed_check(name, "is served")
    served = _discover_api(api, f"/apis/{group}").get("versions", [])
    versions = [each["version"] for each in served if plural in _list_resources(api, each["groupVersion"])]
    if versions:
        return failed_check(
            name, f"is served as {', '.join(versions)} only", f"install a release that has it: {need.install}"
        )
    others = ", ".join(_find_namesakes(api, plural, group))
    other = f"; {others} is another kind of the same name" if others else ""
    return failed_check(name, f"is not installed{other}", need.install)


def _list_resources(api: Client, version: str) -> set[str]:
    """The plural names that the API server serves in a group's version."""
    return {each["name"] for each in _discover_api(api, f"/apis/{version}").get("resources", [])}


def _find_namesakes(api: Client, plural: str, group: str) -> list[str]:
    """Kinds with the same plural name in other groups, except Kubernetes' own."""
    known = _discover_api(api, "/apis").get("groups", [])
    others = [each for each in known if "." in each["name"] and not each["name"].endswith((".k8s.io", group))]
    holding = [each for each in others if plural in _list_resources(api, each["preferredVersion"]["groupVersion"])]
    return [f"{plural}.{each['name']}" for each in holding]


def _discover_api(api: Client, path: str) -> dict[str, Any]:
    """What the API server reports about its kinds; this needs no right to read CRDs."""
    try:
        return api.request("GET", path)
    except ClusterError as error:
        if error.status == 404:
            return {}
        raise


def _check_controller(api: Client, need: Controller, name: str) -> Check:
    found = api.list("apps/v1", "Deployment", {"labelSelector": need.label}, everywhere=True)
    if not found and need.deployment:
        found = api.list(
            "apps/v1", "Deployment", {"fieldSelector": f"metadata.name={need.deployment}"}, everywhere=True
        )
    if not found:
        return failed_check(
            name, "no namespace has a Deployment with this label", "install it, or see `kubectl get deploy -A`"
        )
    ready = [each for each in found if each.get("status", {}).get("availableReplicas", 0)]
    if not ready:
        meta = found[0]["metadata"]
        remedy = f"see `kubectl -n {meta['namespace']} describe deployment {meta['name']}`"
        return failed_check(name, f"{_describe_deployment(found[0])} has no available pod", remedy)
    if need.gang and not any(_has_flag(each, need.gang) for each in ready):
        which = _describe_deployment(ready[0])
        detail = f"{which} runs without {need.gang}: pods may start one by one and wait for each other"
        return warning_check(name, detail, f"add {need.gang} to the arguments of its container")
    return passed_check(name, _describe_deployment(ready[0]))


def _list_containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return found


def _describe_deployment(deployment: dict[str, Any]) -> str:
    """Namespace, name and the image's tag."""
    image = _list_containers(deployment)[0].get("image", "").partition("@")[0].rpartition("/")[2]
    meta, tag = deployment["metadata"], image.partition(":")[2]
    return f"{meta['namespace']}/{meta['name']}" + (f" {tag}" if tag else "")


def _has_flag(deployment: dict[str, Any], flag: str) -> bool:
    """Whether a container has the flag, as one argument (--a=b) or as two; the value `none` counts as no flag."""
    words = [
        word for each in _list_containers(deployment) for word in (*each.get("command", ()), *each.get("args", ()))
    ]
    given, wanted = f" {' '.join(words)} ".replace("=", " "), f" {flag} ".replace("=", " ")
    return wanted in given and f"{wanted}none " not in given


def check_queue(api: Client, need: OpenQueue, name: str) -> Check:
    version = "scheduling.volcano.sh/v1beta1"
    found = api.get(version, "Queue", need.name, namespace=None)
    state = found.get("status", {}).get("state") if found else None
    if state == "Open":
        return passed_check(name, "is open")
    queues = api.list(version, "Queue", everywhere=True)
    others = [each["metadata"]["name"] for each in queues if each.get("status", {}).get("state") == "Open"]
    detail = "there is no such queue" if found is None else f"is {state}" if state else "has no state yet"
    remedy = "choose one with options.queue" if others else "see that Volcano's controller and scheduler run"
    return failed_check(name, f"{detail}; open queues: {', '.join(sorted(others)) or 'none'}", remedy)
