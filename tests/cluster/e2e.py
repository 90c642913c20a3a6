"""`make e2e`: the tests on a cluster: KUBECONFIG's or, where it names none, one that comes and goes with them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster.plane import Plane

ROOT = Path(__file__).resolve().parents[2]
MAKE = (sys.executable, str(ROOT / "tests" / "cluster" / "cluster.py"))


@contextmanager
def cluster() -> Iterator[None]:
    """KUBECONFIG names a cluster meanwhile; one that was started for it is taken down again."""
    before = os.environ.get("KUBECONFIG")
    if before:
        yield
        return
    plane = Plane()
    running = plane.running()
    if not running:
        subprocess.run([*MAKE, "up"], check=True)
    os.environ["KUBECONFIG"] = os.pathsep.join([str(plane.admin), str(plane.user)])
    try:
        yield
    finally:
        del os.environ["KUBECONFIG"]
        if not running:
            subprocess.run([*MAKE, "down"], check=True)


def main() -> int:
    with cluster():
        # They wait more than they work, and each module has a namespace of its own.
        side_by_side = ["-n", "3", "--dist", "loadfile"]
        tests = [sys.executable, "-m", "pytest", "tests/cluster", "-rs", *side_by_side, *sys.argv[1:]]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
