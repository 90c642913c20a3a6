"""`make cluster-up`, `make cluster-down` and `make cluster-status`: a real control plane on this machine.

etcd, API server, controller manager, scheduler, Volcano, training operator, JobSet and AppWrapper (or, with --mcad, the
dispatcher that it has replaced) are the real programs (see build.py); nodes and pods are fake (see fake.py), except two
real nodes where the machine allows them (see nodes.py). plane.py is the interface for other modules.
"""

import argparse
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster import build, components, fake, nodes, objects
from tests.cluster.api import Api, ApiError
from tests.cluster.plane import ClusterError, Plane
from tests.cluster.ready import (
    has_condition,
    is_available,
    is_served,
    iter_readiness_checks,
    read_queue_state,
    responds_ok,
)
from tests.cluster.webhooks import build_webhooks

STEP_TIMEOUT_S = 90.0  # of one step; on two cores each takes less than ten seconds


# --- up --------------------------------------------------------------------------------------------------------------


def up(dispatcher: str) -> Plane:
    """Build what is missing and start the cluster; after an error everything is removed again.

    Raises ClusterError or BuildError.
    """
    plane = Plane()
    check_no_other_cluster(plane)
    plane.acquire_lock()
    check_webhook_port_is_free()
    with plane.label_children("build"):
        build.build_missing(print_line, dispatcher)
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, interrupt)
    try:
        start_components(plane, dispatcher)
    except BaseException as error:
        last_lines = describe_ended_components(plane)
        plane.down()
        print_line("removed everything that was started")
        if isinstance(error, OSError | ApiError):
            raise ClusterError(f"{error}\n{last_lines}".strip()) from error
        raise
    return plane


def check_no_other_cluster(plane: Plane) -> None:
    """Raise ClusterError if this user's cluster is running, and remove the leftovers of one that is not."""
    if plane.is_running():
        location = f" (KUBECONFIG={plane.admin_kubeconfig})" if plane.admin_kubeconfig.exists() else ""
        raise ClusterError(f"a test cluster is already running{location}: `make cluster-down` stops it")
    if plane.state_folder.exists():
        plane.down()


