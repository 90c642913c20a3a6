"""Where the agents on plain machines run: on which host, in which folders, and how the others reach it."""

import glob
import os.path
import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from torchyard.model.base import FrozenModel
from torchyard.model.plan import THIS_MACHINE, Site
from torchyard.model.profile import Profile
from torchyard.model.run import Run


class Host(FrozenModel):
    """A host entry: `gpu1`, `me@gpu1` or an alias of the ssh configuration is short for {host: it}."""

    host: str = Field(pattern=r"^[^\s-]\S*$", description="its name for ssh; localhost is this machine")
    address: str | None = Field(
        None, pattern=r"^[^\s:/@]+$", description="the name or IPv4 address by which the others reach it, if different"
    )

    @property
    def is_local(self) -> bool:
        return self.host in THIS_MACHINE

    @property
    def reachable_address(self) -> str:
        """The name or address by which the other hosts reach it."""
        return self.address or ("127.0.0.1" if self.is_local else self.host.rpartition("@")[2])


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
        None, description="the folder to copy, relative to the program's: `.` or `..`; default: only the program's file"
    )
    program_there: bool = Field(False, description="the program is already on the hosts: nothing is copied")
    port: int | None = Field(
        None, ge=1024, le=65533, description="the rendezvous port; default: derived from the run's id"
    )
    etcd: str | None = Field(None, pattern=r"^[^:/]+:\d+$", description="HOST:PORT of your own etcd, for etcd-v2")


class Placement(NamedTuple):
    """Where one agent runs. The paths are those on its host; behind ssh they begin with the run's folder there."""

    host: Host
    folder: str  # of the attempt
    checkpoints: str
    program: str
    python: str
    site: Site | None


def place_agents(profile: Profile, run: Run, options: Options) -> tuple[Placement, ...]:
    """One placement per node, or fewer if too few hosts are left."""
    all_hosts = options.hosts or (Host(host="localhost"),) * profile.nodes.max
    hosts = tuple(host for host in all_hosts if host.host not in options.avoid)[: profile.nodes.max]
    first_nodes: dict[str, int] = {}
    for node, node_host in enumerate(hosts):
        first_nodes.setdefault(node_host.host, node)
    factory = _PlacementFactory(profile, run, options)
    return tuple(
        factory.build_local(host) if host.is_local else factory.build_remote(host, first_nodes[host.host])
        for host in hosts
    )


class _PlacementFactory(NamedTuple):
    """Makes the placements of one attempt."""

    profile: Profile
    run: Run
    options: Options

    def build_local(self, host: Host) -> Placement:
        """A placement on this machine, where all files already are."""
        folder = f"{self.run.folder}/attempt-{self.run.attempt}"
        checkpoints, python = f"{self.run.folder}/checkpoints", self.options.python or sys.executable
        return Placement(host, folder, checkpoints, str(self.profile.program), python, None)

    def build_remote(self, host: Host, first_node: int) -> Placement:
        """A placement behind ssh, with a folder of the attempt's own: clearing it affects no other attempt."""
        profile, run, options = self
        source_path, program_path = find_program_source(profile, options)
        site = Site(
            host=host.host,
            folder=f"{options.folder.rstrip('/')}/{run.job(profile)}",
            python=options.supervisor_python,
            work=source_path,
            files=f"{run.folder}/attempt-{run.attempt}/node-{first_node}/files",
            previous_folders=_previous_folders(run),
        )
        program = str(PurePosixPath(site.folder, "work", program_path)) if source_path else str(profile.program)
        return Placement(host, site.folder, f"{site.folder}/checkpoints", program, options.python or "python3", site)


def _previous_folders(run: Run) -> tuple[str, ...]:
    """Where the previous attempt left checkpoints, on any node: a spare may have taken a host's place since."""
    previous_pattern = glob.escape(f"{run.folder}/attempt-{run.attempt - 1}")
    return (f"{previous_pattern}/node-*/files", run.folder) if run.attempt > 1 else ()


def find_program_source(profile: Profile, options: Options) -> tuple[str | None, str]:
    """The path to copy, and the program's path in it, which begins with `..` if it is outside."""
    program = Path(str(profile.program))
    if options.program_there:
        return None, ""
    if options.source is None:
        return str(program), program.name
    folder = os.path.normpath(program.parent / options.source)
    return folder, os.path.relpath(program, folder)
