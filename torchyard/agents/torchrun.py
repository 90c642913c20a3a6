"""torchrun: its agents' command line, and what their logs say."""

import re
import zlib
from typing import NamedTuple

from torchyard.model.base import FrozenModel
from torchyard.model.profile import Profile
from torchyard.model.run import Run

_JOINED_TEXT = "Rendezvous complete for workers"
LOCAL_RANK_0_PREFIX = "[default0]:"  # what --tee writes before a line of local rank 0
# What a raw line must contain to come from local rank 0, or to give a node's rank.
LOCAL_RANK_0_MARKER, GROUP_RANK_MARKER = b"[default0", b"group_rank="
_GROUP_RANK_PATTERN = re.compile(r"\sgroup_rank=(\d+)\s*$")
_WORKER_LINE_PATTERN = re.compile(r"^\[default(\d+)\]:(.*)", re.DOTALL)
_JOINED_LINE_PATTERN = re.compile(r"(?=\[default\d{1,6}\]:)")
LOCAL_ADDR_VARIABLE = "PET_LOCAL_ADDR"  # read by torchrun's parser as --local_addr, if it knows that option
MODULES = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}


class Endpoint(FrozenModel):
    """The address at which the nodes meet."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class JobNode(NamedTuple):
    """A node in its job: `node` is its rank or, in pods, which are all alike, the variable that holds it."""

    endpoint: Endpoint
    node: int | str
    address: str = ""  # a name or an address of its own that the others can reach
    suffix: str = ""  # of the rendezvous id, for agents that meet before those of the job

    @property
    def rank(self) -> str:
        """The node's rank in a command: the kubelet puts a variable's value in the place of `$(NAME)`."""
        return f"$({self.node})" if isinstance(self.node, str) else str(self.node)


def first_port(run: Run) -> int:
    """The first of three ports of a run, below Kubernetes' node ports and the ephemeral range."""
    return 20000 + zlib.crc32(f"{run.id}/{run.attempt}".encode()) % 3300 * 3


def agent_options(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """The agent's options on one node, with underscores: before torch 2.0 there was no other spelling.

    A pod's image may have any torch, so it gets only what torchrun has had since 1.9. `--local_addr` came with 2.0,
    which preflight requires on machines; pods get LOCAL_ADDR_VARIABLE, which an older agent does not read.
    """
    needs_local_addr = isinstance(job_node.node, int) and job_node.address
    return (
        f"--nnodes={profile.nodes}",
        f"--nproc_per_node={profile.processes}",
        f"--max_restarts={profile.max_restarts}",
        "--tee=3",
        *_rendezvous_options(profile, run, job_node),
        *((f"--local_addr={job_node.address}",) if needs_local_addr else ()),
    )


def _rendezvous_options(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """How a node finds the others. Only static uses the node rank; the other backends rank by arrival."""
    endpoint = job_node.endpoint
    if profile.rendezvous == "static":
        address_args = (
            f"--node_rank={job_node.rank}",
            f"--master_addr={endpoint.address}",
            f"--master_port={endpoint.port}",
        )
        return ("--rdzv_backend=static", *address_args, f"--rdzv_conf=timeout={join_timeout(profile)}")
    common = (
        f"--rdzv_backend={profile.rendezvous}",
        f"--rdzv_endpoint={endpoint}",
        f"--rdzv_id={rendezvous_id(profile, run)}{job_node.suffix}",
    )
    if profile.rendezvous == "c10d" and isinstance(job_node.node, str):
        return common  # the pod's prelude says which one is the host
    host = f",is_host={int(job_node.node == 0)}" if profile.rendezvous == "c10d" else ""
    return (*common, f"--rdzv_conf=join_timeout={join_timeout(profile)}{host}")


def rendezvous_id(profile: Profile, run: Run) -> str:
    """The rendezvous id, new for each attempt: a store refuses an id that has been closed."""
    return run.job(profile)


def join_timeout(profile: Profile) -> str:
    """The seconds for which a node waits for the others."""
    return str(int(profile.deadlines.start) or 1)


def has_joined(text: str) -> bool:
    """Whether an agent's line says that its node has joined. Needs LOGLEVEL=INFO."""
    return _JOINED_TEXT in text


def parse_group_rank(text: str) -> int | None:
    """The rank that the rendezvous gave a node; the node of group rank 0 has global rank 0."""
    match = _GROUP_RANK_PATTERN.search(text)
    return int(match[1]) if match else None


def split_teed_line(text: str) -> list[str]:
    """The lines of ranks in one line of torchrun, each with its prefix.

    torchrun writes the prefix of the next line behind a line that a rank has not ended, such as a progress bar.
    """
    if text.find("[default", 1) < 0:
        return [text]
    return [piece for piece in _JOINED_LINE_PATTERN.split(text) if piece]


def parse_worker_line(text: str) -> tuple[int, str] | None:
    """The local rank that printed a line, and the line as it was printed; None for a line of the agent."""
    match = _WORKER_LINE_PATTERN.match(text)
    return (int(match[1]), match[2]) if match else None
