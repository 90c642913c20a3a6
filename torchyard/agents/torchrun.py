"""torchrun: its agents' command line, and the lines of their logs."""

import re
import zlib
from typing import NamedTuple

from torchyard.model.base import FrozenModel
from torchyard.model.profile import Profile
from torchyard.model.run import Run

_JOINED_TEXT = "Rendezvous complete for workers"
LOCAL_RANK_0_PREFIX = "[default0]:"  # what --tee writes before a line of local rank 0
# What a raw line contains if it comes from local rank 0, or has a node's rank: a cheap test before a pattern.
LOCAL_RANK_0_MARKER = b"[default0"
GROUP_RANK_MARKER = b"group_rank="
_GROUP_RANK_PATTERN = re.compile(r"\sgroup_rank=(\d+)\s*$")
_WORKER_LINE_PATTERN = re.compile(r"^\[default(\d+)\]:(.*)", re.DOTALL)
LEVEL_VARIABLE = "LOGLEVEL"
RANK_LEVELS = ("INFO", "DEBUG")  # of LEVEL_VARIABLE, at which an agent logs the rank of its node
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_VARIABLE_VERSION = "2.12"  # of torch, whose torchrun reads it first
OLD_SHUTDOWN_TIMEOUT_S = 30  # between SIGTERM and SIGKILL of the ranks, in every earlier torchrun
_MAX_SHUTDOWN_MARGIN_S = 5.0
LOCAL_ADDR_VARIABLE = "PET_LOCAL_ADDR"  # torchrun's parser reads it as --local_addr, if it has that option
MODULES = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}


class Endpoint(FrozenModel):
    """The address at which the nodes meet."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class JobNode(NamedTuple):
    """A node in its job.

    node: its rank or, in pods, which all have the same command, the name of the variable that holds it.
    address: a name or address at which the other nodes can reach it; empty if it has none.
    suffix: of the rendezvous id, for agents that meet before those of the job.
    """

    endpoint: Endpoint
    node: int | str
    address: str = ""
    suffix: str = ""

    @property
    def rank(self) -> str:
        """The node's rank as a word of a command: the kubelet expands `$(NAME)` to a variable's value."""
        return f"$({self.node})" if isinstance(self.node, str) else str(self.node)


def first_port(run: Run) -> int:
    """The first of three ports of a run."""
    return _FIRST_PORTS[zlib.crc32(f"{run.id}/{run.attempt}/{run.port_try}".encode()) % len(_FIRST_PORTS)]


def _list_first_ports() -> tuple[int, ...]:
    """Every port that is followed by two more of `_PORT_RANGES`, without `_RESERVED_PORTS`."""
    ports = {port for port_range in _PORT_RANGES for port in port_range} - _RESERVED_PORTS
    return tuple(sorted(port for port in ports if {port + 1, port + 2} <= ports))


# Without the ephemeral ports of Linux (32768-60999), the node ports of Kubernetes (30000-32767), and torch's own ports.
_PORT_RANGES = (range(10300, 29400), range(61000, 65536))
# Istio's sidecar, memcached, Ollama, RabbitMQ, Jaeger, Spark, NFS, GlusterFS, CockroachDB, MongoDB
_RESERVED_PORTS = frozenset(
    {*range(15000, 15100), 11211, 11434, 15672, 16686, 18080, 20048, 24007, 25672, 26257, *range(27017, 27020)}
)
_FIRST_PORTS = _list_first_ports()


def agent_options(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """The agent's options on one node, with underscores: before torch 2.0 there was no other spelling.

    A pod's image may have any torch, so it gets only what torchrun has had since 1.9. `--local_addr` came with 2.0,
    which preflight requires on machines; pods get LOCAL_ADDR_VARIABLE, which an older agent does not read.
    """
    options = [
        f"--nnodes={profile.nodes}",
        f"--nproc_per_node={profile.processes}",
        f"--max_restarts={profile.max_restarts}",
        "--tee=3",
        *_rendezvous_options(profile, run, job_node),
    ]
    is_on_machine = isinstance(job_node.node, int)
    if is_on_machine and job_node.address:
        options.append(f"--local_addr={job_node.address}")
    return tuple(options)


def _rendezvous_options(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """How a node finds the others. Only static uses the node rank; the other backends rank by arrival."""
    endpoint = job_node.endpoint
    join_timeout_s = get_join_timeout_s(profile)
    if profile.rendezvous == "static":
        return (
            "--rdzv_backend=static",
            f"--node_rank={job_node.rank}",
            f"--master_addr={endpoint.address}",
            f"--master_port={endpoint.port}",
            f"--rdzv_id={rendezvous_id(profile, run)}{job_node.suffix}",
            f"--rdzv_conf=timeout={join_timeout_s}",
        )
    options = (
        f"--rdzv_backend={profile.rendezvous}",
        f"--rdzv_endpoint={endpoint}",
        f"--rdzv_id={rendezvous_id(profile, run)}{job_node.suffix}",
    )
    if profile.rendezvous != "c10d":
        return (*options, f"--rdzv_conf=join_timeout={join_timeout_s}")
    if isinstance(job_node.node, str):
        return options  # the pod's prelude sets the configuration, which differs from pod to pod
    is_host = int(job_node.node == 0)
    return (*options, f"--rdzv_conf=join_timeout={join_timeout_s},is_host={is_host}")


def rendezvous_id(profile: Profile, run: Run) -> str:
    """The rendezvous id, new for each attempt.

    A store refuses an id that has been closed, and an agent of an earlier attempt that comes back meets nobody.
    """
    return run.job(profile)


def get_shutdown_timeout_s(profile: Profile) -> int:
    """Whole seconds, at least 1, that torchrun gives its ranks between SIGTERM and SIGKILL.

    It has a part of the grace to itself, so that it can report how the ranks have ended before it is killed as well.
    """
    grace_s = profile.deadlines.grace
    return max(int(grace_s - min(_MAX_SHUTDOWN_MARGIN_S, grace_s / 5)), 1)


def describe_old_shutdown(profile: Profile) -> str | None:
    """What a torchrun that does not read SHUTDOWN_VARIABLE does to a save longer than `OLD_SHUTDOWN_TIMEOUT_S`.

    None if the profile's grace is not longer, or if there is no agent.
    """
    timeout_s = get_shutdown_timeout_s(profile)
    if profile.resolved_agent == "none" or timeout_s <= OLD_SHUTDOWN_TIMEOUT_S:
        return None
    return (
        f"its torchrun kills the ranks {OLD_SHUTDOWN_TIMEOUT_S} s after SIGTERM, not after {timeout_s} s as "
        "deadlines.grace asks: a longer save is lost"
    )


def get_join_timeout_s(profile: Profile) -> int:
    """How long a node waits for the others, in whole seconds, at least 1."""
    return int(profile.deadlines.start) or 1


def has_joined(text: str) -> bool:
    """Whether an agent's line reports that its node has joined. Agents log it with LOGLEVEL=INFO."""
    return _JOINED_TEXT in text


def parse_group_rank(text: str) -> int | None:
    """The rank that the rendezvous gave a node; None if the line has none.

    The node of group rank 0 has global rank 0.
    """
    match = _GROUP_RANK_PATTERN.search(text)
    return int(match[1]) if match else None


class WorkerLine(NamedTuple):
    """A line of a worker as it printed it, without torchrun's prefix."""

    local_rank: int
    text: str


def parse_worker_line(text: str) -> WorkerLine | None:
    """The line of a worker; None for a line of the agent."""
    match = _WORKER_LINE_PATTERN.match(text)
    return WorkerLine(int(match[1]), match[2]) if match else None
