"""The runs of a cluster as every user with access sees them: their Leases and pods, whichever machine started them."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from torchyard.cluster.listing import GroupVersionKind, list_labelled_objects
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.template import RUN_LABEL

LEASE_KIND: GroupVersionKind = (lease_record.LEASE_API, lease_record.LEASE_KIND)
_POD_KIND: GroupVersionKind = ("v1", "Pod")
_PLURALS = {LEASE_KIND: "leases", _POD_KIND: "pods"}


class LeasedRun(NamedTuple):
    """A run that has a Lease.

    client: for the run's namespace.
    pods: with the run's label, of all its attempts, and its store's; None if they may not be listed.
    """

    client: Client
    lease: KubeObject
    pods: list[KubeObject] | None

    @property
    def name(self) -> str:
        return lease_record.read_lease_name(self.lease)


class LeasedRuns(NamedTuple):
    """The runs of the namespaces that were searched, and a sentence for what could not be read."""

    runs: list[LeasedRun]
    problems: list[str]


def list_leased_runs(context: str | None, run: str = "") -> LeasedRuns:
    """The runs of all namespaces, of which a kind that may not be listed there is listed in the context's own.

    `run`: only the run of this name, if it is not empty. ClusterError if the API server does not respond within
    seconds, or if Leases may not be listed at all.
    """
    client = get_cluster_client(Cluster(context=context or None))
    client.ping()
    labels = {RUN_LABEL: run}
    everywhere = list_labelled_objects(client, (LEASE_KIND, _POD_KIND), labels, everywhere=True)
    own_namespace = list_labelled_objects(client, everywhere.refusals, labels)
    if LEASE_KIND in own_namespace.refusals:
        raise ClusterError(client.host, "list leases", own_namespace.refusals[LEASE_KIND], HTTPStatus.FORBIDDEN)
    objects = everywhere.objects + own_namespace.objects
    pods_by_run = _group_by_run(obj for obj in objects if obj["kind"] == "Pod")
    runs: list[LeasedRun] = []
    for lease in objects:
        if lease["kind"] != lease_record.LEASE_KIND:
            continue
        namespace = lease["metadata"]["namespace"]
        refusals = own_namespace.refusals if namespace == client.namespace else everywhere.refusals
        pods = None if _POD_KIND in refusals else pods_by_run.get((namespace, lease["metadata"]["name"]), [])
        runs.append(LeasedRun(_get_namespace_client(client, namespace), lease, pods))
    problems = [
        f"{client.host}: {_PLURALS[kind]} are listed only in namespace {client.namespace}: {message}"
        for kind, message in everywhere.refusals.items()
        if kind not in own_namespace.refusals
    ]
    problems += [f"{client.host}: {_PLURALS[kind]}: {message}" for kind, message in own_namespace.refusals.items()]
    return LeasedRuns(runs, problems)


def _group_by_run(pods: Iterable[KubeObject]) -> Mapping[tuple[str, str], list[KubeObject]]:
    """The pods by namespace and run."""
    groups: dict[tuple[str, str], list[KubeObject]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        groups.setdefault((metadata["namespace"], metadata["labels"][RUN_LABEL]), []).append(pod)
    return groups


def _get_namespace_client(client: Client, namespace: str) -> Client:
    """A client for the same cluster and another namespace."""
    return get_cluster_client(Cluster(context=client.context, namespace=namespace))
