"""The command of a node: torchrun, torch.distributed.launch or the program alone, with its rendezvous."""

import shlex

from torchyard.agents import job_files, torchrun
from torchyard.agents.black_box import build_recorder_lines
from torchyard.agents.fabric_check import build_pod_check
from torchyard.agents.job_code import get_pod_folder, locate_program
from torchyard.agents.job_files import PodFolders
from torchyard.agents.process_env import command_word, escape_dollars, program_arguments, rendezvous_file
from torchyard.agents.roce_gid import gid_script
from torchyard.agents.torchrun import JobNode
from torchyard.model.checkpoint import CHECKPOINTS_VARIABLE
from torchyard.model.plan import Ranks
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run

# The first pod, and no other, serves the c10d store. Without is_host torchrun compares the endpoint with the host's
# name, which under the host's network is the node's and not the pod's.
_C10D_HOST_LINES = """\
if [ "${node}" = 0 ]; then host=1; else host=0; fi
export PET_RDZV_CONF="join_timeout={join_timeout_s},is_host=$host"
"""
_FIRST_NODE_LINES = """\
if [ "${node}" = 0 ]; then rm -f {files}; fi
"""


def node_command(profile: Profile, run: Run, job_node: JobNode, *extra_args: str) -> tuple[str, ...]:
    """The words after the interpreter: the agent, if any, its options and `extra_args`; the program and its arguments.

    Without `--` the agent's parser fails on a program's option that could be short for two of its own (--max).
    """
    argv: list[str] = []
    agent_module = torchrun.MODULES.get(profile.resolved_agent)
    if agent_module:
        argv += ["-m", agent_module, *torchrun.agent_options(profile, run, job_node), *extra_args]
    if profile.module:
        argv.append("-m")  # also an option of the agents
    if agent_module:
        argv.append("--")
    argv.append(profile.module or command_word(str(profile.program), job_node))
    return (*argv, *program_arguments(profile, run, job_node))


def pod_command(
    profile: ResolvedProfile, run: Run, job_node: JobNode, *, has_config_map: bool = True
) -> tuple[str, ...]:
    """The command of a pod, the same for every pod of the job; without a prelude it needs no shell.

    Without a ConfigMap it unpacks the files that the job needs of torchyard. For the entrypoint of an image, only its
    arguments.
    """
    if profile.has_image_entrypoint:
        return program_arguments(profile, run, job_node)
    profile = locate_program(profile, get_pod_folder(profile))
    argv = node_command(profile, run, job_node)
    if profile.resolved_agent == "torchrun":
        argv = ("torchrun", *argv[2:])  # the image's own script, in place of -m and the module
    else:
        argv = (*choose_interpreter(profile, "python3"), *argv)
    if has_config_map:
        folders = job_files.MOUNTED
        prelude = ""
    else:
        folders = job_files.UNPACKED
        prelude = escape_dollars(job_files.build_unpack_lines(profile))
    prelude += build_recorder_lines(profile, folders.files, folders.records)
    prelude += _build_prelude(profile, run, job_node, folders)
    prelude += build_pod_check(profile, run, job_node, folders.files)
    if not prelude:
        return argv
    return ("/bin/sh", "-c", f'set -e\n{prelude}exec "$@"\n', "torchyard", *argv)


def choose_interpreter(profile: Profile, python: str) -> tuple[str, ...]:
    """The interpreter of a node's command; empty if there is no agent and the program is not a Python file."""
    if profile.resolved_agent == "none" and not profile.module and not str(profile.program).endswith(".py"):
        return ()
    return (python,)


def rank_source(profile: Profile) -> Ranks:
    """How the logs show which rank printed a line: without an agent's log, the first node has rank 0."""
    level = profile.env.get(torchrun.LEVEL_VARIABLE, torchrun.RANK_LEVELS[0])
    is_logged = profile.resolved_agent != "none" and level in torchrun.RANK_LEVELS
    return "teed" if is_logged else "placed"


def _build_prelude(profile: ResolvedProfile, run: Run, job_node: JobNode, folders: PodFolders) -> str:
    """The shell lines before a pod's command: the fabric's setup, the profile's, and what is known only in the pod.

    `(exit $?)` is for `a && b`, which `set -e` lets pass if `a` fails.
    """
    prelude = "".join(f"{escape_dollars(line)}\n(exit $?)\n" for line in profile.setup)
    if profile.checkpoints:
        prelude += f'mkdir -p "${CHECKPOINTS_VARIABLE}"\n'
    if profile.find_gid:
        hca = str(profile.env.get("NCCL_IB_HCA", ""))
        prelude += escape_dollars(gid_script(hca))
    prelude += escape_dollars(job_files.build_rdma_facts_lines(profile, folders))
    if profile.rendezvous == "c10d":
        join_timeout_s = torchrun.get_join_timeout_s(profile)
        return prelude + _C10D_HOST_LINES.format(node=job_node.node, join_timeout_s=join_timeout_s)
    if profile.shared_file and run.attempt > 1:
        # Each attempt has its own file: those of earlier attempts would accumulate in the shared folder.
        old_files = [rendezvous_file(profile, run, attempt) for attempt in range(1, run.attempt)]
        files = " ".join(escape_dollars(shlex.quote(path)) for path in old_files)
        prelude += _FIRST_NODE_LINES.format(node=job_node.node, files=files)
    return prelude
