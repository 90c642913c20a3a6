"""Which objects of a plan a run can go on without."""

from pathlib import Path

import pytest
import yaml

from tests.conftest import Planned
from torchyard.common.project_root import ROOT
from torchyard.pods.optional_objects import OptionalObject, find_optional_object


@pytest.fixture
def optional_objects(planned: Planned) -> list[OptionalObject]:
    plan = planned(rendezvous="etcd-v2")
    found = [find_optional_object(obj) for obj in (*plan.store, *plan.objects)]
    return [optional for optional in found if optional]


def test_policy_and_own_files_are_optional(optional_objects: list[OptionalObject]) -> None:
    """The store's NetworkPolicy and the ConfigMap of torchyard's own files are optional, and no other object is."""
    resources = [optional.resource for optional in optional_objects]
    assert resources == ["networkpolicies.networking.k8s.io", "configmaps"]


def test_role_grants_what_an_optional_object_needs(optional_objects: list[OptionalObject]) -> None:
    """The role that the warning names grants the verbs."""
    documents = yaml.safe_load_all(Path(ROOT, "deploy/kubernetes/rbac.yaml").read_text())
    rules = {document["metadata"]["name"]: document.get("rules", []) for document in documents}
    for optional in optional_objects:
        plural = optional.resource.partition(".")[0]
        granted = [rule["verbs"] for rule in rules[optional.rbac_role] if plural in rule["resources"]]
        assert any(set(optional.verbs) <= set(verbs) for verbs in granted)
