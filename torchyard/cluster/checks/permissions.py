"""Checks which rights this user has in the namespace, with one access review per verb, in parallel."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Permission

_MAX_PARALLEL_REVIEWS = 16
RBAC_COMMAND = "`kubectl apply -f deploy/kubernetes/rbac.yaml`"
# The API server's message, and that of the AppWrapper's webhook.
_FORBIDDEN_CREATE = re.compile(r'cannot create resource "([^"]+)"|is not authorized to create (\S+) in ')


def check_permissions(client: Client, permissions: Iterable[Permission]) -> list[Finding]:
    """One finding for all rights, which names every missing verb; empty if no right is needed."""
    pairs: list[tuple[str, str]] = []
    for permission in permissions:
        pairs += [(verb, permission.resource) for verb in permission.verbs]
    rights = tuple(dict.fromkeys(pairs))  # two requirements may need the same right
    if not rights:
        return []
    try:
        with ThreadPoolExecutor(_MAX_PARALLEL_REVIEWS) as pool:
            granted = pool.map(lambda right: is_allowed(client, *right), rights)
            missing = [right for right, is_granted in zip(rights, granted, strict=True) if not is_granted]
    except ClusterError as error:
        return [failed_check("rights", f"cannot be checked: {error.action}: {error.message}", "")]
    if not missing:
        return [passed_check("rights", f"all {len(rights)} are granted")]
    user_name = read_user_name(client)
    detail = f"{user_name} may not {_format_permissions(missing)} in namespace {client.namespace}"
    remedy = f"{RBAC_COMMAND} creates a role with these rights; bind it to {user_name}"
    return [failed_check("rights", detail, remedy)]


def _format_permissions(rights: Iterable[tuple[str, str]]) -> str:
    """Verbs by resource: `get, watch pods, nor get pods/log`."""
    verbs: dict[str, list[str]] = {}
    for verb, resource in rights:
        verbs.setdefault(resource, []).append(verb)
    return ", nor ".join(f"{', '.join(resource_verbs)} {resource}" for resource, resource_verbs in verbs.items())


def is_allowed(client: Client, verb: str, resource: str) -> bool:
    """Whether this user has the right in the client's namespace. `resource`: jobs.batch.volcano.sh, pods, pods/log.

    Raises ClusterError if the review fails.
    """
    resource_type, _, subresource = resource.partition("/")
    plural, _, group = resource_type.partition(".")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": client.namespace,
    }
    review = _post_review(
        client, "authorization.k8s.io/v1", "SelfSubjectAccessReview", {"resourceAttributes": attributes}
    )
    return bool(review["status"].get("allowed"))


def read_user_name(client: Client) -> str:
    """The user's name as the API server reports it; `this user` if the server cannot."""
    try:
        review = _post_review(client, "authentication.k8s.io/v1", "SelfSubjectReview", {})
    except ClusterError:  # older than 1.28
        return "this user"
    return str(review["status"]["userInfo"]["username"])


def _post_review(client: Client, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": version, "kind": kind}
    if spec:
        body["spec"] = spec
    return client.request("POST", client.path(version, kind, namespace=None), body=body)


def is_known_refusal(plan: ManifestPlan, message: str) -> bool:
    """Whether `check_permissions` already reports this refusal to create."""
    match = _FORBIDDEN_CREATE.search(message)
    if match is None:
        return False
    refused_plural = match[1] or match[2]
    for requirement in plan.requires:
        if isinstance(requirement, Permission) and "create" in requirement.verbs:
            plural, _, _ = requirement.resource.partition(".")
            if plural == refused_plural:
                return True
    return False
