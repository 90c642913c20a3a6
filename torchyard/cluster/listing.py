"""Lists the objects of runs by their labels, and the kinds that an API server serves."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple

from torchyard.kube.client import Client, KubeObject
from torchyard.kube.per_client import PerClient
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan

GroupVersionKind = tuple[str, str]  # batch/v1, Job
_MAX_PARALLEL_REQUESTS = 8
# The cluster's own records about objects, which disappear by themselves; and Secrets, which nothing here reads.
_SKIPPED_RESOURCES = frozenset({"events", "endpoints", "endpointslices", "secrets"})
_DISCOVERED_KINDS = PerClient(lambda _: list[GroupVersionKind]())
# All groups with their kinds in one response; servers before 1.30 serve v2beta1, and before 1.27 neither.
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_DISCOVERY_TYPES = ",".join([_AGGREGATED.format("v2"), _AGGREGATED.format("v2beta1"), "application/json"])


class ListedObjects(NamedTuple):
    """The objects that a list returned, and the API server's message for each kind that it refused to list."""

    objects: list[KubeObject]
    refusals: dict[GroupVersionKind, str]


def list_labelled_objects(
    client: Client,
    kinds: Iterable[GroupVersionKind],
    labels: Mapping[str, str],
    *,
    everywhere: bool = False,
    is_metadata_enough: bool = False,
) -> ListedObjects:
    """List the objects of some kinds that have `labels`; an empty value matches any.

    A refusal with 403 or 405 is returned in `refusals`; ClusterError is raised for any other.

    everywhere: in all namespaces, not only in the client's.
    is_metadata_enough: see `Client.list`.
    """
    params = {"labelSelector": format_selector(labels)}

    def list_kind(kind: GroupVersionKind) -> list[KubeObject] | ClusterError:
        try:
            return client.list(*kind, params, everywhere=everywhere, is_metadata_enough=is_metadata_enough)
        except ClusterError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED):
                raise
            return error

    requested_kinds = list(kinds)
    listing = ListedObjects([], {})
    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        for kind, response in zip(requested_kinds, pool.map(list_kind, requested_kinds), strict=True):
            if isinstance(response, ClusterError):
                listing.refusals[kind] = response.message
            else:
                listing.objects.extend(response)
    return listing


def format_selector(labels: Mapping[str, str]) -> str:
    """The selector of objects that have all of these labels; an empty value matches any."""
    return ",".join(f"{key}={value}" if value else key for key, value in labels.items())


def is_own_object(plan: ManifestPlan, obj: KubeObject) -> bool:
    """Whether an object has all labels of the run."""
    return plan.labels.items() <= (obj.get("metadata", {}).get("labels") or {}).items()


# --- discovery


def list_kinds(client: Client) -> tuple[GroupVersionKind, ...]:
    """Every namespaced kind that can be listed, in its preferred version, except Secrets.

    Queried once per client, and again the next time if a part of the API did not respond.
    """
    cached_kinds = _DISCOVERED_KINDS.get(client)
    if cached_kinds:
        return tuple(cached_kinds)
    kinds: list[GroupVersionKind] = []
    is_complete = True
    for root in ("/api", "/apis"):
        response = client.get_quick(root, accept=_DISCOVERY_TYPES)
        if response["kind"] == "APIGroupDiscoveryList":
            root_kinds, is_root_complete = _parse_groups(response["items"])
        else:
            root_kinds, is_root_complete = _read_groups(client, response)
        kinds += root_kinds
        is_complete = is_complete and is_root_complete
    if is_complete:
        cached_kinds[:] = kinds
    return tuple(kinds)


def _parse_groups(groups: Iterable[Mapping[str, Any]]) -> tuple[list[GroupVersionKind], bool]:
    """The kinds of an APIGroupDiscoveryList's items, and whether all groups are current."""
    kinds: list[GroupVersionKind] = []
    is_complete = True
    for group in groups:
        version = group["versions"][0]  # the preferred one
        group_name = group["metadata"].get("name")
        api = f"{group_name}/{version['version']}" if group_name else version["version"]
        is_complete = is_complete and version.get("freshness") != "Stale"
        for resource in version.get("resources") or ():
            is_namespaced = resource["scope"] == "Namespaced"
            if _is_listable(resource["resource"], resource["verbs"], is_namespaced=is_namespaced):
                kinds.append((api, resource["responseKind"]["kind"]))
    return kinds, is_complete


def _read_groups(client: Client, groups: Mapping[str, Any]) -> tuple[list[GroupVersionKind], bool]:
    """The kinds of an APIVersions or an APIGroupList, by one request per group, and whether all have responded."""
    versions = ["v1"] if groups["kind"] == "APIVersions" else []
    for group in groups.get("groups") or ():
        versions.append(group["preferredVersion"]["groupVersion"])

    def read_kinds(version: str) -> list[GroupVersionKind] | None:
        """The kinds of one API version; None if an aggregated API does not respond."""
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = client.get_quick(path)["resources"]
        except ClusterError:
            return None
        version_kinds = []
        for resource in resources:
            if _is_listable(resource["name"], resource["verbs"], is_namespaced=resource["namespaced"]):
                version_kinds.append((version, str(resource["kind"])))
        return version_kinds

    kinds: list[GroupVersionKind] = []
    is_complete = True
    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        for version_kinds in pool.map(read_kinds, versions):
            if version_kinds is None:
                is_complete = False
            else:
                kinds += version_kinds
    return kinds, is_complete


def _is_listable(name: str, verbs: Iterable[str], *, is_namespaced: bool) -> bool:
    """Whether a resource of the API discovery is namespaced, can be listed, and may belong to a run."""
    is_subresource = "/" in name
    return is_namespaced and "list" in verbs and not is_subresource and name not in _SKIPPED_RESOURCES
