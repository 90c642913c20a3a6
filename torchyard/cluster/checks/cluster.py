"""Checks that the cluster meets the plan's requirements, in parallel, with one finding per requirement."""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, assert_never

from torchyard.cluster.checks.admission import check_admission
from torchyard.cluster.checks.capacity import check_capacity
from torchyard.cluster.checks.permissions import RBAC_COMMAND, check_permissions
from torchyard.cluster.checks.references import check_reference
from torchyard.common.local_errors import START_TIMEOUT_S, retry_step
from torchyard.diagnosis.queues.podgroup import read_volcano_queue
from torchyard.diagnosis.queues.queue import Queue, describe_refusal
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, failed_check, passed_check, warning_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import (
    AdmissionAccepted,
    Advice,
    Capacity,
    Controller,
    CrdServed,
    OpenQueue,
    Permission,
    ReferencedObject,
    WritableFolder,
)

_MAX_PARALLEL_CHECKS = 8
_QUEUE_VERSION = "scheduling.volcano.sh/v1beta1"
CheckedRequirement = CrdServed | Controller | OpenQueue | Capacity | ReferencedObject | AdmissionAccepted | Advice


def check_cluster(plan: ManifestPlan) -> tuple[Finding, ...]:
    """One finding for all rights and one per requirement; a single one if the cluster is away or rejects this user.

    If the namespace is missing, the first finding reports that, and what would be in it is not checked. No error of the
    API server is raised: it is a finding of the requirement that could not be checked.
    """
    try:
        client = get_cluster_client(plan.cluster)
    except ClusterError as error:
        return (failed_check(error.host, f"{error.action}: {error.message}", ""),)
    connection_check = _check_connection(client)
    if connection_check:
        return (connection_check,)
    namespace_check = _check_namespace(client)
    permissions: list[Permission] = []
    requirements: list[CheckedRequirement] = []
    for requirement in plan.requires:
        if isinstance(requirement, Permission):
            permissions.append(requirement)
        elif isinstance(requirement, WritableFolder):
            continue  # a folder of this machine: ClusterJob.check has it
        elif namespace_check is None or not _needs_namespace(requirement):
            requirements.append(requirement)

    checks = [namespace_check] if namespace_check else []
    with ThreadPoolExecutor(_MAX_PARALLEL_CHECKS) as pool:
        permission_checks = pool.submit(check_permissions, client, permissions)
        requirement_checks = pool.map(lambda requirement: _check_requirement(client, plan, requirement), requirements)
        checks += permission_checks.result()
        checks += requirement_checks
    return tuple(checks)


def _needs_namespace(requirement: CheckedRequirement) -> bool:
    """Whether a requirement cannot be checked without the plan's namespace."""
    if isinstance(requirement, ReferencedObject):
        return requirement.namespace is None
    return isinstance(requirement, AdmissionAccepted)


def _check_requirement(client: Client, plan: ManifestPlan, requirement: CheckedRequirement) -> Finding:
    """Check one requirement. If it cannot be read: a warning if this user has no right to, a failure otherwise."""
    title = _format_requirement_title(requirement)
    try:
        return _query_requirement(client, plan, requirement)
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN:
            remedy = f"{RBAC_COMMAND} creates a role that may read it: bind it to this user"
            return warning_check(title, f"cannot be checked: {error.message}", remedy)
        return failed_check(title, f"cannot be checked: {error.action}: {error.message}", "")


