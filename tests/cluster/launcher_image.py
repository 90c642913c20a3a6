"""The image of deploy/Dockerfile, really built, and imported on the real nodes.

There is no registry: its base is an empty image with this machine's userland, as in the images of
tests/cluster/images.py when their containers start.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster import images
from tests.cluster.plane import Plane
from tests.cluster.real_node import NODES

IMAGE = "localhost/torchyard/launcher:local"
BASE = "localhost/torchyard/launcher-base:local"
_PIP_PATHS = ("/etc/ssl", "/etc/resolv.conf", "/etc/pip.conf")  # how pip reaches the package index


def describe_obstacle() -> str | None:
    """Why this machine cannot build the image, in a sentence; None if it can."""
    return None if shutil.which("buildah") else "there is no buildah"


def build_image(folder: Path) -> Path:
    """Build the image; return an archive that `ctr images import` reads."""
    images.write_archive([_build_base_image()], folder / "base.tar")
    archive = folder / "launcher.tar"
    buildah = ["buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs"]
    options: list[object] = ["--isolation", "chroot", "--network", "host", "--pull-never", "--tag", IMAGE]
    options += ["--file", images.ROOT / "deploy" / "Dockerfile", "--build-arg", f"BASE={BASE}"]
    for path in ("/usr", sys.base_prefix, *_PIP_PATHS):
        if Path(path).exists():
            options += ["--volume", f"{path}:{path}:ro"]
    for name in os.environ:
        if name.startswith("PIP_"):
            options += ["--env", name]
    _run(*buildah, "pull", f"docker-archive:{folder / 'base.tar'}")
    _run(*buildah, "bud", *options, images.ROOT)
    _run(*buildah, "push", IMAGE, f"docker-archive:{archive}:{IMAGE}")
    shutil.rmtree(folder / "store")
    return archive


def load_image(plane: Plane, archive: Path) -> None:
    """Import the image on each real node."""
    for node in NODES:
        pids = [process.pid for process in plane.list_processes() if process.component == node.name]
        pid = max(pids)  # the one inside of the node's namespaces is started last
        _run("nsenter", "--target", str(pid), "--all", "ctr", "--namespace", "k8s.io", "images", "import", archive)


def _build_base_image() -> images.Image:
    """A base with a Python that any user can run: the machine's own, without its packages."""
    links = {name: os.readlink(f"/{name}") for name in images.SYSTEM_FOLDERS if Path("/", name).is_symlink()}
    files = {name: text.encode() for name, text in images.TEXT_FILES.items()}
    files["etc/ld.so.cache"] = Path("/etc/ld.so.cache").read_bytes()
    search_path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    folders = images.EMPTY_FOLDERS | {"root": 0o755, "srv": 0o755}
    return images.Image(BASE, images.build_layer(folders, links, files), ("python3",), {"PATH": search_path})


def _run(*argv: object) -> None:
    """Run a command; AssertionError with its output if it fails."""
    result = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(map(str, argv[:8]))}: {result.stdout[-2000:]}{result.stderr[-4000:]}"
