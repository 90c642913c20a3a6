"""What a node runs: torchrun, torch.distributed.launch or the program alone, and how it finds the other nodes."""

import shlex

from torchyard.agents import torchrun
from torchyard.agents.process_env import command_word, escape_dollars, program_arguments, rendezvous_file
from torchyard.agents.roce_gid import gid_script
from torchyard.agents.torchrun import JobNode
from torchyard.model.plan import Ranks
from torchyard.model.profile import Profile
from torchyard.model.run import Run

# The first pod, and no other, serves the c10d store. Without is_host torchrun compares the endpoint with the host's
# name, which under the host's network is the node's and not the pod's.
_C10D_HOST_LINES = """\
if [ "${node}" = 0 ]; then host=1; else host=0; fi
export PET_RDZV_CONF="join_timeout={patience},is_host=$host"
"""
_FIRST_NODE_LINES = """\
if [ "${node}" = 0 ]; then rm -f {files}; fi
"""


def node_command(profile: Profile, run: Run, place: JobNode, *more: str) -> tuple[str, ...]:
    """The words after the interpreter: an agent with its options and `more`, or none; the program and its arguments.

    `--`: without it the agent's parser stops at a program's option that could be short for two of its own (--max).
    """
    module = torchrun.MODULES.get(profile.starter)
    agent = ("-m", module, *torchrun.agent_options(profile, run, place), *more, "--") if module else ()
    return (*agent, command_word(str(profile.program), place), *program_arguments(profile, run, place))


def pod_command(profile: Profile, run: Run, place: JobNode) -> tuple[str, ...]:
    """The command of a pod, alike for every pod of the job."""
    words = node_command(profile, run, place)
    whole = (
        ("torchrun", *words[2:]) if profile.starter == "torchrun" else (*choose_interpreter(profile, "python3"), *words)
    )
    begin = _pod_prelude(profile, run, place)
    return ("/bin/sh", "-c", f'set -e\n{begin}exec "$@"\n', "torchyard", *whole) if begin else whole


def choose_interpreter(profile: Profile, python: str) -> tuple[str, ...]:
    """What executes the words: nothing, where an agent is not wanted and the program is no Python file."""
    return () if profile.starter == "none" and not str(profile.program).endswith(".py") else (python,)


def rank_source(profile: Profile) -> Ranks:
    """How the logs tell who printed a line: without an agent, the first node has rank 0."""
    return "placed" if profile.starter == "none" else "teed"


def _pod_prelude(profile: Profile, run: Run, place: JobNode) -> str:
    """What a pod's shell does before the command: the profile's setup, and what only the pod can know.

    `(exit $?)` is for `a && b`, which `set -e` lets pass where a fails.
    """
    setup = "".join(f"{escape_dollars(line)}\n(exit $?)\n" for line in profile.setup)
    old = [escape_dollars(shlex.quote(rendezvous_file(profile, run, attempt))) for attempt in range(1, run.attempt)]
    if profile.network and profile.network.find_gid:
        setup += escape_dollars(gid_script(str({**profile.network.env, **profile.env}.get("NCCL_IB_HCA", ""))))
    if profile.rendezvous == "c10d":
        return setup + _C10D_HOST_LINES.format(node=place.node, patience=torchrun.join_timeout(profile))
    return (
        setup + _FIRST_NODE_LINES.format(node=place.node, files=" ".join(old)) if profile.shared_file and old else setup
    )
