"""torchrun's command line, and what its agents' logs say; shared by every launcher whose job is torchrun."""

import re
import zlib

from tasks.model import Run
from tasks.spec import Noun, Profile

JOINED = "Rendezvous complete for workers"
GROUP_RANK = re.compile(r"\sgroup_rank=(\d+)\s*$")
WORKER = re.compile(r"^\[default(\d+)\]:(.*)", re.DOTALL)


class Endpoint(Noun):
    """Where the nodes meet."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def first_port(run: Run) -> int:
    """The first of three ports of a run, below the ephemeral range, so that no client's socket is in the way."""
    return 20000 + zlib.crc32(f"{run.id}/{run.attempt}".encode()) % 4000 * 3


def command(profile: Profile, run: Run, node: int, endpoint: Endpoint) -> tuple[str, ...]:
    """`-m torch.distributed.run …` for one node, without the interpreter, its address and its log folder."""
    return (
        "-m",
        "torch.distributed.run",
        f"--nnodes={profile.nodes}",
        f"--nproc-per-node={profile.processes}",
        "--max-restarts=0",
        "--tee=3",
        *meeting(profile, run, node, endpoint),
    )


def meeting(profile: Profile, run: Run, node: int, endpoint: Endpoint) -> tuple[str, ...]:
    """How this node finds the others. Only static looks at the node rank; the others rank by arrival."""
    join = int(profile.deadlines.start) or 1
    if profile.rendezvous == "static":
        fixed = (f"--node-rank={node}", f"--master-addr={endpoint.address}", f"--master-port={endpoint.port}")
        return ("--rdzv-backend=static", *fixed, f"--rdzv-conf=timeout={join}")
    conf = f"join_timeout={join}" + (f",is_host={int(node == 0)}" if profile.rendezvous == "c10d" else "")
    return (
        f"--rdzv-backend={profile.rendezvous}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run.name(profile)}-{run.attempt}",
        f"--rdzv-conf={conf}",
    )


def read_joined(text: str) -> bool:
    """Whether an agent's line says that its node has joined. Needs LOGLEVEL=INFO."""
    return JOINED in text


def read_group_rank(text: str) -> int | None:
    """The rank that the rendezvous gave a node; the node of group rank 0 has global rank 0."""
    match = GROUP_RANK.search(text)
    return int(match[1]) if match else None


def read_worker(text: str) -> tuple[int, str] | None:
    """The local rank that printed a line, and the line as it was printed; None for a line of the agent."""
    match = WORKER.match(text)
    return (int(match[1]), match[2]) if match else None
