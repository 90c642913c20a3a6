"""Commands beside the processes of a job, and ports of its hosts: on this machine and behind ssh."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn

from torchyard.interfaces import OutputCallback
from torchyard.machines import processes
from torchyard.machines.host_script import build_enter_command, build_forward_command
from torchyard.model.errors import HostError, TorchyardError
from torchyard.model.plan import CommandPlan, Process
from torchyard.model.requirements import THIS_MACHINE

_MAX_PARALLEL_COMMANDS = 64  # each is a process here, and a connection to its host


class MachinesAccess:
    """The `NodeAccess` of machines. The host's script knows the process, and becomes the command (host/enter.py)."""

    def __init__(self, plan: CommandPlan) -> None:
        self._processes = {process.name: process for process in plan.processes}

    def run_command(self, node: str, argv: Sequence[str], *, has_terminal: bool) -> NoReturn:
        process = self._processes[node]
        command = build_enter_command(process, argv)
        processes.replace_process(processes.build_argv(process.host, command, has_terminal=has_terminal))

    def run_on_nodes(
        self, nodes: Sequence[str], argv: Sequence[str], on_output: OutputCallback
    ) -> dict[str, int | TorchyardError]:
        def run_on(node: str) -> int | TorchyardError:
            process = self._processes[node]
            try:
                return processes.follow_command(
                    process.host, build_enter_command(process, argv), partial(on_output, node)
                )
            except HostError as error:
                return error

        with ThreadPoolExecutor(min(len(nodes), _MAX_PARALLEL_COMMANDS)) as pool:
            return dict(zip(nodes, pool.map(run_on, nodes), strict=True))

    def forward_port(self, node: str, local_port: int, remote_port: int) -> NoReturn:
        process = self._processes[node]
        if process.host not in THIS_MACHINE:  # a script of this machine prints its own message, and ssh prints none
            message = f"127.0.0.1:{local_port} leads to port {remote_port} of {node} (host {process.host}) until Ctrl-C"
            print(message, file=sys.stderr, flush=True)
        processes.replace_process(build_forward_argv(process, local_port, remote_port))


def build_forward_argv(process: Process, local_port: int, remote_port: int) -> tuple[str, ...]:
    """The command line that forwards a port: ssh's own for a host behind it; here the script answers."""
    if process.host in THIS_MACHINE:
        return build_forward_command(process, local_port, remote_port).argv
    return processes.build_forward_argv(process.host, local_port, remote_port)
