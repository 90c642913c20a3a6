"""Does the cluster have all that the plan needs? Requirements are checked in parallel; each makes one finding."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_never

from torchyard.cluster.checks.admission import check_admission
from torchyard.cluster.checks.capacity import check_capacity
from torchyard.cluster.checks.permissions import RBAC_COMMAND, check_permissions
from torchyard.cluster.checks.references import check_reference
from torchyard.common.local_errors import START_TIMEOUT_S, retry_step
from torchyard.kube.client import Client, get_cluster_client
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
        client = get_cluster_client(plan.cluster)
    except ClusterError as error:
        return (failed_check(error.host, f"{error.action}: {error.message}", ""),)
    if refusal := _check_connection(client):
        return (refusal,)
    namespace_check = _check_namespace(client)
    permissions = [requirement for requirement in plan.requires if isinstance(requirement, Permission)]
    requirements = [
        requirement for requirement in plan.requires if not isinstance(requirement, WritableFolder | Permission)
    ]
    checkable = [requirement for requirement in requirements if not (namespace_check and _is_namespaced(requirement))]
    with ThreadPoolExecutor(_MAX_PARALLEL_CHECKS) as pool:
        granted = pool.submit(check_permissions, client, permissions)
        requirement_checks = pool.map(lambda requirement: _check_requirement(client, plan, requirement), checkable)
        checks = (*granted.result(), *requirement_checks)
    return (namespace_check, *checks) if namespace_check else checks


def _is_namespaced(requirement: CheckedRequirement) -> bool:
    """Whether a requirement cannot be checked without the namespace."""
    return isinstance(requirement, AdmissionAccepted) or (
        isinstance(requirement, ReferencedObject) and requirement.namespace is None
    )


def _check_requirement(client: Client, plan: ManifestPlan, requirement: CheckedRequirement) -> Check:
    """The finding of one requirement; what this user may not read is a warning."""
    try:
        return _query_requirement(client, plan, requirement)
    except ClusterError as error:
        if error.status == 403:
            return warning_check(
                _format_requirement_title(requirement),
                f"cannot be checked: {error.message}",
                f"{RBAC_COMMAND} makes a role that may read it",
            )
        return failed_check(
            _format_requirement_title(requirement), f"cannot be checked: {error.action}: {error.message}", ""
        )


def _query_requirement(client: Client, plan: ManifestPlan, requirement: CheckedRequirement) -> Check:
    """What the cluster says about one requirement. Raises ClusterError if it does not answer."""
    name = _format_requirement_title(requirement)
    match requirement:
        case CrdServed():
            check = _check_crd_served(client, requirement, name)
        case Controller():
            check = _check_controller(client, requirement, name)
        case OpenQueue():
            check = check_queue(client, requirement, name)
        case Capacity():
            check = check_capacity(client, requirement, name)
        case ReferencedObject():
            check = check_reference(client, requirement, name, sum(plan.tasks.values()))
        case AdmissionAccepted():
            check = check_admission(client, requirement, name, plan)
        case Advice():
            check = warning_check(name, requirement.detail)
        case _:
            assert_never(requirement)
    return check


def _format_requirement_title(requirement: CheckedRequirement) -> str:
    """The name of a requirement in reports."""
    match requirement:
        case CrdServed():
            name = f"kind {requirement.crd} {requirement.version}"
        case Controller():
            name = f"controller {requirement.label}"
        case OpenQueue():
            name = f"queue {requirement.name}"
        case Capacity():
            name = f"room for {requirement.pods} {'pod' if requirement.pods == 1 else 'pods'}"
        case ReferencedObject():
            prefix = f"{requirement.namespace}/" if requirement.namespace else ""
            name = f"{requirement.object_kind} {prefix}{requirement.name}"
        case AdmissionAccepted():
            name = "admission of the job" if requirement.target == "objects" else "admission of its pods"
        case Advice():
            name = requirement.topic
        case _:
            assert_never(requirement)
    return name


# --- the cluster itself


def await_api_server(plan: ManifestPlan) -> None:
    """Wait for an API server that is away, as every other step does; if it stays away, its check reports it."""
    with contextlib.suppress(ClusterError):
        client = get_cluster_client(plan.cluster)
        retry_step(START_TIMEOUT_S)(client.ping)()


def _check_connection(client: Client) -> Check | None:
    """The finding that the cluster cannot be queried at all; None if it can."""
    name = f"cluster {client.context or client.host}"
    try:
        client.ping()
    except ClusterError as error:
        flags = f" --context {client.context}" if client.context else ""
        if error.status == 0 or error.status >= 429:  # away, or busy
            return failed_check(
                name, f"{client.host} does not answer: {error.message}", f"see `kubectl{flags} cluster-info`"
            )
        if error.status == 401 or "system:anonymous" in error.message:
            detail = f"{client.host} refuses the credentials of the kubeconfig: {error.message}"
            return failed_check(name, detail, f"log in again; `kubectl{flags} auth whoami` shows whether that helped")
    return None


def _check_namespace(client: Client) -> Check | None:
    """The finding that the namespace is missing or being deleted; None if it exists, or may not be read."""
    name, create_command = f"namespace {client.namespace}", f"`kubectl create namespace {client.namespace}`"
    try:
        namespace = client.get("v1", "Namespace", client.namespace, namespace=None)
    except ClusterError:
        return None
    if namespace is None:
        return failed_check(name, "there is no such namespace", create_command)
    if namespace.get("status", {}).get("phase") == "Terminating":
        return failed_check(name, "is being deleted", f"wait until it is gone, then {create_command}")
    return None


# --- kinds and their controllers


def _check_crd_served(client: Client, requirement: CrdServed, name: str) -> Check:
    plural, _, group = requirement.crd.partition(".")
    if plural in _list_resources(client, f"{group}/{requirement.version}"):
        return passed_check(name, "is served")
    served = _discover_api(client, f"/apis/{group}").get("versions", [])
    versions = [
        served_version["version"]
        for served_version in served
        if plural in _list_resources(client, served_version["groupVersion"])
    ]
    if versions:
        return failed_check(
            name, f"is served as {', '.join(versions)} only", f"install a release that has it: {requirement.install}"
        )
    others = ", ".join(_find_namesakes(client, plural, group))
    other = f"; {others} is another kind of the same name" if others else ""
    return failed_check(name, f"is not installed{other}", requirement.install)


def _list_resources(client: Client, version: str) -> set[str]:
    """The plural names that the API server serves in a group's version."""
    return {resource["name"] for resource in _discover_api(client, f"/apis/{version}").get("resources", [])}


