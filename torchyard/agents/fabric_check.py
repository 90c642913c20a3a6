"""The check before a long training: a short all-reduce over the job's nodes and fabric, which ends a job if it is slow.

Each node runs a separate torchrun for it, with the job's rendezvous and another port and id. Every process measures the
same bandwidth, so every node ends if it is too low.
"""

import shlex
from typing import Any, NamedTuple

from torchyard.agents import torchrun
from torchyard.agents.placement import Placement
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.common.project_root import ROOT
from torchyard.model.profile import WITH_AGENT, Profile
from torchyard.model.run import Run

PROGRAM = "programs/allreduce.py"
PROGRAM_NAME = "allreduce.py"
PORT_OFFSET = 2  # from the job's own port; its etcd may use the port between them
_MODULE = ("-m", torchrun.MODULES["torchrun"])
_RENDEZVOUS_SUFFIX = "-check"
_SIZES = ("--min-size=1M", "--max-size=1G", "--trials=5", "--warmups=2")
_RUN_LINE = "{agent} {path} {options}\n"
# On machines the program comes with the command: torchrun cannot read it from its input.
_MACHINE_LINES = """\
cat >{path} <<'CHECK_FABRIC'
{program}CHECK_FABRIC
{run_line}rm -f {path}
"""


def build_pod_check(profile: Profile, run: Run, job_node: JobNode, files_folder: str) -> str:
    """The line of a pod's shell, under `set -e`, that checks the fabric; empty if the profile requests no check.

    `files_folder`: with torchyard's own files, as the shell may contain it in double quotes.
    """
    if profile.check_fabric is None:
        return ""
    agent = ("torchrun",) if profile.resolved_agent == "torchrun" else ("python3", *_MODULE)
    return _build_run_line(profile, run, job_node, _CheckCommand(agent, f'"{files_folder}/{PROGRAM_NAME}"'))


def build_machine_check(profile: Profile, run: Run, job_node: JobNode, placement: Placement) -> tuple[str, ...]:
    """The words before a node's command on a machine, which then starts after the check; empty if there is none."""
    if profile.check_fabric is None:
        return ()
    folder = f"{placement.folder}/node-{job_node.node}"
    agent = (placement.python, *_MODULE, f"--log_dir={folder}/check")
    path = shlex.quote(f"{folder}/{PROGRAM_NAME}")
    lines = _MACHINE_LINES.format(
        path=path,
        program=(ROOT / PROGRAM).read_text("utf-8"),
        run_line=_build_run_line(profile, run, job_node, _CheckCommand(agent, path)),
    )
    return ("sh", "-c", f'set -e\n{lines}exec "$@"\n', "torchyard")


class _CheckCommand(NamedTuple):
    """How a node runs the check.

    agent: the words that start the check's torchrun.
    program_path: the file with the check's program, as a quoted word of a shell.
    """

    agent: tuple[str, ...]
    program_path: str


def _build_run_line(profile: Profile, run: Run, job_node: JobNode, command: _CheckCommand) -> str:
    overrides: dict[str, Any] = {"restarts": 0}  # a failed check ends the job, and is not repeated
    if profile.rendezvous not in WITH_AGENT:
        overrides["rendezvous"] = "static"  # the check has agents, even if the job has none
    check_profile = profile.model_copy(update=overrides)
    check_node = job_node._replace(endpoint=_choose_endpoint(profile, run, job_node), suffix=_RENDEZVOUS_SUFFIX)
    agent_argv = (*command.agent, *torchrun.agent_options(check_profile, run, check_node), "--")
    limits = (f"--least={profile.required_busbw:g}", f"--within={profile.check_fabric:g}")
    return _RUN_LINE.format(
        agent=shlex.join(agent_argv), path=command.program_path, options=shlex.join((*limits, *_SIZES))
    )


def _choose_endpoint(profile: Profile, run: Run, job_node: JobNode) -> Endpoint:
    """The endpoint of the check's agents: in the same etcd, or at a port that the job itself does not use.

    Only Run:ai's pods have the job's port: the check uses the run's, because its pods can reach any.
    """
    if profile.rendezvous == "etcd-v2":
        return job_node.endpoint
    job_port = job_node.endpoint.port
    if not isinstance(job_port, int):
        job_port = torchrun.first_port(run)
    return Endpoint(address=job_node.endpoint.address, port=job_port + PORT_OFFSET)
