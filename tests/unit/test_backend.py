"""Backends: which one a plan gets, and which modules are imported for it."""

import subprocess
import sys

from tests.conftest import Planned
from torchyard.backend import backend_of
from torchyard.cluster.backend import ClusterBackend
from torchyard.common.project_root import ROOT

PROGRAM = """
import sys
from torchyard.backend import backend_of
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.run import Run
profile = load_profile("digits-local")
plan = registry.make_plan(profile, Run(id="0190c7f0-0000-7000", attempt=1, folder="/runs/r"))
print(type(backend_of(plan)).__name__, *({"kubernetes", "torchyard.cluster", "torchyard.kube"} & sys.modules.keys()))
"""


def test_plan_of_objects_is_for_a_cluster(planned: Planned) -> None:
    """A plan of Kubernetes objects gets the backend of a cluster."""
    assert isinstance(backend_of(planned()), ClusterBackend)


def test_run_on_this_machine_loads_no_kubernetes_client() -> None:
    """The backend of a plan of processes is chosen without the import of a Kubernetes client, which takes 0.4 s."""
    process = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["MachinesBackend"]
