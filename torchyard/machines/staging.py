"""Stages in the supervisor and the program on hosts behind ssh, and stages out what the job leaves there."""

import base64
import glob
import json
import os
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from torchyard.agents import black_box
from torchyard.machines import processes
from torchyard.machines.archive import END_MEMBER, unpack_archive
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.status_stream import node_holder_identity
from torchyard.model.errors import HostError, RunInUseError
from torchyard.model.plan import THIS_MACHINE, Command, CommandPlan, Process, Site

_SCRIPTS_FOLDER = Path(__file__).resolve().parents[1] / "host"
_MAX_RESPONSE_BYTES = 64 * 2**10
_MAX_PROGRAM_BYTES = 200 * 2**20  # bytes of a program's folder
_SKIPPED_NAMES = frozenset({".git", "__pycache__", ".venv", "node_modules"})
_SUPERVISOR_FILES = (
    "cancel.py",
    "lease.py",
    "log.py",
    "network.py",
    "processes.py",
    "staging.py",
    "state.py",
    "supervisor.py",
    *(f"black_box/{name}" for name in black_box.FILES),
)
_END_GRACE_S = 10.0  # for processes without a folder that says how long theirs is
_LOG_IDLE_TIMEOUT_S = 60.0  # seconds without a byte of a log that is still being copied
# One line, for every login shell. The script is compiled after the check: an old Python must get that far.
_BOOTSTRAP_CODE = (
    "import sys; sys.version_info < (3, 8) and sys.exit('is Python %d.%d, and 3.8 or newer is needed' "
    "% sys.version_info[:2]); import base64, zlib; "
    "exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
)


def script_command(host: str, python: str, name: str, *args: str) -> Command:
    """Runs a script of torchyard/host: its file on this machine, its text on hosts that have none of our files."""
    if host in THIS_MACHINE:
        return Command(argv=(python, str(_SCRIPTS_FOLDER / name), *args))
    return Command(argv=_inline_script(python, name, *args))


def _inline_script(python: str, name: str, *args: str) -> tuple[str, ...]:
    """A command line that contains a script of torchyard/host and needs no file."""
    packed = base64.b64encode(zlib.compress((_SCRIPTS_FOLDER / name).read_bytes())).decode()
    return (python, "-c", _BOOTSTRAP_CODE, packed, *args)


def stage_in(sites: Sequence[Site]) -> None:
    """Create the run's folder on each host that lacks it. HostError if a host refuses, or the program cannot be copied.

    RunInUseError if another living launcher owns the run.
    """
    checkpoints_by_folders = {
        previous_folders: _list_checkpoints(previous_folders)
        for previous_folders in {site.previous_folders for site in sites}
    }
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        list(pool.map(lambda site: _stage_in_site(site, checkpoints_by_folders[site.previous_folders]), sites))


def _stage_in_site(site: Site, checkpoints: Sequence[tuple[Path, str]]) -> None:
    request = json.dumps({"carrier": node_holder_identity(site.files)})
    command = script_command(site.host, site.python, "staging.py", "place", site.folder, request)
    processes.retry_ssh(partial(processes.pipe_command, site.host, command, partial(_send_archive, site, checkpoints)))


def find_last_attempt(plan: CommandPlan) -> int:
    """The number of the run's last attempt on any host, 0 if there is none: another machine may have started it.

    A host that does not answer is passed over here; preflight reports it.
    """
    commands = [
        (site.host, script_command(site.host, site.python, "staging.py", "begun", site.folder)) for site in plan.sites
    ]
    attempt_lists = [
        response["attempts"] for response in processes.run_commands(commands) if _has_attempt_numbers(response)
    ]
    return max((attempt for attempts in attempt_lists for attempt in attempts), default=0)


def _has_attempt_numbers(response: Any) -> bool:
    """Whether a host has reported which attempts it knows."""
    attempts = response.get("attempts") if isinstance(response, dict) else None
    return isinstance(attempts, list) and all(isinstance(attempt, int) for attempt in attempts)


def _list_site_files(site: Site) -> Iterator[tuple[Path, str]]:
    """The files to copy and their names there. HostError if they are too large or do not exist."""
    source = Path(site.work or _SCRIPTS_FOLDER)
    if not source.exists():
        raise HostError(site.host, f"copy {source} there", "it does not exist on this machine")
    program_files = list(_walk_files(source)) if site.work else []
    size = sum(path.stat().st_size for path, _ in program_files if path.is_file())
    if size > _MAX_PROGRAM_BYTES:
        max_mib = _MAX_PROGRAM_BYTES >> 20
        reason = f"it holds {size >> 20} MiB, and {max_mib} MiB can be copied: see options.source and program_there"
        raise HostError(site.host, f"copy {source} there", reason)
    yield from ((path, f"work/{name}") for path, name in program_files)
    yield from ((_SCRIPTS_FOLDER / name, f"keeper/torchyard/host/{name}") for name in _SUPERVISOR_FILES)


def _walk_files(source: Path) -> Iterator[tuple[Path, str]]:
    """A file, or every file of a folder except what is not part of a program, each with its name."""
    if source.is_file():
        yield source, source.name
    for directory, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in _SKIPPED_NAMES]
        yield from ((path, str(path.relative_to(source))) for name in files if (path := Path(directory, name)).exists())