def _query_requirement(client: Client, plan: ManifestPlan, requirement: CheckedRequirement) -> Finding:
    """The finding of one requirement. Raises ClusterError if a request that it needs fails or is refused."""
    name = _format_requirement_title(requirement)
    match requirement:
        case CrdServed():
            check = check_crd_served(client, requirement, name)
        case Controller():
            check = check_controller(client, requirement, name)
        case OpenQueue():
            check = check_queue(client, requirement, name)
        case Capacity():
            check = check_capacity(client, requirement, name)
        case ReferencedObject():
            check = check_reference(client, requirement, name, len(plan.pods))
        case AdmissionAccepted():
            check = check_admission(client, requirement, name, plan)
        case Advice():
            check = requirement.finding
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
            noun = "pod" if requirement.pods == 1 else "pods"
            name = f"room for {requirement.pods} {noun}"
        case ReferencedObject():
            prefix = f"{requirement.namespace}/" if requirement.namespace else ""
            name = f"{requirement.object_kind} {prefix}{requirement.name}"
        case AdmissionAccepted():
            name = "admission of the job" if requirement.target == "objects" else "admission of its pods"
        case Advice():
            name = requirement.finding.where
        case _:
            assert_never(requirement)
    return name


# --- the cluster itself


def await_api_server(plan: ManifestPlan) -> None:
    """Wait up to START_TIMEOUT_S for an API server that is away. One that stays away is reported by `check_cluster`."""
    with contextlib.suppress(ClusterError):
        client = get_cluster_client(plan.cluster)
        retry_step(START_TIMEOUT_S)(client.ping)()


def _check_connection(client: Client) -> Finding | None:
    """The finding that the API server does not respond or refuses the credentials; None if it can be queried."""
    name = f"cluster {client.context or client.host}"
    try:
        client.ping()
    except ClusterError as error:
        flags = f" --context {client.context}" if client.context else ""
        if error.status == 0 or error.status >= HTTPStatus.TOO_MANY_REQUESTS:  # away, or busy
            remedy = f"see `kubectl{flags} cluster-info`"
            return failed_check(name, f"{client.host} does not respond: {error.message}", remedy)
        if error.status == HTTPStatus.UNAUTHORIZED or "system:anonymous" in error.message:
            detail = f"{client.host} refuses the credentials of the kubeconfig: {error.message}"
            return failed_check(name, detail, f"log in again; `kubectl{flags} auth whoami` shows whether that helped")
    return None


def _check_namespace(client: Client) -> Finding | None:
    """The finding that the namespace is missing or being deleted; None if it exists, or may not be read."""
    name = f"namespace {client.namespace}"
    create_command = f"`kubectl create namespace {client.namespace}`"
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


def check_crd_served(client: Client, requirement: CrdServed, name: str) -> Finding:
    """Check that the API server serves a kind in the needed version; report other versions and kinds of its name.

    Raises ClusterError if discovery is refused or fails.
    """
    plural, _, group = requirement.crd.partition(".")
    groups = _read_groups(client)
    if not groups.get(group):
        client.await_confirmation()  # a server that is starting lacks the groups of all CRDs
        groups = _read_groups(client)
    versions = [version for version in groups.get(group, ()) if plural in _list_resources(client, version)]
    if f"{group}/{requirement.version}" in versions:
        return passed_check(name, "is served")
    if versions:
        version_names = ", ".join(version.rpartition("/")[2] for version in versions)
        remedy = f"install a release that has it: {requirement.install}"
        return failed_check(name, f"is served as {version_names} only", remedy)
    detail = "is not installed"
    namesakes = _find_namesakes(client, groups, plural, group)
    if namesakes:
        detail += f"; {', '.join(namesakes)} is another kind of the same name"
    return failed_check(name, detail, requirement.install)


def _read_groups(client: Client) -> dict[str, list[str]]:
    """The versions of each API group, the preferred one first. Discovery needs no right to read CRDs."""
    groups = {}
    for group in client.request("GET", "/apis")["groups"]:
        preferred = group["preferredVersion"]["groupVersion"]
        others = [version["groupVersion"] for version in group.get("versions", ())]
        groups[group["name"]] = list(dict.fromkeys([preferred, *others]))
    return groups


def _list_resources(client: Client, version: str) -> set[str]:
    """The plural names that the API server serves in a group's version."""
    return {resource["name"] for resource in client.request("GET", f"/apis/{version}")["resources"]}


