"""Checks of the objects that pods refer to: whether they exist, have their keys, and can be mounted."""

from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi
from torchyard.cluster.checks.references import check_reference
from torchyard.kube.client import Client
from torchyard.model.requirements import ReferencedObject

CONFIG = ReferencedObject(object_kind="ConfigMap", name="train-conf", required_entries=("a.yaml", "b.bin"))
CLAIM = ReferencedObject(object_kind="PersistentVolumeClaim", name="data")


def put(fake_api: FakeApi, kind: str, name: str, **fields: Any) -> None:
    fake_api.put({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields})


def test_missing_object_is_reported_with_similar_names(fake_api: FakeApi, fake_server: Client) -> None:
    """A missing object is reported with similar names and the command that creates it."""
    for name in ("other", "train-config"):
        put(fake_api, "ConfigMap", name)
    check = check_reference(fake_server, CONFIG, "x", 2)
    assert (check.verdict, check.what) == (
        "failed",
        "is not in namespace default; there are: train-config and 1 more",
    )
    assert check.remedy == "`kubectl create configmap train-conf -n default --from-file=FILE`"


def test_remedy_for_a_queue_names_the_keys_of_profile_and_manifest(fake_server: Client) -> None:
    """A LocalQueue may be named by an option of the profile, or by a label of the manifest."""
    reference = ReferencedObject(object_kind="LocalQueue", name="team")
    remedy = check_reference(fake_server, reference, "x", 2).remedy
    assert "options.local_queue (null for none), or in the manifest's label kueue.x-k8s.io/queue-name" in remedy


def test_at_most_five_names_are_listed(fake_api: FakeApi, fake_server: Client) -> None:
    """If no name is similar, the first five are listed, with the number of the others."""
    for index in range(7):
        put(fake_api, "ConfigMap", f"zz-{index}")
    assert check_reference(fake_server, CONFIG, "x", 2).what.endswith("zz-0, zz-1, zz-2, zz-3, zz-4 and 2 more")


def test_kind_that_cannot_be_listed_is_reported(fake_api: FakeApi, fake_server: Client) -> None:
    """If the cluster does not serve the kind, or its objects may not be listed, the finding reports that."""
    reference = ReferencedObject(object_kind="NetworkAttachmentDefinition", name="sriov")
    assert check_reference(fake_server, reference, "x", 2).what.endswith(
        "this cluster does not serve the kind (k8s.cni.cncf.io/v1)"
    )
    fake_api.fail("GET", "/configmaps$", 403)
    assert "the existing names cannot be listed" in check_reference(fake_server, CONFIG, "x", 2).what


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"data": {"a.yaml": "1"}, "binaryData": {"b.bin": "MQ=="}}, "has a.yaml, b.bin"),
        ({"data": {"a.yaml": "1", "c": "2"}}, "has no key b.bin; there are: a.yaml, c"),
        ({}, "has no key a.yaml, b.bin; there are: none"),
    ],
)
def test_missing_keys_fail_the_check(
    fake_api: FakeApi, fake_server: Client, fields: dict[str, Any], detail: str
) -> None:
    """A ConfigMap must have the keys that the pods read, as text or as binary data."""
    put(fake_api, "ConfigMap", "train-conf", **fields)
    check = check_reference(fake_server, CONFIG, "x", 2)
    assert (check.verdict, check.what) == ("ok" if "binaryData" in fields else "failed", detail)


def put_claim(fake_api: FakeApi, phase: str, mode: str, **spec: Any) -> None:
    put(fake_api, "PersistentVolumeClaim", "data", spec={"accessModes": [mode]} | spec, status={"phase": phase})


@pytest.mark.parametrize(
    ("phase", "mode", "pod_count", "expected"),
    [
        ("Bound", "ReadWriteMany", 2, ("ok", "is Bound")),
        ("Bound", "ReadOnlyMany", 2, ("ok", "is Bound")),
        ("Bound", "ReadWriteOnce", 1, ("ok", "is Bound")),
        ("Bound", "ReadWriteOnce", 2, ("warning", "is Bound and ReadWriteOnce: its 2 pods must share one node")),
        ("Lost", "ReadWriteMany", 2, ("failed", "is Lost: its volume is gone")),
        ("Pending", "ReadWriteMany", 2, ("warning", "is Pending: its pods wait until it has a volume")),
    ],
)
def test_claim_must_have_a_volume_that_the_pods_can_share(
    fake_api: FakeApi, fake_server: Client, phase: str, mode: str, pod_count: int, expected: tuple[str, str]
) -> None:
    """A claim needs a volume, and a mode in which all pods can mount it from their nodes."""
    put_claim(fake_api, phase, mode)
    check = check_reference(fake_server, CLAIM, "x", pod_count)
    assert (check.verdict, check.what) == expected


@pytest.mark.parametrize(("mode", "verdict"), [("WaitForFirstConsumer", "ok"), ("Immediate", "warning")])
def test_claim_may_wait_for_its_first_pod(fake_api: FakeApi, fake_server: Client, mode: str, verdict: str) -> None:
    """A claim without a volume passes if its class creates the volume for the first pod."""
    storage_class = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}}
    fake_api.put(storage_class | {"volumeBindingMode": mode})
    put_claim(fake_api, "Pending", "ReadWriteMany", storageClassName="fast")
    assert check_reference(fake_server, CLAIM, "x", 2).verdict == verdict
