"""Sessions in the pods of a job, on a fake API server that starts real processes."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.pod_sessions import PodSessions
from torchyard.cluster.access import PodTarget, access_pods_of, find_target
from torchyard.common.project_root import ROOT
from torchyard.model.errors import AccessError
from torchyard.model.plan import ManifestPlan

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
PutPod = Callable[..., None]


def build_pod(plan: ManifestPlan, node: str, state: Any = RUNNING, phase: str = "Running", **status: Any) -> Any:
    """The pod of a node, whose main container is behind a sidecar and in this state."""
    metadata = {"name": plan.pods[node], "labels": dict(plan.labels), "creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata["annotations"] = {"kubectl.kubernetes.io/default-container": "main"}
    spec = {"containers": [{"name": "mesh"}, {"name": "main"}]}
    statuses = [{"name": "main", "state": state}, {"name": "mesh", "state": RUNNING}]
    status |= {"phase": phase, "containerStatuses": statuses}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


@pytest.fixture
def plan(pod_sessions: PodSessions, planned: Planned) -> ManifestPlan:
    """The plan of a job whose first pod runs, and whose second one does not yet."""
    plan = planned(nodes=2, cluster={"namespace": "default"})
    first, second = plan.pods
    pod_sessions.put(build_pod(plan, first))
    pod_sessions.put(build_pod(plan, second, {"waiting": {"reason": "ContainerCreating"}}, phase="Pending"))
    return plan


def save_plan(plan: ManifestPlan, folder: Path) -> Path:
    """The file of a plan, which is too long for an argument."""
    path = folder / "plan.json"
    path.write_text(plan.model_dump_json())
    return path


def run_on_nodes(plan: ManifestPlan, *argv: str) -> tuple[dict[str, Any], dict[tuple[str, int], bytes]]:
    """The results of a command by node, and its output by node and descriptor."""
    output: dict[tuple[str, int], bytes] = {}

    def take(node: str, descriptor: int, data: bytes) -> None:
        output[node, descriptor] = output.get((node, descriptor), b"") + data

    return access_pods_of(plan).run_on_nodes(tuple(plan.nodes), argv, take), output


def test_command_runs_in_the_main_container_of_each_pod(plan: ManifestPlan, pod_sessions: PodSessions) -> None:
    """A command runs in the main container, and a pod that does not run costs only its own result."""
    results, output = run_on_nodes(plan, "sh", "-c", "echo one; exit 3")
    first, second = plan.pods
    assert (results[first], output) == (3, {(first, 1): b"one\n"})
    assert isinstance(results[second], AccessError)
    (request,) = pod_sessions.find_requests("GET", "/exec")
    assert request.path.endswith(f"/pods/{plan.pods[first]}/exec")
    assert request.query["container"] == "main"


def test_single_command_has_our_input_and_output(plan: ManifestPlan, tmp_path: Path) -> None:
    """A command in one node reads our stdin and writes to our stdout, byte by byte."""
    code = (
        "import sys; from torchyard.cluster.access import access_pods_of; "
        "from torchyard.model.plan import ManifestPlan; "
        "plan = ManifestPlan.model_validate_json(open(sys.argv[1]).read()); "
        "sys.exit(access_pods_of(plan).run_command(next(iter(plan.pods)), ['sh', '-c', 'cat; exit 4'], "
        "has_terminal=False))"
    )
    command = [sys.executable, "-c", code, str(save_plan(plan, tmp_path))]
    completed = subprocess.run(command, input=b"\x00\xff\n", capture_output=True, check=False, cwd=ROOT)
    assert (completed.stdout, completed.returncode) == (b"\x00\xff\n", 4), completed.stderr


def test_missing_right_is_a_sentence_with_the_rule(plan: ManifestPlan, pod_sessions: PodSessions) -> None:
    """A user without the right gets the rule to add, and the server's own message."""
    pod_sessions.fail("GET", "/exec", 403)
    results, _ = run_on_nodes(plan, "true")
    message = str(results[next(iter(plan.pods))])
    assert "fake-user may not use pods/exec in namespace default" in message
    assert '{apiGroups: [""], resources: [pods/exec], verbs: [get, create]}' in message
    assert message.endswith("(a fault of the test: 403)")


def test_missing_right_to_forward_is_found_first(plan: ManifestPlan, pod_sessions: PodSessions) -> None:
    """Without the right to forward a port, no port is opened here."""
    pod_sessions.denied = {("create", "pods/portforward")}
    with pytest.raises(AccessError, match=r"resources: \[pods/portforward\]"):
        access_pods_of(plan).forward_port(next(iter(plan.pods)), 1, 1)


def test_taken_port_is_a_sentence(plan: ManifestPlan) -> None:
    """A port that another process of this machine has is an error that suggests another one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AccessError, match=rf"cannot listen on port {port} of this machine: .*:6006$"):
            access_pods_of(plan).forward_port(next(iter(plan.pods)), port, 6006)


def test_forwarded_port_serves_client_after_client(plan: ManifestPlan, tmp_path: Path) -> None:
    """Two clients, one after the other, reach the pod's port; a failed one in between costs only itself."""
    with socket.create_server(("127.0.0.1", 0)) as remote, socket.create_server(("127.0.0.1", 0)) as free:
        remote_port = remote.getsockname()[1]
        local_port = free.getsockname()[1]
        free.close()
        code = (
            "import sys; from torchyard.cluster.access import access_pods_of; "
            "from torchyard.model.plan import ManifestPlan; "
            "plan = ManifestPlan.model_validate_json(open(sys.argv[1]).read()); "
            "access_pods_of(plan).forward_port(next(iter(plan.pods)), int(sys.argv[2]), int(sys.argv[3]))"
        )
        command = [sys.executable, "-c", code, str(save_plan(plan, tmp_path)), str(local_port), str(remote_port)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stderr
            assert b"until Ctrl-C" in process.stderr.readline()
            for text in (b"one", b"two"):
                with socket.create_connection(("127.0.0.1", local_port)) as client:
                    connection, _ = remote.accept()
                    client.sendall(text)
                    assert connection.recv(10) == text
                    connection.sendall(text.upper())
                    connection.close()
                    assert client.recv(10) == text.upper()
            remote.close()
            with socket.create_connection(("127.0.0.1", local_port)) as client:
                assert client.recv(10) == b""
            assert b"Connection refused" in process.stderr.readline()
            process.kill()


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (
            {"waiting": {"reason": "ErrImagePull", "message": "no"}},
            {"phase": "Pending"},
            r"Pending \(ErrImagePull: no\)",
        ),
        ({}, {"phase": "Pending"}, "does not run yet: it is Pending$"),
        ({"terminated": {"exitCode": 0}}, {"phase": "Succeeded"}, "ended with exit code 0"),
        ({"terminated": {"exitCode": 137}}, {"phase": "Running"}, "was killed by signal 9"),
    ],
)
def test_pod_that_does_not_run_is_a_sentence(
    plan: ManifestPlan, state: dict[str, Any], status: dict[str, Any], message: str
) -> None:
    """A pod that has not started, or has ended, is not entered, and the reason is stated."""
    node = next(iter(plan.pods))
    with pytest.raises(AccessError, match=message):
        find_target({node: build_pod(plan, node, state, **status)}, node)
    assert find_target({node: build_pod(plan, node)}, node) == PodTarget(plan.pods[node], "main")


def test_node_without_a_pod_is_a_sentence(plan: ManifestPlan) -> None:
    """A node that has no pod (yet) is an error of that node, not of the command."""
    with pytest.raises(AccessError, match="it has no pod"):
        find_target({}, "worker-7")
