"""What this user may do in the namespace: the API server is asked about every verb that a run needs, in parallel."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Check, Permission, failed_check, passed_check

_MAX_PARALLEL_REVIEWS = 16
RBAC_COMMAND = "`kubectl apply -f deploy/kubernetes/rbac.yaml`"
# The API server's message, and that of the AppWrapper's webhook.
_FORBIDDEN_CREATE = re.compile(r'cannot create resource "([^"]+)"|is not authorized to create (\S+) in ')


def check_permissions(client: Client, permissions: Iterable[Permission]) -> list[Check]:
    """One finding for all rights, which names every missing verb; none if no right is needed."""
    rights = tuple(
        dict.fromkeys((verb, permission.resource) for permission in permissions for verb in permission.verbs)
    )
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
    user_name = _read_user_name(client)
    remedy = f"{RBAC_COMMAND} makes a role that allows it; bind it to {user_name}"
    return [
        failed_check(
            "rights", f"{user_name} may not {_format_permissions(missing)} in namespace {client.namespace}", remedy
        )
    ]


def _format_permissions(rights: Iterable[tuple[str, str]]) -> str:
    """Verbs by resource: `get, watch pods, nor get pods/log`."""
    verbs: dict[str, list[str]] = {}
    for verb, resource in rights:
        verbs.setdefault(resource, []).append(verb)
    return ", nor ".join(f"{', '.join(resource_verbs)} {resource}" for resource, resource_verbs in verbs.items())


def is_allowed(client: Client, verb: str, resource: str) -> bool:
    """Whether this user may do it in the namespace. `resource`: jobs.batch.volcano.sh, pods, pods/log."""
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


def _read_user_name(client: Client) -> str:
    """The name that the API server knows this user by."""
    try:
        review = _post_review(client, "authentication.k8s.io/v1", "SelfSubjectReview", {})
    except ClusterError:  # older than 1.28
        return "this user"
    return str(review["status"]["userInfo"]["username"])


def _post_review(client: Client, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    body = {"apiVersion": version, "kind": kind, **({"spec": spec} if spec else {})}
    return client.request("POST", client.path(version, kind, namespace=None), body=body)


def is_known_refusal(plan: ManifestPlan, message: str) -> bool:
    """Whether the check of the plan's rights already reports this refusal to create."""
    match = _FORBIDDEN_CREATE.search(message)
    plural = (match[1] or match[2]) if match else ""
    permissions = (
        permission
        for permission in plan.requires
        if isinstance(permission, Permission) and "create" in permission.verbs
    )
    return any(permission.resource.partition(".")[0] == plural for permission in permissions)
