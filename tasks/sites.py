"""What a run has on hosts that ssh reaches: its keeper and its program go there, and what the job leaves comes back."""

import base64
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from tasks import shell
from tasks.errors import HostError, OwnedError
from tasks.plan import THIS_MACHINE, Command, CommandPlan, Site
from tasks.streams import Watch, carrier

HOST = Path(__file__).resolve().parent / "host"
WHOLE = "whole"
MOST = 200 * 2**20  # bytes of a program's folder
SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules"})
KEEPER = ("keep.py", "lease.py", "log.py", "network.py", "site.py", "state.py")
SETTLE = 15.0  # seconds without a byte of a log that is still on its way
# One line, for every login shell; and only what is compiled later lets an old Python say that it is one.
TEXT = (
    "import sys; sys.version_info < (3, 8) and sys.exit('is Python %d.%d, and 3.8 or newer is needed' "
    "% sys.version_info[:2]); import base64, zlib; "
    "exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
)


def script(host: str, python: str, name: str, *more: str) -> Command:
    """A script of tasks/host: its file on this machine, its text where nothing of ours is."""
    if host in THIS_MACHINE:
        return Command(argv=(python, str(HOST / name), *more))
    text = base64.b64encode(zlib.compress((HOST / name).read_bytes())).decode()
    return Command(argv=(python, "-c", TEXT, text, *more))


def place(sites: Sequence[Site]) -> None:
    """Fill each site, or find it filled. HostError where a host refused it, or the program cannot be copied.

    OwnedError where a living process of another place carries the run.
    """
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        list(pool.map(place_one, sites))


def place_one(site: Site) -> None:
    asked = json.dumps({"carrier": carrier(site.files)})
    command = script(site.host, site.python, "site.py", "place", site.folder, asked)
    shell.patiently(partial(shell.pipe, site.host, command, partial(fill, site)))


def latest(plan: CommandPlan) -> int:
    """The number of the run's last attempt that a host knows, 0 where none does: another machine may have begun it.

    A host that does not answer says nothing here; preflight tells of it.
    """
    commands = [(site.host, script(site.host, site.python, "site.py", "begun", site.folder)) for site in plan.sites]
    said = [answer for answer in shell.call_each(commands) if not isinstance(answer, HostError)]
    return max((number for answer in said for number in answer["attempts"]), default=0)


def program_files(site: Site) -> Iterator[tuple[Path, str]]:
    """What is copied and its name there. HostError where it is too much, or nothing."""
    source = Path(site.work or HOST)
    if not source.exists():
        raise HostError(site.host, f"copy {source} there", "it is not on this machine")
    found = list(tree(source)) if site.work else []
    size = sum(path.stat().st_size for path, _ in found if path.is_file())
    if size > MOST:
        why = f"it holds {size >> 20} MiB, and {MOST >> 20} MiB can be copied: see options.source and program_there"
        raise HostError(site.host, f"copy {source} there", why)
    yield from ((path, f"work/{name}") for path, name in found)
    yield from ((HOST / name, f"keeper/tasks/host/{name}") for name in KEEPER)


def tree(source: Path) -> Iterator[tuple[Path, str]]:
    """A file, or every file of a folder but for what has nothing to do with a program, each with its name."""
    if source.is_file():
        yield source, source.name
    for at, folders, files in os.walk(source):
        folders[:] = [each for each in folders if each not in SKIPPED]
        yield from ((path, str(path.relative_to(source))) for each in files if (path := Path(at, each)).exists())


def fill(site: Site, there: IO[bytes], answer: IO[bytes]) -> Any:
    """Send the tar that site.py unpacks, where it is wanted: who comes back may not have the program any more."""
    found = json.loads(answer.readline())
    if found["carrier"]:
        raise OwnedError(f"{site.host}:{site.folder}", found["carrier"])
    if found["wanted"]:
        with tarfile.open(fileobj=there, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path, name in (*program_files(site), *saved(site)):
                archive.add(path, name, recursive=False, filter=nobodys)
            archive.addfile(tarfile.TarInfo(WHOLE))
        there.close()
    return json.loads(answer.read())


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def saved(site: Site) -> list[tuple[Path, str]]:
    """The checkpoints that the attempt before left on any host, the newest last: rank 0 may be elsewhere now."""
    found = [
        (path, f"checkpoints/{path.relative_to(folder)}")
        for folder in (Path(each, "checkpoints") for each in site.before)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    return sorted(found, key=lambda each: each[0].stat().st_mtime)


def vacate(plan: CommandPlan, hosts: Collection[str]) -> list[str]:
    """Bring everything home and remove the sites of some hosts: what is left, and why."""
    blocks = [block for block in plan.blocks if block.site and block.host in hosts]
    sites = [site for site in plan.sites if site.host in hosts]
    with ThreadPoolExecutor(1) as pool, Watch(blocks, logs_only=True) as watch:
        brought = pool.submit(bring, sites)
        watch.settle(SETTLE)
        torn = {block.host: f"log of {block.name}: {why}" for block in blocks if (why := watch.lost().get(block.name))}
        lacking = {**torn, **brought.result()}
    kept = [f"{site.host}: folder {site.folder}: {why}" for site in sites if (why := lacking.get(site.host))]
    return kept + clear([site for site in sites if site.host not in lacking])


def bring(sites: Sequence[Site]) -> dict[str, str]:
    """Bring home what the job left on each site; why it did not come, by host."""
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        return {site.host: why for site, why in zip(sites, pool.map(bring_one, sites), strict=True) if why}


def bring_one(site: Site) -> str:
    command = script(site.host, site.python, "site.py", "bring", site.folder)
    try:
        shell.patiently(partial(shell.pipe, site.host, command, partial(unpack, Path(site.files))))
    except HostError as error:
        return str(error)
    return ""


def unpack(files: Path, there: IO[bytes], answer: IO[bytes]) -> bool:
    """Unpack a tar of another machine below `files`: nothing in it leads outside. Whole, or what was there stays."""
    there.close()
    part = files.with_name(f"{files.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        extract(answer, part)
        if any(part.iterdir()):
            shutil.copytree(part, files, dirs_exist_ok=True, symlinks=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


def extract(stream: IO[bytes], folder: Path) -> None:
    """OSError where the tar is not whole."""
    last = ""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # what is kept out, is here
            for member in archive:
                last = member.name = member.name.lstrip("/")
                if last != WHOLE and harmless(member):
                    member.mode &= 0o777
                    archive.extract(member, folder)
    except tarfile.TarError as error:
        raise OSError(f"what came is torn: {error}") from error
    if last != WHOLE:
        raise OSError("what came is torn")


def harmless(member: tarfile.TarInfo) -> bool:
    """Whether it stays inside: a link that leads elsewhere is left out. tarfile's own filters came with 3.11.4."""
    beside = os.path.dirname(member.name) if member.issym() else ""
    leads = [member.name, *([os.path.join(beside, member.linkname)] if member.issym() or member.islnk() else [])]
    inside = not any(os.path.isabs(each) or os.path.normpath(each).startswith("..") for each in leads)
    return inside and (member.isreg() or member.isdir() or member.issym() or member.islnk())


def clear(sites: Sequence[Site]) -> list[str]:
    """Remove each site's folder; what is left, as `host: folder x`."""
    commands = [(site.host, script(site.host, site.python, "site.py", "clear", site.folder)) for site in sites]
    said = zip(sites, shell.call_each(commands, timeout=120), strict=True)
    return [
        thing
        for site, answer in said
        for thing in (
            [str(answer)] if isinstance(answer, HostError) else [f"{site.host}: {each}" for each in answer["left"]]
        )
    ]
