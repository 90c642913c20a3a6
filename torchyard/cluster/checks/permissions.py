"""Checks which rights this user has in the namespace: one review of its rules, and one of each right not among them."""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Permission, is_cluster_scoped

Rule = Mapping[str, Any]
Right = tuple[str, str]  # a verb, and a resource as in `is_allowed`
_MAX_PARALLEL_REVIEWS = 16
RBAC_COMMAND = "`kubectl apply -f deploy/kubernetes/rbac.yaml`"
# The API server's message, and that of the AppWrapper's webhook.
_FORBIDDEN_CREATE = re.compile(r'cannot create resource "([^"]+)"|is not authorized to create (\S+) in ')


def check_permissions(client: Client, permissions: Iterable[Permission]) -> list[Finding]:
    """One finding for all rights, which names every missing verb; empty if no right is needed."""
    pairs: list[Right] = []
    for permission in permissions:
        pairs += [(verb, permission.resource) for verb in permission.verbs]
    rights = tuple(dict.fromkeys(pairs))  # two requirements may need the same right
    if not rights:
        return []
    try:
        missing = list_missing_rights(client, rights)
    except ClusterError as error:
        return [failed_check("rights", f"cannot be checked: {error.action}: {error.message}", "")]
    if not missing:
        return [passed_check("rights", f"all {len(rights)} are granted")]
    user_name = read_user_name(client)
    detail = f"{user_name} may not {_format_permissions(missing)} in namespace {client.namespace}"
    remedy = f"{RBAC_COMMAND} creates a role with these rights; bind it to {user_name}"
    if any(is_cluster_scoped(resource) for _, resource in missing):
        remedy = "let an administrator create the objects that have no namespace, and remove them from the manifest"
    return [failed_check("rights", detail, remedy)]


def list_missing_rights(client: Client, rights: Iterable[Right]) -> list[Right]:
    """Those of the rights that this user does not have. Raises ClusterError if a review fails."""
    rules = read_rules(client)
    # Rules do not show what another authorizer than RBAC grants, and are those in the namespace.
    unproven = [right for right in rights if is_cluster_scoped(right[1]) or not is_granted(rules, *right)]
    with ThreadPoolExecutor(_MAX_PARALLEL_REVIEWS) as pool:
        reviews = pool.map(lambda right: is_allowed(client, *right), unproven)
        return [right for right, has_right in zip(unproven, reviews, strict=True) if not has_right]


def _format_permissions(rights: Iterable[Right]) -> str:
    """Verbs by resource: `get, watch pods, nor get pods/log`."""
    verbs: dict[str, list[str]] = {}
    for verb, resource in rights:
        verbs.setdefault(resource, []).append(verb)
    return ", nor ".join(f"{', '.join(resource_verbs)} {resource}" for resource, resource_verbs in verbs.items())


def read_rules(client: Client) -> list[Rule]:
    """The rules for this user in the client's namespace; empty if the server does not list them."""
    version = "authorization.k8s.io/v1"
    try:
        review = _post_review(client, version, "SelfSubjectRulesReview", {"namespace": client.namespace})
    except ClusterError:
        return []
    return list(review["status"].get("resourceRules") or ())


def is_granted(rules: Iterable[Rule], verb: str, resource: str) -> bool:
    """Whether a rule grants the right for objects of any name. `resource` as in `is_allowed`.

    A rule is one of `resourceRules` in a SelfSubjectRulesReview. A right that none grants may exist nevertheless.
    """
    plural, group, subresource = _split_resource(resource)
    resource_path = f"{plural}/{subresource}" if subresource else plural
    for rule in rules:
        has_verb = not {verb, "*"}.isdisjoint(rule.get("verbs") or ())
        has_group = not {group, "*"}.isdisjoint(rule.get("apiGroups") or ())
        has_resource = not {resource_path, f"*/{subresource}", "*"}.isdisjoint(rule.get("resources") or ())
        if has_verb and has_group and has_resource and not rule.get("resourceNames"):
            return True
    return False


def _split_resource(resource: str) -> tuple[str, str, str]:
    """Plural, API group and subresource of `jobs.batch.volcano.sh` or `pods/log`; "" where there is none."""
    resource_type, _, subresource = resource.partition("/")
    plural, _, group = resource_type.partition(".")
    return plural, group, subresource


def is_allowed(client: Client, verb: str, resource: str) -> bool:
    """Whether this user has the right in the client's namespace, or in the cluster if the resource has none.

    `resource`: jobs.batch.volcano.sh, pods, pods/log. Raises ClusterError if the review fails.
    """
    plural, group, subresource = _split_resource(resource)
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
    }
    if not is_cluster_scoped(resource):
        attributes["namespace"] = client.namespace
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
