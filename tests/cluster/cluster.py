"""`make cluster-up`, `make cluster-down` and `make cluster-status`: a real control plane on this machine.

etcd, API server, controller manager, scheduler, Volcano, training operator, JobSet and AppWrapper (or, with --mcad, the
dispatcher that came before it) are the real programs (see build.py); nodes and pods are fake (see fake.py), except two
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
from tests.cluster.ready import answers, has_condition, is_available, queue_state, served, signs
from tests.cluster.webhooks import webhooks

PATIENCE = 90.0  # seconds that a step may take; on two cores each takes less than ten


# --- up --------------------------------------------------------------------------------------------------------------


def up(dispatcher: str) -> Plane:
    """Build what is missing and start the cluster; on any error everything is removed again."""
    plane = Plane()
    refuse_second(plane)
    plane.claim()
    refuse_taken_port()
    with plane.labelling("build"):
        build.build(tell, dispatcher)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, interrupt)
    try:
        start(plane, dispatcher)
    except BaseException as error:
        words = last_words(plane)
        plane.down()
        tell("removed everything that was started")
        if isinstance(error, OSError | ApiError):
            raise ClusterError(f"{error}\n{words}".strip()) from error
        raise
    return plane


def refuse_second(plane: Plane) -> None:
    """Refuse if this user's cluster is running, and remove the leftovers of one that is not."""
    if plane.running():
        known = f" (KUBECONFIG={plane.admin})" if plane.admin.exists() else ""
        raise ClusterError(f"a test cluster is already running{known}: `make cluster-down` stops it")
    if plane.state.exists():
        plane.down()


def refuse_taken_port() -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", components.APPWRAPPER_PORT))
        except OSError as error:
            raise ClusterError(
                f"port {components.APPWRAPPER_PORT} is in use by another process, and AppWrapper's webhook needs it"
            ) from error


def start(plane: Plane, dispatcher: str) -> None:
    """Start everything in order: what a controller looks up when it starts must exist by then."""
    began = time.monotonic()
    with step("certificates and addresses"):
        prepare(plane, dispatcher)
    with step("etcd and API server"):
        launch(plane, components.etcd(plane))
        launch(plane, components.kube_apiserver(plane))
        api = plane.api()
        wait("the API server", api.ready, plane)
    with step("definitions, namespaces, nodes"):
        api.create_all(objects.namespaces())
        define(api, plane)
        api.create_all([*objects.queues(), *fake.nodes(), *objects.operator_secrets(plane)])
        api.create_all([objects.appwrapper_settings(plane), *webhooks(plane), *objects.user()])
    with step("controllers"):
        started = components.controllers(plane)
        for one in started:
            launch(plane, one)
        lacking = nodes.begin(plane)
        api.create_all([*objects.networks(), *objects.deployments(dispatcher), *fake.device_plugins()])
        for one in started:
            wait(one.name, partial(answers, one.ready), plane)
    with step("nodes, queue, webhooks"):
        for what, found in signs(api, dispatcher):
            wait(what, found, plane)
    with step("real nodes"):
        tell(f"  {lacking or nodes.wait_ready(plane)}")
    print(f"ready after {time.monotonic() - began:.1f} s, {memory(plane) / 2**30:.2f} GiB\n", flush=True)


def prepare(plane: Plane, dispatcher: str) -> None:
    plane.state.mkdir(parents=True, mode=0o700)
    facts = {"began": time.time(), "dispatcher": dispatcher, "ports": components.free_ports()}
    (plane.state / "cluster.json").write_text(json.dumps(facts))
    components.make_certificates(plane)
    plane.kubeconfig(plane.admin, "admin", ["system:masters"])
    plane.kubeconfig(plane.user, objects.USER)
    if not components.COMPILED_IN.exists() or components.COMPILED_IN.read_text() == components.OURS:
        plane.on_down(["rm", "-rf", str(components.COMPILED_IN.parents[1])])
        components.COMPILED_IN.parent.mkdir(parents=True, exist_ok=True)
        components.COMPILED_IN.write_text(components.OURS)


def launch(plane: Plane, component: components.Component) -> None:
    program, *options = component.command
    path = plane.program(program) if program in build.programs() else program
    plane.start(component.name, [path, *options], component.environment)


def define(api: Api, plane: Plane) -> None:
    """Register every CRD before any controller starts: some check only once, the garbage collector every 30 s."""
    wanted = objects.definitions(plane.dispatcher)
    api.create_all(wanted)
    for one in wanted:
        wait(one["metadata"]["name"], partial(served, api, one), plane)


def wait(what: str, found: Callable[[], bool], plane: Plane) -> None:
    """Poll until it is found; raises ClusterError at once if a process has died, and after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not found():
        if words := last_words(plane):
            raise ClusterError(words)
        if time.monotonic() > deadline:
            raise ClusterError(f"there was no sign of {what} within {PATIENCE:.0f} s\n{plane.last_words(what)}")
        time.sleep(0.05)


def last_words(plane: Plane) -> str:
    """The last log lines of the processes that have ended; "" while all are running."""
    return "\n".join(f"{one} ended, its last log lines:\n{plane.last_words(one)}" for one in plane.ended())


@contextmanager
def step(name: str) -> Iterator[None]:
    began = time.monotonic()
    tell(f"{name} ...")
    yield
    tell(f"  {time.monotonic() - began:.1f} s")


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def tell(line: str) -> None:
    print(line, flush=True)


# --- down and status -------------------------------------------------------------------------------------------------


def down() -> None:
    for line in Plane().down() or ["no test cluster was running"]:
        print(line)


def memory(plane: Plane) -> int:
    return sum(process.memory for process in plane.processes())


def status() -> None:
    """Print the nodes, controllers, memory, uptime and kubeconfig of the running cluster."""
    plane = Plane.current()
    api = plane.api()
    if not api.ready():
        raise ClusterError(
            f"the API server does not answer:\n{plane.last_words('kube-apiserver')}\n`make cluster-down` cleans up"
        )
    seconds = int(time.time() - plane.facts["began"])
    print(f"up for {seconds // 3600} h {seconds // 60 % 60} min {seconds % 60} s, queue default {queue_state(api)}")
    nodes = api.call("GET", "/api/v1/nodes")["items"]
    ready = [one for one in nodes if has_condition(one, "Ready")]
    real = [one for one in nodes if one["metadata"]["labels"].get("type") != "kwok"]
    print(f"{len(ready)} of {len(nodes)} nodes ready, {len(real)} of them real")
    for one in objects.deployments(plane.dispatcher):
        image = one["spec"]["template"]["spec"]["containers"][0]["image"]
        state = "available" if is_available(api, one) else "not available"
        print(f"  {one['metadata']['name']:32} {state:14} {image}")
    print(f"{memory(plane) / 2**20:.0f} MiB")
    for process in sorted(plane.processes(), key=lambda one: -one.memory):
        print(f"  {process.component:32} {process.memory / 2**20:6.0f} MiB  process {process.pid}")
    show_way_in(plane)


def show_way_in(plane: Plane) -> None:
    print(f"logs: {plane.logs}")
    print(f"user without privileges: {plane.user}")
    print(f"export KUBECONFIG={plane.admin}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["up", "down", "status"])
    parser.add_argument("--mcad", action="store_true", help="the archived dispatcher (v1beta1) instead of AppWrapper")
    told = parser.parse_args()
    try:
        match told.what:
            case "up":
                show_way_in(up(build.DISPATCHERS[told.mcad]))
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
