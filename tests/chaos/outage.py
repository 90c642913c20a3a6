"""Faults of the whole cluster: its API server is killed and restarted, or a controller is down for a while."""

import time
from functools import partial

from tests.chaos.job import Job
from tests.chaos.world import until
from tests.cluster import build, components
from tests.cluster.plane import Plane, gone, signal_process

AWAY = 5.0  # seconds that an API server is down
BESIDE = 20.0  # seconds that a controller is down
SERVER = "API server restart"
STRUCK = {
    "volcano": components.vc_controller_manager,
    "pytorchjob": components.training_operator,
    SERVER: components.kube_apiserver,
}


def away(plane: Plane, fault: str, trials: list[Job]) -> None:
    """Kill a component, wait, and start it again unchanged."""
    component = STRUCK[SERVER if fault == SERVER else trials[0].cell.column](plane)
    stop(plane, component.name)
    try:
        for trial in trials:
            trial.part(fault == SERVER)
        time.sleep(AWAY if fault == SERVER else BESIDE)
    finally:
        begin(plane, component)
    until("the API server", plane.api().ready, 60)


def stop(plane: Plane, name: str) -> None:
    for pid in [process.pid for process in plane.processes() if process.component == name]:
        signal_process(pid)
        until(f"{name} is gone", partial(gone, pid), 10)


def begin(plane: Plane, component: components.Component) -> None:
    """Start a component the way cluster.py does."""
    program, *options = component.command
    path = plane.program(program) if program in build.programs() else program
    plane.start(component.name, [path, *options], component.environment)
