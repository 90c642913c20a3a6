"""Stages in the supervisor and the program on hosts behind ssh, and stages out what the job leaves there."""

import contextlib
import fnmatch
import glob
import io
import json
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from torchyard.code.archive import read_archive
from torchyard.common.json_text import parse_json
from torchyard.common.log import get_log
from torchyard.host.staging import is_missing, list_files
from torchyard.host.state import LIVE_PHASES
from torchyard.machines import processes
from torchyard.machines.archive import END_MEMBER, unpack_archive
from torchyard.machines.host_command import SCRIPTS_FOLDER, script_command
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.ownership import check_response, identify_owner
from torchyard.machines.processes import Command
from torchyard.model.errors import FolderError, HostError, RunInUseError
from torchyard.model.plan import CommandPlan, Process, Site

CopiedFiles = dict[str, Any]  # size and mtime of each file on a host that is copied, by its name
_MAX_RESPONSE_BYTES = 64 * 2**10
_MAX_PROGRAM_BYTES = 200 * 2**20  # bytes of a program's folder
_CODE_MEMBER = "code.tar.gz"
_SKIPPED_NAMES = frozenset({".git", "__pycache__", ".venv", "node_modules"})
_REMOVAL_TIMEOUT_S = 120.0
_END_GRACE_S = 10.0  # for processes without a folder, whose own grace is in its spec
_LOG_IDLE_TIMEOUT_S = 60.0  # seconds without a byte of a log that is still being copied


class SentFile(NamedTuple):
    """A file to copy to a host, and its name in the run's folder there."""

    path: Path
    name: str


def stage_in(sites: Sequence[Site]) -> None:
    """Create the run's folder on each host that lacks it.

    Raises HostError if a host refuses or the program cannot be copied, RunInUseError if another living launcher owns
    the run, and FolderError if the checkpoints of the previous attempt cannot be read.
    """
    checkpoints: dict[tuple[str, ...], list[SentFile]] = {}
    for site in sites:  # most sites share their previous folders, which are searched once
        if site.previous_folders not in checkpoints:
            checkpoints[site.previous_folders] = list_checkpoints(site.previous_folders)

    def stage_in_site(site: Site) -> None:
        _stage_in_site(site, checkpoints[site.previous_folders])

    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        list(pool.map(stage_in_site, sites))  # `list` raises a thread's error


def _stage_in_site(site: Site, checkpoints: Sequence[SentFile]) -> None:
    digest = site.code.archive.digest if site.code else None
    request = json.dumps({"owner": identify_owner(site.files), "port_try": site.port_try, "code": digest})
    command = script_command(site.host, site.python, "staging.py", "place", site.folder, request)
    processes.retry_ssh(partial(processes.pipe_command, site.host, command, partial(_send_archive, site, checkpoints)))


class LastAttempt(NamedTuple):
    """The last attempt that has a folder on a host: its number, and how many of its ports were held (Run.port_try)."""

    number: int
    port_try: int


def find_last_attempt(plan: CommandPlan) -> LastAttempt | None:
    """The run's last attempt on any host; None if there is none. Another machine may have started it.

    Raises HostError if a host does not answer: only that one may have the last attempt.
    """
    commands = [
        (site.host, script_command(site.host, site.python, "staging.py", "attempts", site.folder))
        for site in plan.sites
    ]
    attempts: list[LastAttempt] = []
    for (host, _), response in zip(commands, processes.run_commands(commands), strict=True):
        if isinstance(response, HostError):
            raise response
        attempts += _parse_attempts(host, response)
    return max(attempts, default=None)


def _parse_attempts(host: str, response: Any) -> list[LastAttempt]:
    """The attempts that have a folder on a host. HostError if its response is malformed."""
    pairs = response.get("attempts") if isinstance(response, dict) else None
    if not isinstance(pairs, list):
        raise HostError(host, "list the run's attempts", "its response does not have them")
    attempts: list[LastAttempt] = []
    for pair in pairs:
        match pair:
            case [int(number), int(port_try)]:
                attempts.append(LastAttempt(number, port_try))
            case _:
                raise HostError(host, "list the run's attempts", f"{pair!r} is not an attempt")
    return attempts


def _list_site_files(site: Site) -> Iterator[SentFile]:
    """The files to copy: the program and the scripts of torchyard/host. HostError if they are too large or absent."""
    source = Path(site.work or SCRIPTS_FOLDER)
    if not source.exists():
        raise HostError(site.host, f"copy {source} there", "it does not exist on this machine")
    program_files = list(walk_files(source)) if site.work else []
    size = sum(path.stat().st_size for path, _ in program_files if path.is_file())
    if size > _MAX_PROGRAM_BYTES:
        max_mib = _MAX_PROGRAM_BYTES >> 20
        reason = f"it holds {size >> 20} MiB, and {max_mib} MiB can be copied: see options.source and program_there"
        raise HostError(site.host, f"copy {source} there", reason)
    for path, name in program_files:
        yield SentFile(path, f"work/{name}")
    for path, name in walk_files(SCRIPTS_FOLDER):
        yield SentFile(path, f"supervisor/torchyard/host/{name}")


