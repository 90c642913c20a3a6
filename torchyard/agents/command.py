"""What a node runs: torchrun, torch.distributed.launch or the program alone, and how it finds the other nodes."""

import shlex
from pathlib import Path

from torchyard.agents import torchrun
from torchyard.agents.black_box import build_recorder_lines
from torchyard.agents.fabric_check import build_pod_check
from torchyard.agents.process_env import command_word, escape_dollars, program_arguments, rendezvous_file
from torchyard.agents.roce_gid import gid_script
from torchyard.agents.torchrun import JobNode
from torchyard.host import rdma_facts
from torchyard.model.plan import Ranks
from torchyard.model.profile import Profile
from torchyard.model.run import Run

# The first pod, and no other, serves the c10d store. Without is_host torchrun compares the endpoint with the host's
# name, which under the host's network is the node's and not the pod's.
_C10D_HOST_LINES = """\
if [ "${node}" = 0 ]; then host=1; else host=0; fi
export PET_RDZV_CONF="join_timeout={patience},is_host=$host"
"""
# An isolated Python imports nothing from the work folder. An image without python3 tells nothing.
_RDMA_FACTS_LINES = """\
if command -v python3 >/dev/null; then python3 -I -{words} <<'RDMA_FACTS'
{program}RDMA_FACTS
fi
"""
_VERBS_TRANSPORTS = ("roce", "infiniband", "rdma")  # NCCL's own, which need what the program looks for
_FIRST_NODE_LINES = """\
if [ "${node}" = 0 ]; then rm -f {files}; fi
"""


def node_command(profile: Profile, run: Run, job_node: JobNode, *extra_args: str) -> tuple[str, ...]:
    """The words after the interpreter: the agent, if any, its options and `more`; the program and its arguments.

    Without `--` the agent's parser fails on a program's option that could be short for two of its own (--max).
    """
    module = torchrun.MODULES.get(profile.resolved_agent)
    agent = ("-m", module, *torchrun.agent_options(profile, run, job_node), *extra_args, "--") if module else ()
    return (*agent, command_word(str(profile.program), job_node), *program_arguments(profile, run, job_node))


def pod_command(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """The command of a pod, the same for every pod of the job."""
    argv = node_command(profile, run, job_node)
    pod_argv = (
        ("torchrun", *argv[2:])
        if profile.resolved_agent == "torchrun"
        else (*choose_interpreter(profile, "python3"), *argv)
    )
    prelude = (
        build_recorder_lines(profile) + _pod_prelude(profile, run, job_node) + build_pod_check(profile, run, job_node)
    )
    return ("/bin/sh", "-c", f'set -e\n{prelude}exec "$@"\n', "torchyard", *pod_argv) if prelude else pod_argv


def choose_interpreter(profile: Profile, python: str) -> tuple[str, ...]:
    """The interpreter that executes the words; none if there is no agent and the program is not a Python file."""
    return () if profile.resolved_agent == "none" and not str(profile.program).endswith(".py") else (python,)


def rank_source(profile: Profile) -> Ranks:
    """How the logs show which rank printed a line: without an agent, the first node has rank 0."""
    return "placed" if profile.resolved_agent == "none" else "teed"


def _pod_prelude(profile: Profile, run: Run, job_node: JobNode) -> str:
    """What a pod's shell does before the command: the fabric's setup, the profile's, and what only the pod knows.

    `(exit $?)` is for `a && b`, which `set -e` lets pass if `a` fails.
    """
    lines = (*(profile.network.setup if profile.network else ()), *profile.setup)
    setup = "".join(f"{escape_dollars(line)}\n(exit $?)\n" for line in lines)
    stale_files = [
        escape_dollars(shlex.quote(rendezvous_file(profile, run, attempt))) for attempt in range(1, run.attempt)
    ]
    if profile.network and profile.network.find_gid:
        setup += escape_dollars(gid_script(str({**profile.network.env, **profile.env}.get("NCCL_IB_HCA", ""))))
    if profile.network and profile.network.expect.transport in _VERBS_TRANSPORTS:
        program_args, program = (
            " required" * (profile.on_fabric == "fail"),
            Path(rdma_facts.__file__).read_text("utf-8"),
        )
        setup += escape_dollars(_RDMA_FACTS_LINES.format(words=program_args, program=program))
    if profile.rendezvous == "c10d":
        return setup + _C10D_HOST_LINES.format(node=job_node.node, patience=torchrun.join_timeout(profile))
    return (
        setup + _FIRST_NODE_LINES.format(node=job_node.node, files=" ".join(stale_files))
        if profile.shared_file and stale_files
        else setup
    )
