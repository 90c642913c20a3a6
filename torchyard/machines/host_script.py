"""Calls the script of a host: one command for all processes there."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torchyard.machines import processes
from torchyard.machines.host_command import script_command
from torchyard.machines.ownership import check_response
from torchyard.machines.processes import Command
from torchyard.model.errors import HostError
from torchyard.model.plan import HostScript, Process

Verb = Literal["submit", "status", "cancel", "watch"]
# Without the script a host looks for its absence: `test` is false for every error, also of a share that is away.
_ABSENT_GUARD = '[ -e "$0" ] && exec "$@"; exec '
_ENTER_GUARD = (
    '[ -e "$0" ] || { echo "this host has no folder of the job: it has not started, or has ended" >&2; exit 1; }; '
    'exec "$@"'
)


def build_command(script: HostScript, verb: Verb, requests: Mapping[str, Any] | None = None) -> Command:
    """The command line of a verb; `requests` are written to its stdin."""
    argv = (*script.argv, verb)
    if script.site and verb != "submit":  # a submit follows the creation of the folder
        site = script.site
        look = script_command(script.host, site.python, "staging.py", "look", site.folder, script.argv[-1])
        argv = ("sh", "-c", _ABSENT_GUARD + shlex.join(look.argv), script.argv[-1], *argv)
    return Command(argv, requests)


def build_enter_command(process: Process, argv: Sequence[str]) -> Command:
    """The command line that becomes `argv` beside a process, on its host."""
    enter_argv = (*process.script.argv, "enter", process.folder, *argv)
    if process.site:
        enter_argv = ("sh", "-c", _ENTER_GUARD, process.script.argv[-1], *enter_argv)
    return Command(enter_argv)


def build_forward_command(process: Process, local_port: int, remote_port: int) -> Command:
    """The command line that forwards a port of this machine to a process that its script here serves."""
    return Command((*process.script.argv, "forward", process.folder, str(local_port), str(remote_port)))


def group_by_script(job_processes: Sequence[Process]) -> dict[HostScript, list[Process]]:
    """The processes of each script, in their order."""
    groups: dict[HostScript, list[Process]] = {}
    for process in job_processes:
        groups.setdefault(process.script, []).append(process)
    return groups


def call_scripts(
    verb: Verb,
    job_processes: Sequence[Process],
    build_request: Callable[[Process], dict[str, Any]],
    *,
    timeout_s: float = processes.COMMAND_TIMEOUT_S,
) -> dict[str, Any]:
    """Call a verb of all scripts at once; the response for each process by its name.

    The response of a host without the run's folder is an absent process with `site: False`, that of one that fails is
    its HostError. Processes without a spec are not called for: another one stands for them. RunInUseError if a host
    refuses because another living launcher owns the run.
    """
    groups = group_by_script([process for process in job_processes if process.spec is not None])
    commands: list[tuple[str, Command]] = []
    for script, members in groups.items():
        requests = {process.name: build_request(process) for process in members}
        commands.append((script.host, build_command(script, verb, requests)))
    responses: dict[str, Any] = {}
    for members, response in zip(groups.values(), processes.run_commands(commands, timeout_s=timeout_s), strict=True):
        for process in members:
            responses[process.name] = _read_response(process, response)
            check_response(process.host, responses[process.name])
    return responses


def submit_processes(job_processes: Sequence[Process]) -> list[dict[str, Any]]:
    """Start or adopt processes; the state of each. HostError if a host refuses, or a process is not started."""

    def build_request(process: Process) -> dict[str, Any]:
        return {"folder": process.folder, "spec": process.spec}

    responses = call_scripts("submit", job_processes, build_request)
    hosts = {process.name: process.host for process in job_processes}
    for name, response in responses.items():
        if isinstance(response, HostError):
            raise response
        if response["phase"] in ("failed", "starting"):
            reason = response.get("error") or "the supervisor does not answer"
            raise HostError(hosts[name], f"start {name}", reason)
    return list(responses.values())


def _read_response(process: Process, response: Any) -> Any:
    """The response for one process, from that of its host."""
    if isinstance(response, HostError):
        return response
    if isinstance(response, dict):
        if response.get("site") is False:
            return {"phase": "absent", "left": [], "site": False}
        if isinstance(response.get(process.name), dict):
            return response[process.name]
    return HostError(process.host, f"query {process.name}", "its response does not have the process")
