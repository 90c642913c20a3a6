"""How a program gets its place in the job: from its arguments, its environment, and a file."""

import re
from collections.abc import Sequence
from typing import Any, assert_never

from torchyard.agents.torchrun import (
    LEVEL_VARIABLE,
    LOCAL_ADDR_VARIABLE,
    RANK_LEVELS,
    SHUTDOWN_VARIABLE,
    JobNode,
    get_shutdown_timeout_s,
)
from torchyard.model.checkpoint import CHECKPOINTS_VARIABLE, RESUME_PLACEHOLDER, RESUME_VARIABLE
from torchyard.model.profile import Profile
from torchyard.model.run import Run

NODE_VARIABLE = "TORCHYARD_NODE"
# Without NET, NCCL does not log whether GPUDirect is in use.
NCCL_LOG_ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET"}
_PLACEHOLDER_PATTERN = re.compile(r"\{(\w+)\}")


def build_job_env(profile: Profile, run: Run) -> dict[str, str]:
    """The variables of every process of a job, and of the agent that starts it."""
    variables = {
        LEVEL_VARIABLE: RANK_LEVELS[0],  # torchrun logs the rendezvous' result only at this level
        "PYTHONUNBUFFERED": "1",  # torchrun tees from a file, which Python would fill 8 KiB at a time
    }
    if profile.resolved_agent != "none":
        variables[SHUTDOWN_VARIABLE] = str(get_shutdown_timeout_s(profile))
    variables["TORCHYARD_RUN"] = run.name(profile)
    variables["TORCHYARD_ATTEMPT"] = str(run.attempt)
    checkpoints = get_checkpoints_folder(profile, run)
    if checkpoints:
        variables[CHECKPOINTS_VARIABLE] = checkpoints
    if run.resume:
        variables[RESUME_VARIABLE] = run.resume.path
    return variables


def get_checkpoints_folder(profile: Profile, run: Run) -> str | None:
    """The run's own folder in the one that the profile names; None if it names none."""
    return f"{profile.checkpoints.rstrip('/')}/{run.name(profile)}" if profile.checkpoints else None


def escape_dollars(text: str) -> str:
    """The text, escaped for the kubelet, which expands `$(NAME)` as a variable and `$$` to one `$`."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def command_word(text: str, job_node: JobNode) -> str:
    """A text from the profile as a word of a command: in pods the kubelet expands every word."""
    return escape_dollars(text) if isinstance(job_node.node, str) else text


def program_arguments(profile: Profile, run: Run, job_node: JobNode) -> tuple[str, ...]:
    """The program's arguments, each placeholder of `PLACEHOLDERS` replaced by its value; other braces stay.

    Without a checkpoint to resume from, the arguments that need one are left out. In pods the arguments are escaped for
    the kubelet; no shell reads them.
    """
    values = {
        "nodes": str(profile.nodes),
        "processes": str(profile.processes),
        "world_size": str(profile.world_size),
        "node_rank": job_node.rank,
        "master_addr": job_node.endpoint.address,
        "master_port": str(job_node.endpoint.port),
        "rendezvous": _init_method_url(profile, run, job_node),
    }
    if run.resume:
        values[RESUME_PLACEHOLDER] = command_word(run.resume.path, job_node)
    profile_args = profile.args if run.resume else _drop_resume_args(profile.args)
    args = (command_word(arg, job_node) for arg in profile_args)
    return tuple(_PLACEHOLDER_PATTERN.sub(lambda match: values.get(match[1], match[0]), arg) for arg in args)


def _drop_resume_args(args: Sequence[str]) -> list[str]:
    """The arguments without those that need a checkpoint: `--resume={resume}`, or `--resume` and `{resume}`."""
    placeholder = f"{{{RESUME_PLACEHOLDER}}}"
    kept: list[str] = []
    for arg in args:
        if placeholder not in arg:
            kept.append(arg)
        elif arg == placeholder and kept and kept[-1].startswith("-") and "=" not in kept[-1]:
            kept.pop()
    return kept


def _init_method_url(profile: Profile, run: Run, job_node: JobNode) -> str:
    """The URL at which the processes of a program without an agent meet: torch's init_method."""
    match profile.rendezvous:
        case "file":
            return f"file://{command_word(rendezvous_file(profile, run, run.attempt), job_node)}"
        case "env":
            return "env://"
        case "static" | "c10d" | "etcd-v2":
            return f"tcp://{job_node.endpoint}"
        case _:
            assert_never(profile.rendezvous)


def rendezvous_file(profile: Profile, run: Run, attempt: int) -> str:
    """The rendezvous file of one attempt: torch waits forever in one that another attempt has used."""
    return f"{profile.shared_file}.{run.name(profile)}-{attempt}"


def program_environment(profile: Profile, job_node: JobNode) -> dict[str, str]:
    """The variables of a program without an agent, in one process or many; RANK is its node's rank.

    Empty with an agent, which sets them for each process, and for a lone process unless its rendezvous is `env`: many
    programs take RANK as a sign that they are one of several.
    """
    if profile.resolved_agent != "none":
        return {}
    if profile.world_size == 1 and profile.rendezvous != "env":
        return {}
    return {
        "MASTER_ADDR": job_node.endpoint.address,
        "MASTER_PORT": str(job_node.endpoint.port),
        "WORLD_SIZE": str(profile.world_size),
        "RANK": job_node.rank,
    }


def pod_environment(profile: Profile, job_node: JobNode, index_field: str) -> list[dict[str, Any]]:
    """The variables in a pod: TORCHYARD_NODE, which the kubelet reads from the field `index_field`, then the program's.

    An agent gets the pod's own address by a variable, because an older torchrun exits at the option `--local-addr`.
    """
    variables: dict[str, str] = {}
    if job_node.address and profile.resolved_agent != "none":
        variables[LOCAL_ADDR_VARIABLE] = job_node.address
    variables |= program_environment(profile, job_node)
    env: list[dict[str, Any]] = [{"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": index_field}}}]
    env += [{"name": name, "value": value} for name, value in variables.items()]
    return env
