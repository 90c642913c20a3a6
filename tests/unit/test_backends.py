"""Backends: who carries out a plan, and which modules are imported for it."""

import subprocess
import sys

from tests.conftest import Planned
from torchyard.backends import access_to, job_of, owner_of
from torchyard.cluster.access import ClusterAccess
from torchyard.cluster.job import ClusterJob
from torchyard.cluster.owner import ClusterOwner
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client

PROGRAM = """
import sys
from torchyard.backends import access_to, job_of, owner_of
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.run import Run
profile = load_profile("digits-local")
plan = registry.make_plan(profile, Run(id="0190c7f0-0000-7000", attempt=1, folder="/runs/r"))
print(*(type(choose(plan)).__name__ for choose in (job_of, owner_of, access_to)))
print(*({"kubernetes", "torchyard.cluster", "torchyard.kube"} & sys.modules.keys()))
"""


def test_plan_of_objects_is_for_a_cluster(planned: Planned, fake_server: Client) -> None:
    """A plan of Kubernetes objects gets the job, the owner and the access of a cluster."""
    plan = planned()
    assert isinstance(job_of(plan), ClusterJob)
    assert isinstance(owner_of(plan), ClusterOwner)
    assert isinstance(access_to(plan), ClusterAccess)


def test_run_on_this_machine_loads_no_kubernetes_client() -> None:
    """A plan of processes is carried out without the import of a Kubernetes client, which takes 0.4 s."""
    process = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["MachinesJob", "MachinesOwner", "MachinesAccess"]
