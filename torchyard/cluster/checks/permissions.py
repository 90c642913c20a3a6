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


def check_permissions(api: Client, needs: Iterable[Permission]) -> list[Check]:
    """One finding for all rights, which names every missing verb; none if no right is needed."""
    asked = tuple(dict.fromkeys((verb, need.resource) for need in needs for verb in need.verbs))
    if not asked:
        return []
    try:
        with ThreadPoolExecutor(_MAX_PARALLEL_REVIEWS) as pool:
            granted = pool.map(lambda each: is_allowed(api, *each), asked)
            missing = [each for each, may in zip(asked, granted, strict=True) if not may]
    except ClusterError as error:
        return [failed_check("rights", f"cannot be checked: {error.action}: {error.message}", "")]
    if not missing:
        return [passed_check("rights", f"all {len(asked)} are granted")]
    who = _read_user_name(api)
    remedy = f"{RBAC_COMMAND} makes a role that allows it; bind it to {who}"
    return [
        failed_check("rights", f"{who} may not {_format_permissions(missing)} in namespace {api.namespace}", remedy)
    ]


def _format_permissions(rights: Iterable[tuple[str, str]]) -> str:
    """Verbs by resource: `get, watch pods, nor get pods/log`."""
    verbs: dict[str, list[str]] = {}
    for verb, resource in rights:
        verbs.setdefault(resource, []).append(verb)
    return ", nor ".join(f"{', '.join(each)} {resource}" for resource, each in verbs.items())


def is_allowed(api: Client, verb: str, resource: str) -> bool:
    """Whether this user may do it in the namespace. `resource`: jobs.batch.volcano.sh, pods, pods/log."""
    whole, _, part = resource.partition("/")
    plural, _, group = whole.partition(".")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": part, "namespace": api.namespace}
    answer = _post_review(api, "authorization.k8s.io/v1", "SelfSubjectAccessReview", {"resourceAttributes": asked})
    return bool(answer["status"].get("allowed"))


def _read_user_name(api: Client) -> str:
    """The name that the API server knows this user by."""
    try:
        answer = _post_review(api, "authentication.k8s.io/v1", "SelfSubjectReview", {})
    except ClusterError:  # older than 1.28
        return "this user"
    return str(answer["status"]["userInfo"]["username"])


def _post_review(api: Client, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    body = {"apiVersion": version, "kind": kind, **({"spec": spec} if spec else {})}
    return api.request("POST", api.path(version, kind, namespace=None), body=body)


def is_known_refusal(plan: ManifestPlan, said: str) -> bool:
    """Whether the check of the plan's rights already reports this refusal to create."""
    found = _FORBIDDEN_CREATE.search(said)
    plural = (found[1] or found[2]) if found else ""
    rights = (need for need in plan.requires if isinstance(need, Permission) and "create" in need.verbs)
    return any(need.resource.partition(".")[0] == plural for need in rights)
