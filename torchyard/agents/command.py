"""What a node runs: torchrun, torch.distributed.launch or the program alone, and how it finds the other nodes."""

import shlex

from torchyard.agents import torchrun
from torchyard.agents.process_env import arguments, literal, meeting_file, written
from torchyard.agents.roce_gid import find_gid
from torchyard.agents.torchrun import Place
from torchyard.model.plan import Ranks
from torchyard.model.profile import Profile
from torchyard.model.run import Run

# The first pod, and no other, serves the c10d store. Without is_host torchrun compares the endpoint with the host's
# name, which under the host's network is the node's and not the pod's.
HOST = """\
if [ "${node}" = 0 ]; then host=1; else host=0; fi
export PET_RDZV_CONF="join_timeout={patience},is_host=$host"
"""
FIRST = """\
if [ "${node}" = 0 ]; then rm -f {files}; fi
"""


def command(profile: Profile, run: Run, place: Place, *more: str) -> tuple[str, ...]:
    """The words after the interpreter: an agent with its options and `more`, or none; the program and its arguments.

    `--`: without it the agent's parser stops at a program's option that could be short for two of its own (--max).
    """
    module = torchrun.MODULES.get(profile.starter)
    agent = ("-m", module, *torchrun.options(profile, run, place), *more, "--") if module else ()
    return (*agent, written(str(profile.program), place), *arguments(profile, run, place))


def pod_command(profile: Profile, run: Run, place: Place) -> tuple[str, ...]:
    """The command of a pod, alike for every pod of the job."""
    words = command(profile, run, place)
    whole = ("torchrun", *words[2:]) if profile.starter == "torchrun" else (*interpreter(profile, "python3"), *words)
    begin = prelude(profile, run, place)
    return ("/bin/sh", "-c", f'set -e\n{begin}exec "$@"\n', "torchyard", *whole) if begin else whole


def interpreter(profile: Profile, python: str) -> tuple[str, ...]:
    """What executes the words: nothing, where an agent is not wanted and the program is no Python file."""
    return () if profile.starter == "none" and not str(profile.program).endswith(".py") else (python,)


def ranks(profile: Profile) -> Ranks:
    """How the logs tell who printed a line: without an agent, the first node has rank 0."""
    return "placed" if profile.starter == "none" else "teed"


def prelude(profile: Profile, run: Run, place: Place) -> str:
    """What a pod's shell does before the command: the profile's setup, and what only the pod can know.

    `(exit $?)` is for `a && b`, which `set -e` lets pass where a fails.
    """
    setup = "".join(f"{literal(line)}\n(exit $?)\n" for line in profile.setup)
    old = [literal(shlex.quote(meeting_file(profile, run, attempt))) for attempt in range(1, run.attempt)]
    if profile.network and profile.network.find_gid:
        setup += literal(find_gid(str({**profile.network.env, **profile.env}.get("NCCL_IB_HCA", ""))))
    if profile.rendezvous == "c10d":
        return setup + HOST.format(node=place.node, patience=torchrun.patience(profile))
    return setup + FIRST.format(node=place.node, files=" ".join(old)) if profile.shared_file and old else setup
