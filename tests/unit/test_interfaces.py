"""The interfaces between a run and the outside: what every kind of plan implements."""

import inspect

import pytest

from torchyard.cluster.access import ClusterAccess
from torchyard.cluster.job import ClusterJob
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.owner import ClusterOwner
from torchyard.interfaces import Job, JobWatch, NodeAccess, Owner
from torchyard.machines.access import MachinesAccess
from torchyard.machines.job import MachinesJob
from torchyard.machines.job_watch import ProcessWatch
from torchyard.model.plan import Plan


@pytest.mark.parametrize(
    ("interface", "implementations"),
    [
        (Job, (ClusterJob, MachinesJob)),
        (JobWatch, (ClusterWatch, ProcessWatch)),
        (NodeAccess, (ClusterAccess, MachinesAccess)),
        (Owner, (ClusterOwner,)),
    ],
)
def test_both_kinds_take_the_same_arguments(interface: type, implementations: tuple[type, ...]) -> None:
    """A step that works with one kind of plan works with the other: the methods have the same parameters."""
    methods = {name: method for name, method in inspect.getmembers(interface, inspect.isfunction) if name[0] != "_"}
    assert len(methods) >= 3
    for implementation in implementations:
        for name, method in methods.items():
            expected = list(inspect.signature(method).parameters.values())
            actual = list(inspect.signature(getattr(implementation, name)).parameters.values())
            assert [(parameter.name, parameter.kind, parameter.default) for parameter in actual] == [
                (parameter.name, parameter.kind, parameter.default) for parameter in expected
            ], f"{implementation.__name__}.{name}"


def test_owner_without_a_record_owns_the_run() -> None:
    """Where nothing outside of the run's folder records an owner, no other machine has the run."""

    def build_plan(number: int, port_try: int = 0) -> Plan:
        pytest.fail(f"no plan is needed: {number}, {port_try}")

    owner = Owner()
    assert owner.take_over(build_plan, []) is None
    owner.check()
    owner.check_not_elsewhere()
