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

from tests.tools.record_torchrun import load_options
from torchyard.pods.etcd import DEFAULT_IMAGE as ETCD

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "docker.io/torchyard/node-python:local"  # in a pod: torchyard/node-python:local
ALPINE = "docker.io/library/alpine:3.10"  # compiled into the operator
OLD_TORCH = "1.13.1"  # of the image that guide 000's profiles pin
PAUSE = "docker.io/torchyard/node-pause:local"
PROGRAMS = "/opt/torchyard/programs"
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr, or separate folders
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
EMPTY_FOLDERS = {"dev": 0o755, "etc": 0o755, "opt": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755, "sys": 0o755}
EMPTY_FOLDERS |= {"tmp": 0o1777, "usr": 0o755, "var": 0o755, "var/lib": 0o755, "var/tmp": 0o1777}
TEXT_FILES = {
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


def list_userland_mounts() -> list[tuple[Path, str]]:
    """The folders of this machine that are mounted into containers of PYTHON, and their paths there; parents first."""
    folders = {Path("/usr"), Path("/etc/alternatives"), Path(sys.base_prefix), Path(sys.prefix)}
    folders |= {Path("/", name) for name in SYSTEM_FOLDERS if not Path("/", name).is_symlink()}
    mounts = [(path, str(path)) for path in sorted(folders) if path.is_dir() and path.parent not in folders]
    return [*mounts, (ROOT / "programs", PROGRAMS)]


def build_python_image() -> Image:
    """The image of pods that run Python; a shell and Python are mounted when a container starts."""
    return build_machine_image(PYTHON, {"opt/bin/torchrun": old_torchrun().encode()})


def old_torchrun() -> str:
    """A torchrun that rejects options unknown to the one in guide 000's image, and else runs the machine's."""
    return f"""#!{sys.executable} -IS
import argparse, json, os, sys
parser = argparse.ArgumentParser("torchrun")
for option in json.loads({json.dumps(json.dumps(load_options(OLD_TORCH)))}):
    parser.add_argument(*option.pop("names"), **option)
parser.parse_args()
os.execv({sys.prefix!r} + "/bin/torchrun", sys.argv)
"""


def build_alpine_image() -> Image:
    """The image in which the operator lets a job's workers wait until the master's name resolves."""
    return build_machine_image(ALPINE, {"opt/bin/nslookup": b'#!/bin/sh\nexec getent hosts "$1"\n'})


def build_machine_image(name: str, extra_files: dict[str, bytes]) -> Image:
    """An image whose containers get the machine's userland and some extra files."""
    search = [f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    environment = {"PATH": ":".join(dict.fromkeys(["/opt/bin", *search])), "PYTHONDONTWRITEBYTECODE": "1"}
    links = {name: os.readlink(f"/{name}") for name in SYSTEM_FOLDERS if Path("/", name).is_symlink()}
    texts = {name: content.encode() for name, content in TEXT_FILES.items()}
    linker_cache = Path("/etc/ld.so.cache")
    if linker_cache.exists():
        texts["etc/ld.so.cache"] = linker_cache.read_bytes()
    return Image(name, build_layer(EMPTY_FOLDERS, links, texts | extra_files), ("python",), environment)


def build_pause_image() -> Image:
    """The image of pod sandboxes: `sleep` and its libraries, because containerd runs no hooks for sandboxes."""
    program = shutil.which("sleep") or "/bin/sleep"
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    files = {path[1:]: Path(path).read_bytes() for path in [program, *re.findall(r"(/\S+) \(0x", libraries)]}
    return Image(PAUSE, build_layer({}, {}, files), (program, "infinity"))


def build_etcd_image(program: Path) -> Image:
    """The rendezvous store's image, under its name in plans and with the program at its path in the real image."""
    folders = {"usr": 0o755, "usr/local": 0o755, "usr/local/bin": 0o755, "var": 0o755, "var/lib": 0o755, "tmp": 0o1777}
    path = "usr/local/bin/etcd"
    return Image(
        ETCD, build_layer(folders, {}, {path: program.read_bytes()}), (f"/{path}",), {"PATH": "/usr/local/bin"}
    )


def build_layer(folders: dict[str, int], links: dict[str, str], files: dict[str, bytes]) -> bytes:
    """A tar of folders with their modes, of links, and of files that all users may execute; root owns them all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in folders.items():
            tar.addfile(build_entry(name, tarfile.DIRTYPE, mode))
        for name, target in links.items():
            link = build_entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            tar.addfile(link)
        add_files(tar, files)
    return buffer.getvalue()


def add_files(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        file = build_entry(name, tarfile.REGTYPE, 0o755)
        file.size = len(content)
        tar.addfile(file, io.BytesIO(content))


def build_entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    tar_info = tarfile.TarInfo(name)
    tar_info.type = kind
    tar_info.mode = mode
    return tar_info


def write_archive(images: Iterable[Image], archive: Path) -> None:
    """Write images into one archive as `docker save` does, which `ctr images import` reads."""
    manifest: list[dict[str, Any]] = []
    with tarfile.open(archive, "w") as tar:
        for image in images:
            digest = hashlib.sha256(image.layer).hexdigest()
            config = json.dumps(build_config(image, digest)).encode()
            config_name = f"{hashlib.sha256(config).hexdigest()}.json"
            layer_name = f"{digest}.tar"
            add_files(tar, {config_name: config, layer_name: image.layer})
            manifest.append({"Config": config_name, "Layers": [layer_name], "RepoTags": [image.name]})
        add_files(tar, {"manifest.json": json.dumps(manifest).encode()})


def build_config(image: Image, digest: str) -> dict[str, Any]:
    """The image's configuration, as the OCI specifies it."""
    environment = [f"{name}={value}" for name, value in image.environment.items()]
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": environment, "Cmd": list(image.command), "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
