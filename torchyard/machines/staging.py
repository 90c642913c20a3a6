"""What a run has on hosts that ssh reaches: its keeper and its program go there, and what the job leaves comes back."""

import base64
import glob
import json
import os
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from torchyard.machines import processes
from torchyard.machines.archive import WHOLE, unpack
from torchyard.machines.job_watch import Watch
from torchyard.machines.status_stream import carrier
from torchyard.model.errors import HostError, OwnedError
from torchyard.model.plan import THIS_MACHINE, Block, Command, CommandPlan, Site

HOST = Path(__file__).resolve().parents[1] / "host"
MAX_ANSWER_BYTES = 64 * 2**10
MOST = 200 * 2**20  # bytes of a program's folder
SKIPPED = frozenset({".git", "__pycache__", ".venv", "node_modules"})
KEEPER = ("cancel.py", "lease.py", "log.py", "network.py", "processes.py", "staging.py", "state.py", "supervisor.py")
GRACE_S = 10.0  # for processes of which no folder tells how long theirs is
SETTLE = 60.0  # seconds without a byte of a log that is still on its way
# One line, for every login shell; and only what is compiled later lets an old Python say that it is one.
TEXT = (
    "import sys; sys.version_info < (3, 8) and sys.exit('is Python %d.%d, and 3.8 or newer is needed' "
    "% sys.version_info[:2]); import base64, zlib; "
    "exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
)


def script(host: str, python: str, name: str, *more: str) -> Command:
    """A script of torchyard/host: its file on this machine, its text where nothing of ours is."""
    if host in THIS_MACHINE:
        return Command(argv=(python, str(HOST / name), *more))
    return Command(argv=text(python, name, *more))


def text(python: str, name: str, *more: str) -> tuple[str, ...]:
    """A script of torchyard/host as words of a command, which need no file."""
    packed = base64.b64encode(zlib.compress((HOST / name).read_bytes())).decode()
    return (python, "-c", TEXT, packed, *more)


def place(sites: Sequence[Site]) -> None:
    """Fill each site, or find it filled. HostError where a host refused it, or the program cannot be copied.

    OwnedError where a living process of another place carries the run.
    """
    kept = {before: saved(before) for before in {site.before for site in sites}}
    with ThreadPoolExecutor(max(len(sites), 1)) as pool:
        list(pool.map(lambda site: place_one(site, kept[site.before]), sites))


def place_one(site: Site, kept: Sequence[tuple[Path, str]]) -> None:
    asked = json.dumps({"carrier": carrier(site.files)})
    command = script(site.host, site.python, "staging.py", "place", site.folder, asked)
    processes.patiently(partial(processes.pipe, site.host, command, partial(fill, site, kept)))


def latest(plan: CommandPlan) -> int:
    """The number of the run's last attempt that a host knows, 0 where none does: another machine may have begun it.

    A host that does not answer says nothing here; preflight tells of it.
    """
    commands = [(site.host, script(site.host, site.python, "staging.py", "begun", site.folder)) for site in plan.sites]
    said = [answer["attempts"] for answer in processes.call_each(commands) if is_begun(answer)]
    return max((number for numbers in said for number in numbers), default=0)


def is_begun(answer: Any) -> bool:
    """Whether a host has said which attempts it knows."""
    numbers = answer.get("attempts") if isinstance(answer, dict) else None
    return isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)


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
    yield from ((HOST / name, f"keeper/torchyard/host/{name}") for name in KEEPER)


def tree(source: Path) -> Iterator[tuple[Path, str]]:
    """A file, or every file of a folder but for what has nothing to do with a program, each with its name."""
    if source.is_file():
        yield source, source.name
    for at, folders, files in os.walk(source):
        folders[:] = [each for each in folders if each not in SKIPPED]
        yield from ((path, str(path.relative_to(source))) for each in files if (path := Path(at, each)).exists())


def fill(site: Site, kept: Sequence[tuple[Path, str]], there: IO[bytes], answer: IO[bytes]) -> Any:
    """Send the tar that host/staging.py unpacks, where it is wanted: the program may be gone here by then."""
    found = json.loads(answer.readline(MAX_ANSWER_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it does not say whether the run's folder is there")
    if found.get("carrier"):
        raise OwnedError(f"{site.host}:{site.folder}", str(found["carrier"]))
    if found.get("wanted"):
        with tarfile.open(fileobj=there, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path, name in (*program_files(site), *kept):
                archive.add(path, name, recursive=False, filter=nobodys)
            archive.addfile(tarfile.TarInfo(WHOLE))
        there.close()
    return json.loads(answer.read(MAX_ANSWER_BYTES))


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def saved(before: Iterable[str]) -> list[tuple[Path, str]]:
    """The checkpoints that the attempt before left on any host, the newest last: rank 0 may be elsewhere now.

    A link that leads out of what a host has sent would give it a file of this machine.
    """
    found = [
        (path, f"checkpoints/{path.relative_to(folder / 'checkpoints')}")
        for folder in map(Path, expanded(before))
        for path in (folder / "checkpoints").rglob("*")
        if path.is_file() and path.resolve().is_relative_to(folder.resolve())
    ]
    return sorted(found, key=lambda each: each[0].stat().st_mtime)


def expanded(before: Iterable[str]) -> Iterator[str]:
    """Folders, and what patterns stand for: a plan with the folders of thousands of hosts would not be small."""
    for each in before:
        yield from [each] if os.path.isdir(each) else sorted(glob.glob(each))


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
    command = script(site.host, site.python, "staging.py", "bring", site.folder)
    try:
        processes.patiently(partial(processes.pipe, site.host, command, partial(unpack, Path(site.files))))
    except HostError as error:
        return str(error)
    return ""


def clear(sites: Sequence[Site]) -> list[str]:
    """Remove each site's folder; what is left, as `host: folder x`."""
    commands = [(site.host, script(site.host, site.python, "staging.py", "clear", site.folder)) for site in sites]
    said = zip(sites, processes.call_each(commands, timeout=120), strict=True)
    return [thing for site, answer in said for thing in things_left(site.host, answer)]


def end_unplaced(plan: CommandPlan, blocks: Sequence[Block]) -> dict[str, list[str]]:
    """End what runs on hosts where no folder of the attempt is, or not any more: what is left, by block."""
    asked = {block.host: (block, block.site) for block in blocks if block.site}
    commands = [
        (host, script(host, site.python, "processes.py", "end", plan.label, f"{GRACE_S:g}"))
        for host, (_, site) in asked.items()
    ]
    said = zip(asked.items(), processes.call_each(commands, timeout=120), strict=True)
    return {block.name: things_left(host, answer) for (host, (block, _)), answer in said}


def things_left(host: str, answer: Any) -> list[str]:
    """What a host says is left. One that cannot be asked, or whose answer says nothing of it, counts as that."""
    if isinstance(answer, HostError):
        return [str(answer)]
    left = answer.get("left") if isinstance(answer, dict) else None
    return (
        [f"{host}: {thing}" for thing in left] if isinstance(left, list) else [f"{host}: says nothing of what is left"]
    )