def _find_namesakes(client: Client, plural: str, group: str) -> list[str]:
    """Kinds with the same plural name in other groups, except Kubernetes' own."""
    groups = _discover_api(client, "/apis").get("groups", [])
    others = [
        other_group
        for other_group in groups
        if "." in other_group["name"] and not other_group["name"].endswith((".k8s.io", group))
    ]
    namesakes = [
        other_group
        for other_group in others
        if plural in _list_resources(client, other_group["preferredVersion"]["groupVersion"])
    ]
    return [f"{plural}.{namesake['name']}" for namesake in namesakes]


def _discover_api(client: Client, path: str) -> dict[str, Any]:
    """What the API server reports about its kinds; this needs no right to read CRDs."""
    try:
        return client.request("GET", path)
    except ClusterError as error:
        if error.status == 404:
            return {}
        raise


def _check_controller(client: Client, requirement: Controller, name: str) -> Check:
    deployments = client.list("apps/v1", "Deployment", {"labelSelector": requirement.label}, everywhere=True)
    if not deployments and requirement.deployment:
        deployments = client.list(
            "apps/v1", "Deployment", {"fieldSelector": f"metadata.name={requirement.deployment}"}, everywhere=True
        )
    if not deployments:
        return failed_check(
            name, "no namespace has a Deployment with this label", "install it, or see `kubectl get deploy -A`"
        )
    ready = [deployment for deployment in deployments if deployment.get("status", {}).get("availableReplicas", 0)]
    if not ready:
        metadata = deployments[0]["metadata"]
        remedy = f"see `kubectl -n {metadata['namespace']} describe deployment {metadata['name']}`"
        return failed_check(name, f"{_describe_deployment(deployments[0])} has no available pod", remedy)
    if requirement.gang and not any(_has_flag(deployment, requirement.gang) for deployment in ready):
        title = _describe_deployment(ready[0])
        detail = f"{title} runs without {requirement.gang}: pods may start one by one and wait for each other"
        return warning_check(name, detail, f"add {requirement.gang} to the arguments of its container")
    return passed_check(name, _describe_deployment(ready[0]))


def _list_containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def _describe_deployment(deployment: dict[str, Any]) -> str:
    """Namespace, name and the image's tag."""
    image = _list_containers(deployment)[0].get("image", "").partition("@")[0].rpartition("/")[2]
    metadata, tag = deployment["metadata"], image.partition(":")[2]
    return f"{metadata['namespace']}/{metadata['name']}" + (f" {tag}" if tag else "")


def _has_flag(deployment: dict[str, Any], flag: str) -> bool:
    """Whether a container has the flag, as one argument (--a=b) or as two; the value `none` counts as no flag."""
    arguments = [
        argument
        for container in _list_containers(deployment)
        for argument in (*container.get("command", ()), *container.get("args", ()))
    ]
    command_line, flag_text = f" {' '.join(arguments)} ".replace("=", " "), f" {flag} ".replace("=", " ")
    return flag_text in command_line and f"{flag_text}none " not in command_line


def check_queue(client: Client, requirement: OpenQueue, name: str) -> Check:
    version = "scheduling.volcano.sh/v1beta1"
    queue = client.get(version, "Queue", requirement.name, namespace=None)
    state = queue.get("status", {}).get("state") if queue else None
    if state == "Open":
        return passed_check(name, "is open")
    queues = client.list(version, "Queue", everywhere=True)
    open_queues = [
        other_queue["metadata"]["name"]
        for other_queue in queues
        if other_queue.get("status", {}).get("state") == "Open"
    ]
    detail = "there is no such queue" if queue is None else f"is {state}" if state else "has no state yet"
    remedy = "choose one with options.queue" if open_queues else "see that Volcano's controller and scheduler run"
    return failed_check(name, f"{detail}; open queues: {', '.join(sorted(open_queues)) or 'none'}", remedy)
