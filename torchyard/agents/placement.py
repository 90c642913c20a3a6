"""The placement of agents on plain machines: the host, its folders, and the address at which the others reach it."""

import glob
import os.path
import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from torchyard.agents import process_env
from torchyard.agents.job_code import locate_program, plan_code
from torchyard.model.base import FrozenModel
from torchyard.model.plan import Site
from torchyard.model.profile import Profile
from torchyard.model.requirements import THIS_MACHINE
from torchyard.model.run import Run


class Host(FrozenModel):
    """A host entry: `gpu1`, `me@gpu1` or an alias of the ssh configuration is short for {host: it}."""

    host: str = Field(pattern=r"^[^\s-]\S*$", description="its name for ssh; localhost is this machine")
    address: str | None = Field(
        None, pattern=r"^[^\s:/@]+$", description="the name or IPv4 address by which the others reach it, if different"
    )

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine."""
        return self.host in THIS_MACHINE

    @property
    def reachable_address(self) -> str:
        """The name or address at which the other hosts reach it."""
        if self.address:
            return self.address
        return "127.0.0.1" if self.is_local else self.host.rpartition("@")[2]


def _parse_host(value: object) -> object:
    return {"host": value} if isinstance(value, str) else value


_HOST_PROPERTIES = {"host": {"type": "string"}, "address": {"type": "string"}}
_HOST_SCHEMA = {"type": "object", "properties": _HOST_PROPERTIES, "required": ["host"], "additionalProperties": False}
_HostEntry = Annotated[
    Host, BeforeValidator(_parse_host), WithJsonSchema({"anyOf": [{"type": "string"}, _HOST_SCHEMA]})
]


class Options(FrozenModel):
    """The options of this launcher."""

    hosts: tuple[_HostEntry, ...] = Field(
        (),
        description="one entry per agent, then spares: a host's ssh name, or {host, address}; default: this machine",
    )
    avoid: tuple[str, ...] = Field((), description="hosts not to use: a spare takes their place")
    python: str | None = Field(
        None, description="the job's interpreter, with torch; default: python3, or on this machine torchyard's"
    )
    supervisor_python: str = Field("python3", description="Python 3.8 or newer for the supervisor, on hosts behind ssh")
    folder: str = Field(
        ".torchyard",
        pattern=r"^[^~\s][^\s]*$",
        description="the folder of all runs on the hosts; absolute, or relative to home",
    )
    source: str | None = Field(
        None,
        description="the folder to copy, relative to the program's: `.` or `..`; default: only the program's file. For "
        "a module the folder in which it starts, relative to the profile's; default: the module is installed",
    )
    program_there: bool = Field(False, description="the program is already on the hosts: nothing is copied")
    port: int | None = Field(
        None, ge=1024, le=65533, description="the rendezvous port; default: derived from the run's id"
    )
    etcd: str | None = Field(None, pattern=r"^[^:/]+:\d+$", description="HOST:PORT of your own etcd, for etcd-v2")


class Placement(NamedTuple):
    """The host and folders of one agent. The paths are on its host; behind ssh they start with the run's folder there.

    folder: of this attempt's logs and state.
    checkpoints: the folder of the checkpoints of all attempts.
    program: the path of the training script; empty for a module.
    cwd: the folder in which it starts.
    python: the interpreter of the agent.
    site: what is copied to a host behind ssh, and where to; None on this machine.
    """

    host: Host
    folder: str
    checkpoints: str
    program: str
    cwd: str
    python: str
    site: Site | None


def place_agents(profile: Profile, run: Run, options: Options) -> tuple[Placement, ...]:
    """One placement per node, or fewer if too few hosts are left."""
    all_hosts = options.hosts or (Host(host="localhost"),) * profile.nodes.max
    allowed_hosts = [host for host in all_hosts if host.host not in options.avoid]
    hosts = allowed_hosts[: profile.nodes.max]
    first_nodes: dict[str, int] = {}  # nodes on the same host share the files of the first of them
    for node, host in enumerate(hosts):
        first_nodes.setdefault(host.host, node)
    placements = []
    for host in hosts:
        if host.is_local:
            placements.append(_place_locally(profile, run, options, host))
        else:
            placements.append(_place_remotely(profile, run, options, host, first_nodes[host.host]))
    return tuple(placements)


def _place_locally(profile: Profile, run: Run, options: Options, host: Host) -> Placement:
    """A placement on this machine, where all files already are."""
    folder = f"{run.folder}/attempt-{run.attempt}"
    code = plan_code(profile, run)
    program = locate_program(profile, code.folder if code else None).program or ""
    if code:
        cwd = code.folder
    elif program:
        cwd = str(Path(program).parent)
    else:
        cwd = options.source or folder
    return Placement(
        host=host,
        folder=folder,
        checkpoints=process_env.get_checkpoints_folder(profile, run) or f"{run.folder}/checkpoints",
        program=program,
        cwd=cwd,
        python=options.python or sys.executable,
        site=None,
    )


def _place_remotely(profile: Profile, run: Run, options: Options, host: Host, first_node: int) -> Placement:
    """A placement behind ssh, with a separate folder for the attempt: clearing it affects no other attempt.

    `first_node`: the first node on that host, which receives the files for all of them.
    """
    source = find_program_source(profile, options)
    site = Site(
        host=host.host,
        folder=f"{options.folder.rstrip('/')}/{run.job(profile)}",
        python=options.supervisor_python,
        work=source.path if source else None,
        code=plan_code(profile, run),
        files=f"{run.folder}/attempt-{run.attempt}/node-{first_node}/files",
        port_try=run.port_try,
        previous_folders=_list_previous_folders(run),
    )
    work_folder = f"{site.folder}/work"
    program = profile.program or ""
    if program and source:
        program = f"{work_folder}/{source.program}"
    if site.code:
        program = locate_program(profile, work_folder).program or ""
        cwd = work_folder
    elif program:
        cwd = str(PurePosixPath(program).parent)
    elif source:
        cwd = work_folder
    else:
        cwd = options.source or site.folder
    return Placement(
        host=host,
        folder=site.folder,
        checkpoints=process_env.get_checkpoints_folder(profile, run) or site.checkpoints,
        program=program,
        cwd=cwd,
        python=options.python or "python3",
        site=site,
    )


def _list_previous_folders(run: Run) -> tuple[str, ...]:
    """The folders here with checkpoints of the previous attempt, as patterns; for the first attempt, of another run.

    On any node: a spare may have taken a host's place since.
    """
    if run.attempt > 1:
        return list_checkpoint_folders(run.folder, run.attempt - 1)
    return run.resume.files if run.resume else ()


def list_checkpoint_folders(run_folder: str, attempt: int) -> tuple[str, ...]:
    """The folders here with the checkpoints that an attempt has left, as patterns."""
    # Escaped, because the folder's name may contain `[` or `*`.
    return (f"{glob.escape(f'{run_folder}/attempt-{attempt}')}/node-*/files", run_folder)


def locate_resume(run: Run, node_placement: Placement) -> Run:
    """The run with the path of its resume point on the placement's host."""
    resume = run.resume
    if resume is None:
        return run
    path = resume.path
    if node_placement.site and resume.relative_path:
        path = f"{node_placement.checkpoints}/{resume.relative_path}"
    elif not node_placement.site and resume.local_path:
        path = resume.local_path
    return run.model_copy(update={"resume": resume.model_copy(update={"path": path})})


class ProgramSource(NamedTuple):
    """The files that are copied to hosts behind ssh.

    path: the folder or file on this machine.
    program: the program's path in it; it starts with `..` if the program is outside. Empty for a module.
    """

    path: str
    program: str


def find_program_source(profile: Profile, options: Options) -> ProgramSource | None:
    """The files to copy to the hosts; None if the program is there, as an installed module is, or in the code."""
    if options.program_there or profile.code:
        return None
    if not profile.program:
        return ProgramSource(options.source, "") if options.source else None
    program = Path(profile.program)
    if options.source is None:
        return ProgramSource(str(program), program.name)
    folder = os.path.normpath(program.parent / options.source)
    return ProgramSource(folder, os.path.relpath(program, folder))
