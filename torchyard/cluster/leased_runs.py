"""The runs of a cluster as every user with access sees them, whichever machine started them.

`list_leased_runs` lists their Leases and pods, `list_node_pods` the pods of the nodes of one of them, and
`PodLogCopies` copies the logs of these.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from torchyard.cluster.listing import GroupVersionKind, list_labelled_objects
from torchyard.cluster.logs.log_follower import LOG_READERS
from torchyard.cluster.logs.pod_logs import PodLogs
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.pod_facts import ROLE_LABEL, RUN_LABEL
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY

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


class NodePod(NamedTuple):
    """A pod of a run's job, and the name of its node, such as worker-1."""

    node: str
    pod: KubeObject


class AttemptPods(NamedTuple):
    """The pods of the nodes of one attempt.

    attempt: the last one that has pods; 0 if none has.
    node_pods: a master first, then by the numbers of the nodes; of one node the pod that was created first.
    """

    attempt: int
    node_pods: list[NodePod]


class _RemoteJob(NamedTuple):
    """An attempt of another machine, as `PodLogs` needs it; `nodes` grows as pods appear."""

    nodes: dict[str, str]
    folder: str

    @property
    def logs(self) -> dict[str, str]:
        return self.nodes


class PodLogCopies:
    """Copies of the logs of a run that another machine started, made as its launcher makes them.

    `update` is called again and again: it starts to copy the logs of new pods. The copies grow on their own, each line
    is in them once, and the log of a recreated pod continues in its node's copy. Nothing in the cluster is changed.

    Errors. `update` raises ClusterError if the API server refuses or does not respond, and RuntimeError if this process
    can have no more threads now; both may be called again.
    """

    def __init__(
        self, client: Client, run: str, folder: Path, *, is_following: bool, only_node: str | None = None
    ) -> None:
        """Parameters of the copying.

        folder: for the copies.
        is_following: False to copy only what the logs contain now.
        only_node: the node whose log is copied; None for all.
        """
        self.attempt = 0  # the last one that has pods; 0 if none has
        self.paths: dict[str, str] = {}  # of that attempt's copies, by node, in the order in which the pods were seen
        self.first_pod: KubeObject = {}  # of that attempt; empty if it has none
        self.has_ending_pods = False  # a pod of that attempt has ended or is being deleted
        self.is_over = False  # the run has no Lease any more, or one that has expired and no pod that runs
        self._client = client
        self._run = run
        self._folder = folder
        self._is_following = is_following
        self._only_node = only_node
        self._logs: PodLogs | None = None

    def update(self) -> None:
        """Read the run's Lease and pods. The Lease first: pods that a list lacks then may have ended with the run."""
        lease = self._client.get(*LEASE_KIND, self._run)
        attempt, node_pods = list_node_pods(self._client, self._run)
        if attempt < self.attempt:  # the pods of the last one are gone, and those of an earlier one are not yet
            node_pods = []
        if attempt > self.attempt:
            self.attempt = attempt
            self.paths = {}
            self._logs = None
        has_live_pods = False
        self.has_ending_pods = False
        for node, pod in node_pods:
            self._copy(node, pod)
            has_ended = pod_facts.get_pod_phase(pod) in pod_facts.ENDED_POD_PHASES
            has_live_pods = has_live_pods or not has_ended
            if has_ended or pod["metadata"].get("deletionTimestamp"):
                self.has_ending_pods = True
        remaining_s = lease_record.measure_time_left(lease, self._client.now()) if lease is not None else None
        has_expired = remaining_s is not None and remaining_s < 0
        self.is_over = lease is None or (has_expired and not has_live_pods)
        if self._logs:
            self._logs.resume()

    def _copy(self, name: str, pod: KubeObject) -> None:
        """Copy the log of a node's pod of the current attempt, or report its new state to the copying."""
        folder = self._folder / f"attempt-{self.attempt}"
        if self._logs is None:
            self.first_pod = pod
            self._logs = PodLogs(self._client, _RemoteJob(self.paths, str(folder)))
        self.paths[name] = f"{folder}/{name}/log"
        if self._only_node in (None, name):
            self._logs.update_pod(name, pod["metadata"]["name"], pod, is_following=self._is_following)

    def is_complete(self) -> bool:
        """Whether nothing more will be written to the copies of the current attempt, as far as it could be read."""
        return self._logs is None or not self._logs.is_unfinished()

    def list_losses(self) -> dict[str, str]:
        """What is permanently missing in a copy, by node."""
        return self._logs.lost_logs() if self._logs else {}

    def stop(self) -> None:
        """Copy nothing more."""
        LOG_READERS.get(self._client).stop(self._folder)


def list_node_pods(client: Client, run: str) -> AttemptPods:
    """The pods of the nodes of a run's last attempt, without its store's. ClusterError if they cannot be listed."""
    pods = client.list(*_POD_KIND, {"labelSelector": f"{RUN_LABEL}={run}"})
    pods = [pod for pod in pods if ROLE_LABEL not in (pod["metadata"].get("labels") or {})]
    attempt = max(map(_read_attempt, pods), default=0)
    node_pods = [NodePod(name_node(pod, f"{run}-{attempt}"), pod) for pod in pods if _read_attempt(pod) == attempt]
    return AttemptPods(attempt, sorted(node_pods, key=_get_order))


def _get_order(node_pod: NodePod) -> tuple[bool, list[int], str, float]:
    """The place of a pod in `AttemptPods.node_pods`."""
    node = node_pod.node
    numbers = [int(number) for number in re.findall(r"\d{1,9}", node)]
    return ("master" not in node, numbers, node, pod_facts.get_creation_time(node_pod.pod))


def name_node(pod: KubeObject, job: str) -> str:
    """The node's name for a pod of a job, without its plan: `worker-1`.

    A pod whose name ends in a random suffix has the name without it in `generateName`.
    """
    name = str(pod["metadata"].get("generateName") or "").rstrip("-") or pod["metadata"]["name"]
    return str(name).removeprefix(f"{job}-")


def _read_attempt(pod: KubeObject) -> int:
    """The attempt of a pod; 0 if its label is not a number."""
    text = str((pod["metadata"].get("labels") or {}).get(ATTEMPT_KEY))
    return int(text) if text.isascii() and text.isdigit() else 0


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
