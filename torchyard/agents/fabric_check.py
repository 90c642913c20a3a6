"""The check before a long training: a short all-reduce over the job's nodes and fabric, which ends a job if it is slow.

Each node runs a separate torchrun for it, with the job's rendezvous and another port and id. Every process measures the
same bandwidth, so every node ends if it is too low.
"""

import shlex
from typing import Any, NamedTuple

from torchyard.agents import torchrun
from torchyard.agents.placement import Placement
from torchyard.agents.process_env import command_word
from torchyard.agents.torchrun import Endpoint, JobNode
from torchyard.common.project_root import ROOT
from torchyard.model.profile import WITH_AGENT, Profile
from torchyard.model.run import Run

_PROGRAM = "programs/allreduce.py"
PORT_OFFSET = 2  # from the job's own port; its etcd may use the port between them
_MODULE = ("-m", torchrun.MODULES["torchrun"])
_RENDEZVOUS_SUFFIX = "-check"
_SIZES = ("--min-size=1M", "--max-size=1G", "--trials=5", "--warmups=2")
# The program is written to a file, because torchrun cannot read it from its input.
_LINES = """\
cat >{path} <<'CHECK_FABRIC'
{program}CHECK_FABRIC
{agent} {path} {options}
rm -f {path}
"""


def build_pod_check(profile: Profile, run: Run, job_node: JobNode) -> str:
    """The lines of a pod's shell, under `set -e`, that check the fabric; empty if the profile requests no check."""
    agent = ("torchrun",) if profile.resolved_agent == "torchrun" else ("python3", *_MODULE)
    return _build_lines(profile, run, job_node, _CheckFiles(agent, '"${TMPDIR:-/tmp}/torchyard-allreduce.py"'))


def build_machine_check(profile: Profile, run: Run, job_node: JobNode, placement: Placement) -> tuple[str, ...]:
    """The words before a node's command on a machine, which then starts after the check; empty if there is none."""
    folder = f"{placement.folder}/node-{job_node.node}"
    agent = (placement.python, *_MODULE, f"--log_dir={folder}/check")
    lines = _build_lines(profile, run, job_node, _CheckFiles(agent, shlex.quote(f"{folder}/allreduce.py")))
    return ("sh", "-c", f'set -e\n{lines}exec "$@"\n', "torchyard") if lines else ()


class _CheckFiles(NamedTuple):
    """How a node runs the check.

    agent: the words that start the check's torchrun.
    program_path: the file for the check's program, as a quoted word of a shell.
    """

    agent: tuple[str, ...]
    program_path: str


def _build_lines(profile: Profile, run: Run, job_node: JobNode, files: _CheckFiles) -> str:
    if profile.check_fabric is None:
        return ""
    overrides: dict[str, Any] = {"restarts": 0}  # a failed check ends the job, and is not repeated
    if profile.rendezvous not in WITH_AGENT:
        overrides["rendezvous"] = "static"  # the check has agents, even if the job has none
    check_profile = profile.model_copy(update=overrides)
    check_node = job_node._replace(endpoint=_choose_endpoint(profile, run, job_node), suffix=_RENDEZVOUS_SUFFIX)
    agent_argv = (*files.agent, *torchrun.agent_options(check_profile, run, check_node), "--")
    limits = (f"--least={profile.required_busbw:g}", f"--within={profile.check_fabric:g}")
    return _LINES.format(
        path=files.program_path,
        program=command_word((ROOT / _PROGRAM).read_text("utf-8"), job_node),
        agent=shlex.join(agent_argv),
        options=shlex.join((*limits, *_SIZES)),
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
