"""`torchyard shell`, `exec` and `forward`: into the nodes of a run that runs now.

In each of them `context` is the cluster with a run that another machine started: its kubeconfig context, "" for the
current one; None for a run of this machine or the archive.
"""

import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

from torchyard.backends import access_to
from torchyard.cli.find import find_run
from torchyard.common.escaping import strip_control_codes
from torchyard.interfaces import RunNodes
from torchyard.model.errors import AccessError, SelectionError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.run.folder import RunFolder

SHELL_ARGV = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec sh")
_MAX_PORT = 65535


def open_shell(run_name: str, node: str | None, *, context: str | None = None) -> int:
    """Run a shell in a node, with a terminal or, in a pipe, for the commands of stdin; return its exit code."""
    return run_command(run_name, node, SHELL_ARGV, context=context)


def run_command(run_name: str, node: str | None, argv: Sequence[str], *, context: str | None = None) -> int:
    """Run a command in a node with this process's stdin and stdout; return its exit code."""
    nodes = find_nodes(run_name, context)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    sys.stdout.flush()  # this process may be replaced
    return nodes.access.run_command(choose_node(nodes.names, node), argv, has_terminal=has_terminal)


def run_everywhere(run_name: str, argv: Sequence[str], *, context: str | None = None) -> int:
    """Run a command in all nodes, and print each line after the name of its node.

    Returns 0 if it has succeeded in all; else the exit code of the first node in which it did not, whose nodes are
    listed on stderr.
    """
    nodes = find_nodes(run_name, context)
    printer = _NodePrinter(max(map(len, nodes.names)))
    results = nodes.access.run_on_nodes(nodes.names, argv, printer.print_output)
    printer.print_rest()
    exit_code = 0
    for node, result in results.items():
        if result == 0:
            continue
        is_error = isinstance(result, TorchyardError)
        message = str(result) if is_error else f"{node}: exit code {result}"
        print(strip_control_codes(message), file=sys.stderr)
        exit_code = exit_code or (result if isinstance(result, int) else 1)
    return exit_code


def forward_port(run_name: str, node: str | None, ports: str, *, context: str | None = None) -> int:
    """Forward a port of this machine to one of a node, until Ctrl-C. `ports`: `6006`, or `16006:6006`."""
    local_port, remote_port = parse_ports(ports)
    nodes = find_nodes(run_name, context)
    chosen_node = choose_node(nodes.names, node)
    return nodes.access.forward_port(chosen_node, local_port, remote_port)


class PortPair(NamedTuple):
    """A port of this machine, and the one of a node to which it leads."""

    local: int
    remote: int


def parse_ports(text: str) -> PortPair:
    """The ports that `PORT` or `PORT:REMOTE` names. TorchyardError if the text is neither."""
    local, _, remote = text.partition(":")
    try:
        pair = PortPair(int(local), int(remote or local))
    except ValueError:
        pair = PortPair(0, 0)
    if not all(1 <= port <= _MAX_PORT for port in pair):
        raise TorchyardError(
            f"{text!r} is not a port: use PORT for the same one here and there, or PORT:REMOTE, each from 1 to "
            f"{_MAX_PORT}"
        )
    return pair


def find_nodes(run_name: str, context: str | None) -> RunNodes:
    """The nodes of a run's last attempt. Errors as in `find_live_plan`, or `find_leased_nodes` with a context."""
    if context is not None:
        from torchyard.cli.leased_run import find_leased_nodes  # a run on this machine needs no client of a cluster

        return find_leased_nodes(run_name, context)
    plan = find_live_plan(run_name)
    return RunNodes(tuple(plan.nodes), access_to(plan))


def find_live_plan(run_name: str) -> Plan:
    """The plan of a run's last attempt. Errors as in `find_run`, and AccessError if its job has ended."""
    folder = find_run(run_name).folder
    number = folder.attempts()[-1]
    reason = _describe_end(folder, number)
    if reason:
        raise AccessError(run_name, f"{reason}; its logs are in {folder.attempt(number)}")
    return folder.plans()[-1]


def _describe_end(folder: RunFolder, number: int) -> str:
    """How the run or its last attempt has ended; empty if its job may still run."""
    record = folder.read_record()
    if record.end and record.job is None:
        return f"the run has ended ({record.end}), and has no nodes any more"
    if folder.outcome(number) or folder.ended(number):
        return f"the job of attempt {number} has ended, and the run is at its end or before its next attempt"
    return ""


def choose_node(nodes: Sequence[str], name: str | None) -> str:
    """The node of this name, or with this number in the order of `nodes`; None: the first one.

    SelectionError if there is no such node.
    """
    if name is None:
        return nodes[0]
    if name in nodes:
        return name
    if name.isascii() and name.isdigit() and int(name) < len(nodes):
        return nodes[int(name)]
    choices = ", ".join(nodes[:8]) + (", ..." if len(nodes) > 8 else "")
    raise SelectionError(f"{name}: the job has no such node; there are {len(nodes)}: {choices}")


class _NodePrinter:
    """Prints the output of several nodes in complete lines, each after the name of its node.

    Threads. Any thread may call `print_output`; `print_rest` once no thread does.
    """

    def __init__(self, name_width: int) -> None:
        self._name_width = name_width
        self._lock = threading.Lock()
        self._unfinished_lines: dict[tuple[str, int], bytes] = {}  # by node and descriptor

    def print_output(self, node: str, descriptor: int, data: bytes) -> None:
        """Print the lines that this piece of output completes, to stdout (1) or stderr (2)."""
        with self._lock:
            *lines, unfinished_line = (self._unfinished_lines.get((node, descriptor), b"") + data).split(b"\n")
            self._unfinished_lines[node, descriptor] = unfinished_line
            for line in lines:
                self._print_line(node, descriptor, line)

    def print_rest(self) -> None:
        """Print last lines that do not end in a newline."""
        for (node, descriptor), line in self._unfinished_lines.items():
            if line:
                self._print_line(node, descriptor, line)

    def _print_line(self, node: str, descriptor: int, line: bytes) -> None:
        stream = sys.stdout if descriptor == 1 else sys.stderr
        text = line.decode(errors="replace")
        if stream.isatty():  # a file or a pipe gets every byte
            text = strip_control_codes(text)
        print(f"{node:<{self._name_width}} | {text}", file=stream, flush=True)