def walk_files(source: Path) -> Iterator[SentFile]:
    """A file, or every file of a folder except what is not part of a program, with its name relative to the folder.

    A link to another folder below `source` is followed. One that leads out of it may lead to a dataset: it is skipped,
    with a warning. OSError if a folder cannot be listed.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    if source.is_file():
        yield SentFile(source, source.name)
        return
    for directory, folders, files in os.walk(source, onerror=fail, followlinks=True):
        folders[:] = [
            name for name in folders if name not in _SKIPPED_NAMES and _is_program_folder(source, Path(directory, name))
        ]
        for name in files:
            path = Path(directory, name)
            if path.exists():  # not a dangling link
                yield SentFile(path, str(path.relative_to(source)))


def _is_program_folder(source: Path, path: Path) -> bool:
    """Whether a folder is copied with the program: not if it is a link out of `source`, or to a folder around it."""
    if not path.is_symlink():
        return True
    target = path.resolve()
    # Also of links that lead to each other: each folder of the path may be a link itself.
    folders_above = [folder for folder in path.parents if folder.is_relative_to(source)]
    if any(folder.resolve().is_relative_to(target) for folder in folders_above):
        return False
    is_inside = target.is_relative_to(source.resolve())
    if not is_inside:
        _report_skipped_link(path, target)
    return is_inside


@cache  # a program is copied to many hosts
def _report_skipped_link(path: Path, target: Path) -> None:
    get_log().warning(
        "hosts: %s is not copied: it is a link to %s, outside of the program's folder; copy what the program needs",
        path,
        target,
    )


def _send_archive(site: Site, checkpoints: Sequence[SentFile], stdin: IO[bytes], stdout: IO[bytes]) -> Any:
    """Send the tar that host/staging.py unpacks, if the host wants it; returns the JSON value that it then prints.

    The program is read only if it is wanted: it may have been removed here since it was copied. Raises RunInUseError if
    another living launcher owns the run, HostError if the program cannot be copied, FolderError if the code cannot be
    read, ValueError or OSError otherwise.
    """
    response = parse_json(stdout.readline(_MAX_RESPONSE_BYTES))
    if not isinstance(response, dict):
        raise ValueError("it did not report whether the run's folder exists")
    if response.get("other_owner"):
        raise RunInUseError(f"{site.host}:{site.folder}", str(response["other_owner"]))
    if response.get("wanted"):
        with tarfile.open(fileobj=stdin, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path, name in (*_list_site_files(site), *checkpoints):
                archive.add(path, name, recursive=False, filter=_strip_owner)
            if site.code and response.get("code_wanted"):
                content = read_archive(site.code)
                member = tarfile.TarInfo(_CODE_MEMBER)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            archive.addfile(tarfile.TarInfo(END_MEMBER))
        stdin.close()
    return parse_json(stdout.read(_MAX_RESPONSE_BYTES))


def _strip_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def list_checkpoints(previous_folders: Iterable[str]) -> list[SentFile]:
    """The checkpoints that the previous attempt left on any host, the newest last: rank 0 may be elsewhere now.

    Links that lead out of what a host has sent are skipped: they would give it a file of this machine. FolderError if
    one cannot be read: without it the next attempt would start from an older one, or from the beginning.
    """
    checkpoints: list[SentFile] = []
    folder = ""
    try:
        for folder in _expand_patterns(previous_folders):
            real_folder = Path(folder).resolve()
            for name, _ in list_files(folder, "checkpoints"):
                path = Path(folder, name)
                if path.is_file() and path.resolve().is_relative_to(real_folder):
                    checkpoints.append(SentFile(path, name))
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.path.stat().st_mtime)
    except OSError as error:
        path_text = str(error.filename or folder)
        reason = f"the checkpoints of the previous attempt cannot be read ({error.strerror})"
        raise FolderError(path_text, reason, "check its filesystem") from error


def _expand_patterns(previous_folders: Iterable[str]) -> Iterator[str]:
    """The folders that paths and patterns stand for: patterns keep a plan for thousands of hosts small. OSError."""
    for pattern in previous_folders:
        if is_missing(pattern):
            yield from sorted(_list_matches(pattern))
        else:
            yield pattern


def _list_matches(pattern: str) -> list[str]:
    """The paths that match a pattern, as those of `glob.glob`, which leaves out what it cannot read. OSError."""
    if not glob.has_magic(pattern):
        return [] if is_missing(pattern) else [pattern]
    parent_pattern, name_pattern = os.path.split(pattern)
    matches: list[str] = []
    for parent in _list_matches(parent_pattern):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            matches += [os.path.join(parent, name) for name in fnmatch.filter(os.listdir(parent), name_pattern)]
    return matches


def stage_out_and_remove(plan: CommandPlan, hosts: Collection[str]) -> list[str]:
    """Copy the rest of the logs and everything that the job left on `hosts`, and remove the run's folder there.

    A folder of which something could not be copied is kept. Returns what is left, and why. RunInUseError if another
    living launcher owns the run.
    """
    host_processes = [process for process in plan.all_processes if process.site and process.host in hosts]
    sites = [site for site in plan.sites if site.host in hosts]
    with ThreadPoolExecutor(1) as pool, ProcessWatch(host_processes, logs_only=True) as watch:
        staging_out = pool.submit(_stage_out, sites)
        watch.drain_logs(idle_timeout_s=_LOG_IDLE_TIMEOUT_S)
        losses = watch.lost_logs()
        missing_by_host: dict[str, str] = {}
        for process in host_processes:
            loss = losses.get(process.name) or _sync_log(process)
            if loss:
                missing_by_host[process.host] = f"log of {process.name}: {loss}"
        copied_by_host = staging_out.result()
    return _remove_complete(sites, copied_by_host, missing_by_host)


def _sync_log(process: Process) -> str:
    """Sync the copy of a log to this machine's disk, because the original is about to be removed; why that failed.

    Empty if it did not fail, or if there is no log.
    """
    try:
        with open(process.log, "rb") as log:
            os.fsync(log.fileno())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"its copy is not on this machine's disk: {error}"
    return ""


def remove_incomplete_folders(plan: CommandPlan, hosts: Collection[str]) -> list[str]:
    """Stage out and remove what is left of folders whose supervisor was removed, as an interrupted `rm` leaves them.

    Returns what is left, and why.
    """
    sites = [site for site in plan.sites if site.host in hosts]
    return _remove_complete(sites, _stage_out(sites), {})


def _remove_complete(
    sites: Sequence[Site], copied_by_host: Mapping[str, CopiedFiles | HostError], missing_by_host: Mapping[str, str]
) -> list[str]:
    """Remove the folders of the hosts from which everything was copied. Returns what is left, and why.

    `copied_by_host`: what was copied, or why that failed; a host removes nothing else. `missing_by_host` describes the
    logs that were not copied to their end.
    """
    leftovers: list[str] = []
    complete_sites: list[Site] = []
    commands: list[tuple[str, Command]] = []
    for site in sites:
        copied = copied_by_host[site.host]
        reason = missing_by_host.get(site.host)
        if isinstance(copied, HostError):
            reason = str(copied)
        if reason:
            leftovers.append(f"{site.host}: folder {site.folder}: {reason}")
            continue
        complete_sites.append(site)
        command = script_command(site.host, site.python, "staging.py", "clear", site.folder, identify_owner(site.files))
        commands.append((site.host, replace(command, input=copied)))
    responses = processes.run_commands(commands, timeout_s=_REMOVAL_TIMEOUT_S)
    for site, response in zip(complete_sites, responses, strict=True):
        leftovers += read_leftovers(site.host, response)
    return leftovers


def _stage_out(sites: Sequence[Site]) -> dict[str, CopiedFiles | HostError]:
    """Stage out what the job left on each host; returns what was copied, or why that failed, by host."""
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        results = list(pool.map(_stage_out_site, sites))
    return {site.host: result for site, result in zip(sites, results, strict=True)}


def _stage_out_site(site: Site) -> CopiedFiles | HostError:
    """Stage out what the job left on one host; returns what was copied, or why that failed."""
    command = script_command(site.host, site.python, "staging.py", "bring", site.folder)
    unpack = partial(unpack_archive, Path(site.files))
    try:
        return processes.retry_ssh(partial(processes.pipe_command, site.host, command, unpack))
    except HostError as error:
        return error


def end_unstaged(plan: CommandPlan, unstaged: Sequence[Process]) -> dict[str, list[str]]:
    """End the processes on hosts that have no folder of the attempt (any more). Returns what is left, by process.

    A host is queried once for all of its processes, and what is left there counts for the last of them. RunInUseError
    if another living launcher owns the run.
    """
    process_by_host = {process.host: process for process in unstaged if process.site}
    commands: list[tuple[str, Command]] = []
    for host, process in process_by_host.items():
        assert process.site
        site = process.site
        script_argv = ("end", site.folder, identify_owner(site.files), plan.label, f"{_END_GRACE_S:g}")
        commands.append((host, script_command(host, site.python, "staging.py", *script_argv)))
    responses = processes.run_commands(commands, timeout_s=_REMOVAL_TIMEOUT_S)
    leftovers: dict[str, list[str]] = {}
    for (host, process), response in zip(process_by_host.items(), responses, strict=True):
        leftovers[process.name] = read_leftovers(host, response)
    return leftovers


def read_leftovers(host: str, response: Any) -> list[str]:
    """What a host reports as left over, as `host: process 123`.

    A host that cannot be queried (`response` is its HostError), or does not report its leftovers, counts as left over,
    and so does a process whose supervisor still reports that it runs, whatever its leftovers are. RunInUseError if the
    host refuses because another living launcher owns the run.
    """
    check_response(host, response)
    if isinstance(response, HostError):
        return [str(response)]
    leftovers = response.get("left") if isinstance(response, dict) else None
    if not isinstance(leftovers, list):
        return [f"{host}: did not report what is left"]
    if response.get("phase") in LIVE_PHASES and not leftovers:
        return [f"{host}: its supervisor still reports a running process"]
    return [f"{host}: {leftover}" for leftover in leftovers]
