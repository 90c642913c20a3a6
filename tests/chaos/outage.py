"""Faults of the whole cluster: its API server is killed and restarted, or a controller is down for some seconds."""

import time
from functools import partial

from tests.chaos.job import ClusterTrial
from tests.chaos.world import wait_until
from tests.cluster import build, components
from tests.cluster.plane import Plane, has_exited, kill_process

API_SERVER_OUTAGE_S = 5.0  # seconds that an API server is down
CONTROLLER_OUTAGE_S = 20.0  # seconds that a controller is down
SERVER = "API server restart"
COMPONENT_BUILDERS = {
    "volcano": components.vc_controller_manager,
    "pytorchjob": components.training_operator,
    "job": components.kube_controller_manager,
    SERVER: components.kube_apiserver,
}


def interrupt_component(plane: Plane, fault: str, trials: list[ClusterTrial]) -> None:
    """Kill a component, wait, and start it again unchanged."""
    component = COMPONENT_BUILDERS[SERVER if fault == SERVER else trials[0].cell.launcher](plane)
    stop_component(plane, component.name)
    try:
        for trial in trials:
            trial.handle_outage(fault == SERVER)
        time.sleep(API_SERVER_OUTAGE_S if fault == SERVER else CONTROLLER_OUTAGE_S)
    finally:
        start_component(plane, component)
    wait_until("the API server", plane.api().is_ready, 60)


def stop_component(plane: Plane, name: str) -> None:
    for pid in [process.pid for process in plane.list_processes() if process.component == name]:
        kill_process(pid)
        wait_until(f"{name} is gone", partial(has_exited, pid), 10)


def start_component(plane: Plane, component: components.Component) -> None:
    """Start a component the way cluster.py does."""
    program, *options = component.command
    path = plane.get_program_path(program) if program in build.get_program_paths() else program
    plane.start(component.name, [path, *options], component.environment)
