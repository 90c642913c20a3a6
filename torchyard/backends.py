"""Chooses who carries out a plan: a cluster, or machines.

A step calls `job_of` once and does not depend on the kind of plan. The modules of a kind are imported only here, so a
run on this machine loads no Kubernetes client.
"""

from typing import assert_never

from torchyard.interfaces import Job, NodeAccess, Owner
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan


def job_of(plan: Plan) -> Job:
    """The job of a plan."""
    match plan:
        case CommandPlan():
            from torchyard.machines.job import MachinesJob

            return MachinesJob(plan)
        case ManifestPlan():
            from torchyard.cluster.job import ClusterJob

            return ClusterJob(plan)
        case _:
            assert_never(plan)


def owner_of(plan: Plan) -> Owner:
    """The owner of the run of a plan."""
    match plan:
        case CommandPlan():
            from torchyard.machines.owner import MachinesOwner

            return MachinesOwner(plan)
        case ManifestPlan():
            from torchyard.cluster.owner import ClusterOwner

            return ClusterOwner(plan)
        case _:
            assert_never(plan)


def access_to(plan: Plan) -> NodeAccess:
    """The access to the nodes of a plan's job."""
    match plan:
        case CommandPlan():
            from torchyard.machines.access import MachinesAccess

            return MachinesAccess(plan)
        case ManifestPlan():
            from torchyard.cluster.access import access_pods_of

            return access_pods_of(plan)
        case _:
            assert_never(plan)