def _send_archive(site: Site, checkpoints: Sequence[tuple[Path, str]], stdin: IO[bytes], stdout: IO[bytes]) -> Any:
    """Send the tar that host/staging.py unpacks, if the host wants it: else the program may be gone here by now."""
    response = json.loads(stdout.readline(_MAX_RESPONSE_BYTES))
    if not isinstance(response, dict):
        raise ValueError("it does not say whether the run's folder exists")
    if response.get("carrier"):
        raise RunInUseError(f"{site.host}:{site.folder}", str(response["carrier"]))
    if response.get("wanted"):
        with tarfile.open(fileobj=stdin, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path, name in (*_list_site_files(site), *checkpoints):
                archive.add(path, name, recursive=False, filter=_strip_owner)
            archive.addfile(tarfile.TarInfo(END_MEMBER))
        stdin.close()
    return json.loads(stdout.read(_MAX_RESPONSE_BYTES))


def _strip_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _list_checkpoints(previous_folders: Iterable[str]) -> list[tuple[Path, str]]:
    """The checkpoints that the previous attempt left on any host, the newest last: rank 0 may be elsewhere now.

    Links that lead out of what a host has sent are skipped: they would give it a file of this machine.
    """
    checkpoints = [
        (path, f"checkpoints/{path.relative_to(folder / 'checkpoints')}")
        for folder in map(Path, _expand_patterns(previous_folders))
        for path in (folder / "checkpoints").rglob("*")
        if path.is_file() and path.resolve().is_relative_to(folder.resolve())
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint[0].stat().st_mtime)


def _expand_patterns(previous_folders: Iterable[str]) -> Iterator[str]:
    """The folders that paths and patterns stand for: patterns keep a plan for thousands of hosts small."""
    for pattern in previous_folders:
        yield from [pattern] if os.path.isdir(pattern) else sorted(glob.glob(pattern))


def stage_out_and_remove(plan: CommandPlan, hosts: Collection[str]) -> list[str]:
    """Stage everything out and remove the run's folder from some hosts. Returns what is left, and why."""
    blocks = [process for process in plan.all_processes if process.site and process.host in hosts]
    sites = [site for site in plan.sites if site.host in hosts]
    with ThreadPoolExecutor(1) as pool, ProcessWatch(blocks, logs_only=True) as watch:
        staging_out = pool.submit(_stage_out, sites)
        watch.drain_logs(_LOG_IDLE_TIMEOUT_S)
        incomplete_logs = {
            process.host: f"log of {process.name}: {loss}"
            for process in blocks
            if (loss := watch.lost_logs().get(process.name))
        }
        missing_by_host = {**incomplete_logs, **staging_out.result()}
    return _remove_complete(sites, missing_by_host)


def remove_incomplete_folders(plan: CommandPlan, hosts: Collection[str]) -> list[str]:
    """Stage out and remove what is left of folders whose supervisor was removed, as an interrupted `rm` leaves them.

    Returns what is left, and why.
    """
    sites = [site for site in plan.sites if site.host in hosts]
    return _remove_complete(sites, _stage_out(sites))


def _remove_complete(sites: Sequence[Site], missing_by_host: Mapping[str, str]) -> list[str]:
    """Remove the folders of which everything is here; `lacking` says what is not, by host. Returns what is left."""
    remaining = [
        f"{site.host}: folder {site.folder}: {missing}" for site in sites if (missing := missing_by_host.get(site.host))
    ]
    return remaining + _remove_site_folders([site for site in sites if site.host not in missing_by_host])


def _stage_out(sites: Sequence[Site]) -> dict[str, str]:
    """Stage out what the job left on each host; returns why that failed, by host."""
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        return {site.host: error for site, error in zip(sites, pool.map(_stage_out_site, sites), strict=True) if error}


def _stage_out_site(site: Site) -> str:
    command = script_command(site.host, site.python, "staging.py", "bring", site.folder)
    try:
        processes.retry_ssh(
            partial(processes.pipe_command, site.host, command, partial(unpack_archive, Path(site.files)))
        )
    except HostError as error:
        return str(error)
    return ""


def _remove_site_folders(sites: Sequence[Site]) -> list[str]:
    """Remove the run's folder from each host; returns what is left, as `host: folder x`."""
    commands = [
        (site.host, script_command(site.host, site.python, "staging.py", "clear", site.folder)) for site in sites
    ]
    site_responses = zip(sites, processes.run_commands(commands, timeout_s=120), strict=True)
    return [leftover for site, response in site_responses for leftover in read_leftovers(site.host, response)]


def end_unstaged(plan: CommandPlan, unstaged: Sequence[Process]) -> dict[str, list[str]]:
    """End the processes on hosts that have no folder of the attempt (any more). Returns what is left, by process."""
    by_host = {process.host: (process, process.site) for process in unstaged if process.site}
    commands = [
        (host, script_command(host, site.python, "processes.py", "end", plan.label, f"{_END_GRACE_S:g}"))
        for host, (_, site) in by_host.items()
    ]
    host_responses = zip(by_host.items(), processes.run_commands(commands, timeout_s=120), strict=True)
    return {process.name: read_leftovers(host, response) for (host, (process, _)), response in host_responses}


def read_leftovers(host: str, response: Any) -> list[str]:
    """What a host reports as left over. A host that cannot be asked, or does not say, counts as left over."""
    if isinstance(response, HostError):
        return [str(response)]
    leftovers = response.get("left") if isinstance(response, dict) else None
    return (
        [f"{host}: {leftover}" for leftover in leftovers]
        if isinstance(leftovers, list)
        else [f"{host}: does not say what is left"]
    )
