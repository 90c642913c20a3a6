"""Commands in the pods of a job, and ports of these pods, through the API server."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

from torchyard.cluster.checks.permissions import RBAC_COMMAND, list_missing_rights, read_user_name
from torchyard.cluster.listing import list_labelled_objects
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.pod_reasons import get_pod_reasons, quote_reason
from torchyard.interfaces import OutputCallback
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.kube.retry import TransientError
from torchyard.kube.sessions import ContainerCommand, forward_connection, run_in_container
from torchyard.kube.streams import StreamClient
from torchyard.model.errors import AccessError, ClusterError, TorchyardError
from torchyard.model.plan import ManifestPlan

_VERBS = ("get", "create")  # `get` opens the WebSocket; servers from 1.35 on require `create` as well
_MAX_PARALLEL_SESSIONS = 64
ListPods = Callable[[], Mapping[str, KubeObject]]
T = TypeVar("T")


class PodTarget(NamedTuple):
    """A running pod, and the name of its main container."""

    pod: str
    container: str


class ClusterAccess:
    """The `NodeAccess` of a cluster. Sessions are coroutines of an event loop that lasts as long as a call."""

    def __init__(self, client: Client, list_pods: ListPods) -> None:
        """Parameters of the access.

        client: for the namespace of the pods.
        list_pods: returns the newest pod of each node; it is called once by each method.
        """
        self._client = client
        self._list_pods = list_pods

    def run_command(self, node: str, argv: Sequence[str], *, has_terminal: bool) -> int:
        target = find_target(self._list_pods(), node)
        command = ContainerCommand(
            self._get_path(target), target.container, tuple(argv), sys.stdin.fileno(), has_terminal
        )
        return asyncio.run(self._run(node, command, write_output))

    def run_on_nodes(
        self, nodes: Sequence[str], argv: Sequence[str], on_output: OutputCallback
    ) -> dict[str, int | TorchyardError]:
        pods = self._list_pods()

        async def run_on(node: str, slots: asyncio.Semaphore) -> int | TorchyardError:
            try:
                target = find_target(pods, node)
                command = ContainerCommand(self._get_path(target), target.container, tuple(argv))
                async with slots:
                    return await self._run(node, command, partial(on_output, node))
            except TorchyardError as error:
                return error

        async def run_on_all() -> list[int | TorchyardError]:
            slots = asyncio.Semaphore(_MAX_PARALLEL_SESSIONS)
            return await asyncio.gather(*(run_on(node, slots) for node in nodes))

        return dict(zip(nodes, asyncio.run(run_on_all()), strict=True))

    def forward_port(self, node: str, local_port: int, remote_port: int) -> int:
        target = find_target(self._list_pods(), node)
        missing = list_missing_rights(self._client, [(verb, "pods/portforward") for verb in _VERBS])
        if missing:  # else the first client would learn of it
            raise self._build_refusal(node, "pods/portforward", "")
        return asyncio.run(self._serve_port(node, target, local_port, remote_port))

    async def _serve_port(self, node: str, target: PodTarget, local_port: int, remote_port: int) -> int:
        """Serve a port of the loopback interface until this process is interrupted."""
        streams = StreamClient(self._client.credentials)

        async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            session = forward_connection(streams, self._get_path(target), remote_port, reader, writer)
            try:
                await self._translate_errors(node, "pods/portforward", session)
            except TorchyardError as error:  # the next client may succeed
                print(error, file=sys.stderr)
            finally:
                writer.close()

        try:
            server = await asyncio.start_server(serve_client, "127.0.0.1", local_port)
        except OSError as error:
            reason = f"cannot listen on port {local_port} of this machine: {error.strerror}; choose another, as in "
            raise AccessError(node, f"{reason}{local_port + 10000}:{remote_port}") from error
        message = f"127.0.0.1:{local_port} leads to port {remote_port} of {node} (pod {target.pod}) until Ctrl-C"
        print(message, file=sys.stderr, flush=True)
        async with server:
            await server.serve_forever()
        return 0

    def _get_path(self, target: PodTarget) -> str:
        return self._client.path("v1", "Pod", target.pod)

    # --- sessions

    async def _run(self, node: str, command: ContainerCommand, on_output: Callable[[int, bytes], object]) -> int:
        session = run_in_container(StreamClient(self._client.credentials), command, on_output)
        return await self._translate_errors(node, "pods/exec", session)

    async def _translate_errors(self, node: str, resource: str, session: Coroutine[Any, Any, T]) -> T:
        """The result of a session. AccessError with a sentence in place of the errors of requests."""
        try:
            return await session
        except TransientError as error:
            raise AccessError(node, error.message) from error
        except ClusterError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                raise await asyncio.to_thread(self._build_refusal, node, resource, error.message) from error
            raise AccessError(node, error.message) from error

    def _build_refusal(self, node: str, resource: str, message: str) -> AccessError:
        """The error of a missing right. `message`: the API server's; "" without one."""
        rule = f'{{apiGroups: [""], resources: [{resource}], verbs: [{", ".join(_VERBS)}]}}'
        reason = f"{read_user_name(self._client)} may not use {resource} in namespace {self._client.namespace}"
        remedy = f"add the rule {rule} to its role, or bind the role torchyard-enter of {RBAC_COMMAND} to it"
        suffix = f" ({message})" if message else ""
        return AccessError(node, f"{reason}: {remedy}{suffix}")


def access_pods_of(plan: ManifestPlan) -> ClusterAccess:
    """The access to the pods of a plan's job."""
    client = get_cluster_client(plan.cluster)
    return ClusterAccess(client, partial(_list_pods_of, plan, client))


def _list_pods_of(plan: ManifestPlan, client: Client) -> dict[str, KubeObject]:
    """The newest pod of each node. ClusterError if they cannot be listed."""
    listing = list_labelled_objects(client, [("v1", "Pod")], plan.labels)
    for message in listing.refusals.values():
        raise ClusterError(client.host, "list pods", message, HTTPStatus.FORBIDDEN)
    pods = sorted(listing.objects, key=pod_facts.get_creation_time)
    return {plan.node(pod["metadata"]["name"]): pod for pod in pods}


def find_target(pods: Mapping[str, Mapping[str, Any]], node: str) -> PodTarget:
    """The pod of a node, if its main container runs; AccessError with the reason if it does not.

    `pods`: the newest pod of each node.
    """
    pod = pods.get(node)
    container = pod_facts.find_main_container(pod or {})
    if pod is None or container is None:
        raise AccessError(node, "it has no pod: the job waits to be admitted, or is being deleted")
    name = pod["metadata"]["name"]
    exit_code = pod_facts.get_pod_exit_code(pod)
    if exit_code is not None:
        raise AccessError(node, f"pod {name} {pod_facts.describe_exit(exit_code)}")
    if not pod_facts.get_container_start(pod):
        reasons = get_pod_reasons(pod)
        unscheduled = pod_facts.find_unscheduled_reason(pod)
        if unscheduled:
            reasons.insert(0, unscheduled)
        detail = f" ({quote_reason(reasons[0].reason, reasons[0].message)})" if reasons else ""
        raise AccessError(node, f"pod {name} does not run yet: it is {pod_facts.get_pod_phase(pod)}{detail}")
    return PodTarget(name, container)


def write_output(descriptor: int, data: bytes) -> None:
    """Write to this process's stdout (1) or stderr (2), past Python's buffers: a reader that is gone leaves nothing."""
    while data:
        data = data[os.write(descriptor, data) :]