def _find_namesakes(client: Client, groups: Mapping[str, Sequence[str]], plural: str, group: str) -> list[str]:
    """Kinds with the same plural name in other groups, except those of Kubernetes itself."""
    namesakes = []
    for other_group, versions in groups.items():
        if "." not in other_group or other_group.endswith((".k8s.io", group)):
            continue
        if plural in _list_resources(client, versions[0]):
            namesakes.append(f"{plural}.{other_group}")
    return namesakes


def check_controller(client: Client, requirement: Controller, name: str) -> Finding:
    """Check that a controller's Deployment has an available pod; without the flag that enables gangs it is a warning.

    Raises ClusterError if Deployments cannot be listed.
    """
    deployments = client.list("apps/v1", "Deployment", {"labelSelector": requirement.label}, everywhere=True)
    if not deployments and requirement.deployment:
        params = {"fieldSelector": f"metadata.name={requirement.deployment}"}
        deployments = client.list("apps/v1", "Deployment", params, everywhere=True)
    if not deployments:
        remedy = "install it, or see `kubectl get deploy -A`"
        return failed_check(name, f"no namespace has a Deployment with {_describe_search(requirement)}", remedy)
    ready = [deployment for deployment in deployments if deployment.get("status", {}).get("availableReplicas", 0)]
    if not ready:
        metadata = deployments[0]["metadata"]
        remedy = f"see `kubectl -n {metadata['namespace']} describe deployment {metadata['name']}`"
        return failed_check(name, f"{_describe_deployment(deployments[0])} has no available pod", remedy)
    suitable = [deployment for deployment in ready if not requirement.gang or has_flag(deployment, requirement.gang)]
    if not suitable:
        title = _describe_deployment(ready[0])
        detail = f"{title} runs without {requirement.gang}: pods may start one by one and wait for each other"
        return warning_check(name, detail, f"add {requirement.gang} to the arguments of its container")
    return passed_check(name, _describe_deployment(suitable[0]))


def _list_containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def _describe_search(requirement: Controller) -> str:
    """How a controller's Deployment is found."""
    label = f"the label {requirement.label}"
    return f"{label}, or the name {requirement.deployment}" if requirement.deployment else label


def _describe_deployment(deployment: dict[str, Any]) -> str:
    """Namespace, name and the tag of the image: `kubeflow/training-operator v1.8.1`."""
    metadata = deployment["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    image, _, _ = _list_containers(deployment)[0].get("image", "").partition("@")
    _, _, tag = image.rpartition("/")[2].partition(":")
    return f"{name} {tag}" if tag else name


def has_flag(deployment: dict[str, Any], flag: str) -> bool:
    """Whether a container has the flag, as one argument (--a=b) or as two; not if its value is `none`."""
    argv: list[str] = []
    for container in _list_containers(deployment):
        argv += container.get("command", ())
        argv += container.get("args", ())
    command_line = f" {' '.join(argv)} ".replace("=", " ")
    flag_text = f" {flag} ".replace("=", " ")
    return flag_text in command_line and f"{flag_text}none " not in command_line


def query_queue(client: Client, name: str) -> Queue:
    """A queue of Volcano, and whether it accepts jobs. Raises ClusterError if queues cannot be read."""
    queue = client.get(_QUEUE_VERSION, "Queue", name, namespace=None)
    is_open = read_volcano_queue(name, queue, ()).refusal is None
    all_queues = () if is_open else client.list(_QUEUE_VERSION, "Queue", everywhere=True)
    return read_volcano_queue(name, queue, all_queues)


def check_queue(client: Client, requirement: OpenQueue, name: str) -> Finding:
    """Check that a queue of Volcano is open. Raises ClusterError if queues cannot be read."""
    queue = query_queue(client, requirement.name)
    if queue.refusal is None:
        return passed_check(name, "is open")
    remedy = "choose one with options.queue, or in the manifest"
    if not queue.open_queues:
        remedy = "check that Volcano's controller and scheduler are running"
    return failed_check(name, describe_refusal(queue), remedy)
