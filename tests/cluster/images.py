"""The images of real nodes, built from this machine's own files: no registry, no docker.

`PYTHON` is nearly empty. Its file /.userland requests the machine's own userland, and node/userland.sh mounts that
read-only into each of its containers: /usr, the Python that runs this, its packages, and programs/ as PROGRAMS.
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.record_torchrun import options
from torchyard.pods.etcd import DEFAULT_IMAGE as ETCD

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "docker.io/torchyard/node-python:local"  # in a pod: torchyard/node-python:local
ALPINE = "docker.io/library/alpine:3.10"  # compiled into the operator
OLD_TORCH = "1.13.1"  # of the image that guide 000's profiles pin
PAUSE = "docker.io/torchyard/node-pause:local"
PROGRAMS = "/opt/torchyard/programs"
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr, or separate folders
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EMPTY = {"dev": 0o755, "etc": 0o755, "opt": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755, "sys": 0o755}
EMPTY |= {"tmp": 0o1777, "usr": 0o755, "var": 0o755, "var/lib": 0o755, "var/tmp": 0o1777}
TEXTS = {
    ".userland": "",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


@dataclass(frozen=True)
class Image:
    """An image of one layer: its name, the layer as a tar, and the default command and environment."""

    name: str
    layer: bytes
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def userland() -> list[tuple[Path, str]]:
    """The folders of this machine that are mounted into containers of PYTHON, and where; outer ones first."""
    own = {Path("/usr"), Path("/etc/alternatives"), Path(sys.base_prefix), Path(sys.prefix)}
    own |= {Path("/", name) for name in SYSTEM if not Path("/", name).is_symlink()}
    same = [(path, str(path)) for path in sorted(own) if path.is_dir() and path.parent not in own]
    return [*same, (ROOT / "programs", PROGRAMS)]


def python() -> Image:
    """The image of pods that run Python; a shell and Python are mounted when a container starts."""
    return machine(PYTHON, {"opt/bin/torchrun": old_torchrun().encode()})


def old_torchrun() -> str:
    """A torchrun that rejects options unknown to the one in guide 000's image, and else runs the machine's."""
    return f"""#!{sys.executable} -IS
import argparse, json, os, sys
parser = argparse.ArgumentParser("torchrun")
for option in json.loads({json.dumps(json.dumps(options(OLD_TORCH)))}):
    parser.add_argument(*option.pop("names"), **option)
parser.parse_args()
os.execv({sys.prefix!r} + "/bin/torchrun", sys.argv)
"""


def alpine() -> Image:
    """The image in which the operator lets a job's workers wait until the master's name resolves."""
    return machine(ALPINE, {"opt/bin/nslookup": b'#!/bin/sh\nexec getent hosts "$1"\n'})


def machine(name: str, more: dict[str, bytes]) -> Image:
    """An image whose containers get the machine's userland and some extra files."""
    search = [f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    environment = {"PATH": ":".join(dict.fromkeys(["/opt/bin", *search])), "PYTHONDONTWRITEBYTECODE": "1"}
    links = {name: os.readlink(f"/{name}") for name in SYSTEM if Path("/", name).is_symlink()}
    texts = {name: content.encode() for name, content in TEXTS.items()}
    if (cache := Path("/etc/ld.so.cache")).exists():
        texts["etc/ld.so.cache"] = cache.read_bytes()
    return Image(name, layer(EMPTY, links, {**texts, **more}), ("python",), environment)


def pause() -> Image:
    """The image of pod sandboxes: `sleep` and its libraries, because containerd runs no hooks for sandboxes."""
    program = shutil.which("sleep") or "/bin/sleep"
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    files = {path[1:]: Path(path).read_bytes() for path in [program, *re.findall(r"(/\S+) \(0x", needed)]}
    return Image(PAUSE, layer({}, {}, files), (program, "infinity"))


def etcd(program: Path) -> Image:
    """The rendezvous store's image, under its name in plans and with the program at its path in the real image."""
    folders = {"usr": 0o755, "usr/local": 0o755, "usr/local/bin": 0o755, "var": 0o755, "var/lib": 0o755, "tmp": 0o1777}
    path = "usr/local/bin/etcd"
    return Image(ETCD, layer(folders, {}, {path: program.read_bytes()}), (f"/{path}",), {"PATH": "/usr/local/bin"})


def layer(folders: dict[str, int], links: dict[str, str], files: dict[str, bytes]) -> bytes:
    """A tar of folders with their modes, of links, and of files that all users may execute; root owns them all."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, mode in folders.items():
            tar.addfile(entry(name, tarfile.DIRTYPE, mode))
        for name, target in links.items():
            link = entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            tar.addfile(link)
        add_files(tar, files)
    return made.getvalue()


def add_files(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        file = entry(name, tarfile.REGTYPE, 0o755)
        file.size = len(content)
        tar.addfile(file, io.BytesIO(content))


def entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode = kind, mode
    return found


def pack(made: Iterable[Image], archive: Path) -> None:
    """Write images into one archive as `docker save` does, which `ctr images import` reads."""
    manifest: list[dict[str, Any]] = []
    with tarfile.open(archive, "w") as tar:
        for image in made:
            digest = hashlib.sha256(image.layer).hexdigest()
            config = json.dumps(configuration(image, digest)).encode()
            told, layered = f"{hashlib.sha256(config).hexdigest()}.json", f"{digest}.tar"
            add_files(tar, {told: config, layered: image.layer})
            manifest.append({"Config": told, "Layers": [layered], "RepoTags": [image.name]})
        add_files(tar, {"manifest.json": json.dumps(manifest).encode()})


def configuration(image: Image, digest: str) -> dict[str, Any]:
    environment = [f"{name}={value}" for name, value in image.environment.items()]
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": environment, "Cmd": list(image.command), "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
