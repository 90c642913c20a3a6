"""Become a command in the environment of a supervised process. Standard library only, Python 3.8 or newer.

`supervisor.py enter FOLDER COMMAND...` runs it on the process's host, with the terminal or the pipes of its caller. The
command has the variables and the work folder of the process, and is not a part of the job: it has neither the job's
label nor its recorder, so a teardown does not end it, and its Pythons write no records.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from torchyard.host.processes import FLOW_RUN_VARIABLE, FOLDER_VARIABLE, JOB_VARIABLE
from torchyard.host.state import Json, get_process, read_spec, view_state

_JOB_VARIABLES = (JOB_VARIABLE, FOLDER_VARIABLE, FLOW_RUN_VARIABLE, "TORCHYARD_BLACK_BOX")


def enter_process(folder: str, argv: list[str]) -> NoReturn:
    """Become a command beside the process of a folder. Exits with 1 and a sentence if the process does not run here."""
    state = view_state(folder)
    obstacle = describe_obstacle(state)
    if obstacle:
        sys.exit("%s %s" % (os.path.basename(folder), obstacle))
    spec = read_spec(folder) or {}
    environment = build_environment(_read_environment(state["agent"]), spec)
    try:
        os.chdir(spec.get("cwd", "."))
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that
        os.execvpe(argv[0], argv, environment)
    except (OSError, ValueError) as error:
        print("cannot start %s in %s: %s" % (argv[0], spec.get("cwd", "."), error), file=sys.stderr)
        sys.exit(127)


def describe_obstacle(state: Json) -> str:
    """Why the process of a state cannot be entered from here, as the end of a sentence; empty if it can."""
    if state.get("elsewhere"):
        return "runs %s: run this command there" % state["elsewhere"]
    phase = state["phase"]
    if phase == "exited":
        return "has ended with exit code %s" % state.get("exit")
    if "detail" in state:
        return "cannot be entered: %s" % state["detail"]
    if phase not in ("running", "unsupervised"):
        return "does not run on this host: it has not started yet, or was removed"
    if not get_process(state, "agent").is_alive:
        return "has just ended"
    return ""


def build_environment(environment: dict[str, str], spec: Json) -> dict[str, str]:
    """The variables of a command beside a process with this environment; empty if that cannot be read.

    Another user's process, or one that has overwritten its environment (setproctitle), has none: then the variables of
    its spec are added to those of this host.
    """
    if JOB_VARIABLE not in environment:
        environment = dict(os.environ, **spec.get("env", {}))
    result = {name: value for name, value in environment.items() if name not in _JOB_VARIABLES}
    python_path = result.get("PYTHONPATH", "").split(os.pathsep)
    if spec.get("recorder") in python_path:
        python_path.remove(spec["recorder"])
        result["PYTHONPATH"] = os.pathsep.join(python_path)
        if not python_path:
            del result["PYTHONPATH"]
    if "TERM" in os.environ:
        result["TERM"] = os.environ["TERM"]  # of the caller's terminal
    return result


def _read_environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return {}
    environment = {}
    for variable in variables:
        name, _, value = variable.partition(b"=")
        if name:
            environment[os.fsdecode(name)] = os.fsdecode(value)
    return environment
