"""torchrun's command line, and what its agents' logs say; shared by every launcher whose job is torchrun."""

import re
import zlib

from tasks.model import Run
from tasks.spec import Noun, Profile

JOINED = "Rendezvous complete for workers"
GROUP_RANK = re.compile(r"\sgroup_rank=(\d+)\s*$")
WORKER = re.compile(r"^\[default(\d+)\]:(.*)", re.DOTALL)


NODE = "$(TORCHYARD_NODE)"
# The first pod, and no other, serves the c10d store. Without is_host torchrun compares the endpoint with the host's
# name, which under the host's network is the node's and not the pod's.
HOST = """\
if [ "$TORCHYARD_NODE" = 0 ]; then host=1; else host=0; fi
export PET_RDZV_CONF="join_timeout={patience},is_host=$host"
"""


class Endpoint(Noun):
    """Where the nodes meet."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def first_port(run: Run) -> int:
    """The first of three ports of a run, below Kubernetes' node ports and the ephemeral range."""
    return 20000 + zlib.crc32(f"{run.id}/{run.attempt}".encode()) % 3300 * 3


def command(profile: Profile, run: Run, node: int, endpoint: Endpoint) -> tuple[str, ...]:
    """`-m torch.distributed.run …` for one node, without the interpreter, its address and its log folder."""
    return ("-m", "torch.distributed.run", *flags(profile), *meeting(profile, run, node, endpoint))


def pod_command(profile: Profile, run: Run, endpoint: Endpoint, address: str) -> tuple[str, ...]:
    """torchrun in a pod, alike for every pod of the job: what only the pod knows is its TORCHYARD_NODE.

    The kubelet puts it in the place of `$(TORCHYARD_NODE)`; `address` is a name that the other pods can resolve.
    """
    agent = ("torchrun", *flags(profile), *meeting(profile, run, None, endpoint), f"--local-addr={address}")
    whole = (*agent, *map(literal, (str(profile.program), *profile.args)))
    begin = prelude(profile)
    return ("/bin/sh", "-c", f'set -e\n{begin}exec "$@"\n', "torchyard", *whole) if begin else whole


def literal(text: str) -> str:
    """The text as the kubelet makes it the same again: it takes `$(NAME)` for a variable, and `$$` for one `$`."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def prelude(profile: Profile) -> str:
    """What a pod's shell does before torchrun: the profile's setup, and what only the pod can know.

    `(exit $?)` is for `a && b`, which `set -e` lets pass where a fails.
    """
    setup = "".join(f"{literal(line)}\n(exit $?)\n" for line in profile.setup)
    return setup + (HOST.format(patience=patience(profile)) if profile.rendezvous == "c10d" else "")


def flags(profile: Profile) -> tuple[str, ...]:
    """What is the same for every rendezvous."""
    return (f"--nnodes={profile.nodes}", f"--nproc-per-node={profile.processes}", "--max-restarts=0", "--tee=3")


def meeting(profile: Profile, run: Run, node: int | None, endpoint: Endpoint) -> tuple[str, ...]:
    """How a node finds the others. Only static looks at the node rank; the others rank by arrival.

    `node` is None in a pod, which finds its own: then the prelude gives c10d's conf.
    """
    if profile.rendezvous == "static":
        rank = NODE if node is None else node
        fixed = (f"--node-rank={rank}", f"--master-addr={endpoint.address}", f"--master-port={endpoint.port}")
        return ("--rdzv-backend=static", *fixed, f"--rdzv-conf=timeout={patience(profile)}")
    common = (
        f"--rdzv-backend={profile.rendezvous}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={rendezvous_id(profile, run)}",
    )
    if profile.rendezvous == "c10d" and node is None:
        return common
    host = f",is_host={int(node == 0)}" if profile.rendezvous == "c10d" else ""
    return (*common, f"--rdzv-conf=join_timeout={patience(profile)}{host}")


def rendezvous_id(profile: Profile, run: Run) -> str:
    """New for each attempt: a store refuses an id that has been closed."""
    return run.job(profile)


def patience(profile: Profile) -> str:
    """Seconds that a node waits for the others."""
    return str(int(profile.deadlines.start) or 1)


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
