"""`make e2e`: runs the tests on the cluster of `make cluster-up`, or on one that is started only for them.

Another cluster is used only if it is named explicitly: `make e2e KUBE=/path/to/kubeconfig`. KUBECONFIG is not read.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cluster import launcher_image, nodes
from tests.cluster.plane import Plane
from tests.support.caller import CLUSTER, forget_caller
from tests.tools.rerun_alone import run_tests
from tests.tools.skips import MAY_SKIP
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_COMMAND = (sys.executable, str(ROOT / "tests" / "cluster" / "cluster.py"))
# The two controllers of AppWrappers cannot share a cluster: the older one's profiles are always skipped.
OTHER_DISPATCHER_SKIP = "cluster.py up --mcad"
# Skipped without real nodes, or without the rights that they need.
REAL_NODE_SKIPS = ("torchyard/node=real", "small disk")


@contextmanager
def cluster() -> Iterator[None]:
    """Set KUBECONFIG to a cluster for tests within the block.

    A cluster that was started for it is stopped afterwards.
    """
    forget_caller()
    kubeconfig = os.environ.get(CLUSTER)
    if kubeconfig:
        os.environ["KUBECONFIG"] = kubeconfig
        yield
        return
    plane = Plane()
    was_running = plane.is_running()
    if not was_running:
        subprocess.run([*CLUSTER_COMMAND, "up"], check=True)
    os.environ["KUBECONFIG"] = os.environ[CLUSTER] = os.pathsep.join(
        [str(plane.admin_kubeconfig), str(plane.user_kubeconfig)]
    )
    try:
        yield
    finally:
        del os.environ[CLUSTER]
        forget_caller()
        if not was_running:
            subprocess.run([*CLUSTER_COMMAND, "down"], check=True)


def may_skip() -> str:
    """The reasons for which tests may be skipped on this machine, or on another cluster, separated by commas."""
    reasons = [OTHER_DISPATCHER_SKIP]
    image_obstacle = launcher_image.describe_obstacle()
    if image_obstacle:
        reasons.append(image_obstacle)
    if os.environ.get(CLUSTER) or nodes.describe_obstacle():
        reasons += REAL_NODE_SKIPS
    return ",".join(reasons)


def main() -> int:
    os.environ.setdefault(MAY_SKIP, may_skip())
    with cluster():
        try:
            get_cluster_client(Cluster()).request("GET", "/api")
        except ClusterError as error:
            print(f"the cluster of {os.environ[CLUSTER]} does not respond: {error}", file=sys.stderr)
            return 1
        # The tests mostly wait, and each module has its own namespace.
        parallel_options = ["-n", "6", "--dist", "loadfile", "--no-loadscope-reorder"]
        os.chdir(ROOT)
        return run_tests("tests/cluster", "-rfEs", *parallel_options, *sys.argv[1:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
