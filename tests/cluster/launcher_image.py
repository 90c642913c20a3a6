"""The image of deploy/Dockerfile, really built, and put where the real nodes find it.

There is no registry: its base is an empty image that gets this machine's userland, as those of tests/cluster/images.py
do when their containers start.
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
_OF_THE_BUILD = ("/etc/ssl", "/etc/resolv.conf", "/etc/pip.conf")  # how pip reaches the package index


def why_not() -> str:
    """Why this machine cannot build the image, in a sentence; "" if it can."""
    return "" if shutil.which("buildah") else "there is no buildah"


def build_image(folder: Path) -> Path:
    """Build the image; returns an archive that `ctr images import` reads."""
    images.pack([_base()], folder / "base.tar")
    archive = folder / "launcher.tar"
    mounts = [path for path in ("/usr", sys.base_prefix, *_OF_THE_BUILD) if Path(path).exists()]
    pip = [name for name in os.environ if name.startswith("PIP_")]
    own = ["buildah", "--root", folder / "store", "--runroot", folder / "run", "--storage-driver", "vfs"]
    _run(*own, "pull", f"docker-archive:{folder / 'base.tar'}")
    _run(
        *(*own, "bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--tag", IMAGE),
        *("--file", images.ROOT / "deploy" / "Dockerfile", "--build-arg", f"BASE={BASE}"),
        *(word for path in mounts for word in ("--volume", f"{path}:{path}:ro")),
        *(word for name in pip for word in ("--env", name)),
        images.ROOT,
    )
    _run(*own, "push", IMAGE, f"docker-archive:{archive}:{IMAGE}")
    shutil.rmtree(folder / "store")
    return archive


def load_image(plane: Plane, archive: Path) -> None:
    """Import the image on each real node."""
    for node in NODES:
        own = [each.pid for each in plane.processes() if each.component == node.name]
        first = max(own)  # the one inside of the node's namespaces is started last
        _run("nsenter", "--target", str(first), "--all", "ctr", "--namespace", "k8s.io", "images", "import", archive)


def _base() -> images.Image:
    """A base with a Python that any user can run: the machine's own, without its packages."""
    links = {name: os.readlink(f"/{name}") for name in images.SYSTEM if Path("/", name).is_symlink()}
    files = {name: text.encode() for name, text in images.TEXTS.items()}
    files["etc/ld.so.cache"] = Path("/etc/ld.so.cache").read_bytes()
    search = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    folders = {**images.EMPTY, "root": 0o755, "srv": 0o755}
    return images.Image(BASE, images.layer(folders, links, files), ("python3",), {"PATH": search})


def _run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words[:8]))}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
