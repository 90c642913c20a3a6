"""What a server has added to an object is left out of a new one."""

from typing import Any

import pytest

from torchyard.pods.server_fields import drop_server_fields

READ = {"name": "a", "uid": "1"}


@pytest.mark.parametrize(
    ("document", "expected", "dropped"),
    [
        ({"metadata": {"name": "a", "finalizers": ["x"]}, "status": {}}, None, []),
        (
            {
                "metadata": {"name": "a", "creationTimestamp": None},
                "tasks": [{"metadata": {"creationTimestamp": None}}, {"metadata": {"creationTimestamp": "now"}}],
            },
            {"metadata": {"name": "a"}, "tasks": [{"metadata": {}}, {"metadata": {"creationTimestamp": "now"}}]},
            ["metadata.creationTimestamp", "tasks[0].metadata.creationTimestamp"],
        ),
        (
            {"metadata": READ | {"managedFields": [], "labels": {"b": "c"}}, "status": {"phase": "Bound"}},
            {"metadata": {"name": "a", "labels": {"b": "c"}}},
            ["status", "metadata.uid", "metadata.managedFields"],
        ),
        (
            {"metadata": READ | {"ownerReferences": [{}], "annotations": {"pv.kubernetes.io/bound": "y", "d": "e"}}},
            {"metadata": {"name": "a", "annotations": {"d": "e"}}},
            ["metadata.uid", "metadata.ownerReferences", "metadata.annotations.pv.kubernetes.io/bound"],
        ),
        (
            {"kind": "Service", "metadata": READ, "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}},
            {"kind": "Service", "metadata": {"name": "a"}, "spec": {}},
            ["metadata.uid", "spec.clusterIP", "spec.clusterIPs"],
        ),
        (
            {"kind": "Service", "metadata": READ, "spec": {"clusterIP": "None"}},
            {"kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "None"}},
            ["metadata.uid"],
        ),
        (
            {"kind": "PersistentVolumeClaim", "metadata": READ, "spec": {"volumeName": "pv-1"}},
            {"kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {}},
            ["metadata.uid", "spec.volumeName"],
        ),
        (
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": READ,
                "spec": {"selector": {}, "template": {"metadata": {"labels": {"controller-uid": "1", "f": "g"}}}},
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "a"},
                "spec": {"template": {"metadata": {"labels": {"f": "g"}}}},
            },
            ["metadata.uid", "spec.selector", "spec.template.metadata.labels.controller-uid"],
        ),
    ],
)
def test_server_fields_are_left_out(
    document: dict[str, Any], expected: dict[str, Any] | None, dropped: list[str]
) -> None:
    """Only an object that a server has returned loses fields, and only those that the server had set."""
    assert drop_server_fields(document) == (expected or document, dropped)
