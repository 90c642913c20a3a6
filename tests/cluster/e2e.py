"""`make e2e`: runs the tests on the cluster of `make cluster-up`, or on one that is started just for them.

Another cluster is used only if it is named explicitly: `make e2e KUBE=/path/to/kubeconfig`. KUBECONFIG is not read.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.caller import CLUSTER, forget_caller
from tests.cluster import launcher_image, nodes
from tests.cluster.plane import Plane
from tests.skips import MAY_SKIP
from tests.steady import play_tests
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

ROOT = Path(__file__).resolve().parents[2]
MAKE = (sys.executable, str(ROOT / "tests" / "cluster" / "cluster.py"))
# The two controllers of AppWrappers cannot share a cluster: the older one's profiles are always skipped.
OTHER_DISPATCHER = "cluster.py up --mcad"
# Skipped without real nodes, or without the rights that they need.
REAL = ("torchyard/node=real", "small disk")


@contextmanager
def cluster() -> Iterator[None]:
    """Set KUBECONFIG to a cluster for tests within the block; a cluster started for it is stopped afterwards."""
    forget_caller()
    if named := os.environ.get(CLUSTER):
        os.environ["KUBECONFIG"] = named
        yield
        return
    plane = Plane()
    running = plane.running()
    if not running:
        subprocess.run([*MAKE, "up"], check=True)
    os.environ["KUBECONFIG"] = os.environ[CLUSTER] = os.pathsep.join([str(plane.admin), str(plane.user)])
    try:
        yield
    finally:
        del os.environ[CLUSTER]
        forget_caller()
        if not running:
            subprocess.run([*MAKE, "down"], check=True)


def may_skip() -> str:
    """The reasons for which tests may be skipped on this machine, or on a cluster that is not ours."""
    lacking = REAL if os.environ.get(CLUSTER) or nodes.why_not() else ()
    return ",".join(filter(None, (OTHER_DISPATCHER, launcher_image.why_not(), *lacking)))


def main() -> int:
    os.environ.setdefault(MAY_SKIP, may_skip())
    with cluster():
        try:
            get_cluster_client(Cluster()).request("GET", "/version")
        except ClusterError as error:
            print(f"no cluster answers at {os.environ[CLUSTER]}: {error}", file=sys.stderr)
            return 1
        # The tests mostly wait, and each module has its own namespace.
        side_by_side = ["-n", "3", "--dist", "loadfile"]
        os.chdir(ROOT)
        return play_tests("tests/cluster", "-rs", *side_by_side, *sys.argv[1:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