def check_webhook_port_is_free() -> None:
    """Raise ClusterError if another process listens on the port that is compiled into AppWrapper."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", components.APPWRAPPER_PORT))
        except OSError as error:
            raise ClusterError(
                f"port {components.APPWRAPPER_PORT}, which AppWrapper's webhook needs, is in use by another process"
            ) from error


def start_components(plane: Plane, dispatcher: str) -> None:
    """Start everything in order: what a controller looks up when it starts must exist by then."""
    started_at = time.monotonic()
    with timed_step("certificates and addresses"):
        write_state(plane, dispatcher)
    with timed_step("etcd and API server"):
        start_component(plane, components.etcd(plane))
        start_component(plane, components.kube_apiserver(plane))
        api = plane.api()
        wait_for("the API server", api.is_ready, plane)
    with timed_step("definitions, namespaces, nodes"):
        api.create_all(objects.build_namespaces())
        register_crds(api, plane)
        api.create_all([*objects.build_queues(), *fake.build_nodes(), *objects.build_operator_secrets(plane)])
        # Several modules of tests need it at the same time, so none of them may create and delete it.
        api.create_all([objects.build_priority_class("default-priority")])
        api.create_all([objects.build_appwrapper_settings(plane), *build_webhooks(plane), *objects.build_user_rights()])
    with timed_step("controllers"):
        controllers = components.build_controllers(plane)
        for component in controllers:
            start_component(plane, component)
        obstacle = nodes.start_nodes(plane)
        api.create_all(
            [*objects.build_networks(), *objects.build_deployments(dispatcher), *fake.build_device_plugins()]
        )
        for component in controllers:
            wait_for(component.name, partial(responds_ok, component.ready_url), plane)
    with timed_step("nodes, queue, webhooks"):
        for name, check in iter_readiness_checks(api, dispatcher):
            wait_for(name, check, plane)
    with timed_step("real nodes"):
        print_line(f"  {obstacle or nodes.wait_until_ready(plane)}")
    print(f"ready after {time.monotonic() - started_at:.1f} s, {measure_memory(plane) / 2**30:.2f} GiB\n", flush=True)


def write_state(plane: Plane, dispatcher: str) -> None:
    """Write the state folder: the record of the start, certificates and kubeconfigs."""
    plane.state_folder.mkdir(parents=True, mode=0o700)
    record = {"began": time.time(), "dispatcher": dispatcher, "ports": components.allocate_ports()}
    (plane.state_folder / "cluster.json").write_text(json.dumps(record))
    components.make_certificates(plane)
    plane.write_kubeconfig(plane.admin_kubeconfig, "admin", ["system:masters"])
    plane.write_kubeconfig(plane.user_kubeconfig, objects.USER)
    certificate = components.OPERATOR_CERTIFICATE
    if not certificate.exists() or certificate.read_text() == components.CERTIFICATE_MARKER:
        plane.add_teardown_command(["rm", "-rf", str(certificate.parents[1])])
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificate.write_text(components.CERTIFICATE_MARKER)


def start_component(plane: Plane, component: components.Component) -> None:
    program, *options = component.command
    path = plane.get_program_path(program) if program in build.get_program_paths() else program
    plane.start(component.name, [path, *options], component.environment)


def register_crds(api: Api, plane: Plane) -> None:
    """Register every CRD before any controller starts.

    Some controllers look for them only once, and the garbage collector only every 30 s.
    """
    crds = objects.load_crds(plane.dispatcher)
    api.create_all(crds)
    for crd in crds:
        wait_for(crd["metadata"]["name"], partial(is_served, api, crd), plane)


def wait_for(name: str, condition: Callable[[], bool], plane: Plane) -> None:
    """Poll until the condition is true.

    Raises ClusterError at once if a process of the cluster has exited, and after STEP_TIMEOUT_S.
    """
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not condition():
        last_lines = describe_ended_components(plane)
        if last_lines:
            raise ClusterError(last_lines)
        if time.monotonic() > deadline:
            raise ClusterError(f"{name} was not ready within {STEP_TIMEOUT_S:.0f} s\n{plane.read_last_log_lines(name)}")
        time.sleep(0.05)


def describe_ended_components(plane: Plane) -> str:
    """The last log lines of the processes that have exited; "" while all are running."""
    return "\n".join(
        f"{component} has exited; its last log lines:\n{plane.read_last_log_lines(component)}"
        for component in plane.list_ended_components()
    )


@contextmanager
def timed_step(name: str) -> Iterator[None]:
    """Print the name of a step, and its duration after the block."""
    started_at = time.monotonic()
    print_line(f"{name} ...")
    yield
    print_line(f"  {time.monotonic() - started_at:.1f} s")


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def print_line(line: str) -> None:
    print(line, flush=True)


# --- down and status -------------------------------------------------------------------------------------------------


def down() -> None:
    """Stop the cluster, and print what was removed."""
    for line in Plane().down() or ["no test cluster was running"]:
        print(line)


def measure_memory(plane: Plane) -> int:
    """The resident memory of all processes, in bytes."""
    return sum(process.memory_bytes for process in plane.list_processes())


def status() -> None:
    """Print the nodes, controllers, memory, uptime and kubeconfig of the running cluster."""
    plane = Plane.current()
    api = plane.api()
    if not api.is_ready():
        raise ClusterError(
            f"the API server does not respond:\n{plane.read_last_log_lines('kube-apiserver')}\n"
            "`make cluster-down` removes the cluster"
        )
    uptime_s = int(time.time() - plane.record["began"])
    print(
        f"up for {uptime_s // 3600} h {uptime_s // 60 % 60} min {uptime_s % 60} s, "
        f"queue default {read_queue_state(api)}"
    )
    nodes = api.call("GET", "/api/v1/nodes")["items"]
    ready_nodes = [obj for obj in nodes if has_condition(obj, "Ready")]
    real_nodes = [obj for obj in nodes if obj["metadata"]["labels"].get("type") != "kwok"]
    print(f"{len(ready_nodes)} of {len(nodes)} nodes ready, {len(real_nodes)} of them real")
    for obj in objects.build_deployments(plane.dispatcher):
        image = obj["spec"]["template"]["spec"]["containers"][0]["image"]
        state = "available" if is_available(api, obj) else "not available"
        print(f"  {obj['metadata']['name']:32} {state:14} {image}")
    print(f"{measure_memory(plane) / 2**20:.0f} MiB")
    for process in sorted(plane.list_processes(), key=lambda process: -process.memory_bytes):
        print(f"  {process.component:32} {process.memory_bytes / 2**20:6.0f} MiB  process {process.pid}")
    print_access(plane)


def print_access(plane: Plane) -> None:
    print(f"logs: {plane.log_folder}")
    print(f"user without privileges: {plane.user_kubeconfig}")
    print(f"export KUBECONFIG={plane.admin_kubeconfig}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--mcad", action="store_true", help="the archived dispatcher (v1beta1) instead of AppWrapper")
    args = parser.parse_args()
    try:
        match args.command:
            case "up":
                print_access(up(build.DISPATCHERS[args.mcad]))
            case "down":
                down()
            case _:
                status()
    except (ClusterError, build.BuildError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
