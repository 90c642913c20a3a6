"""The behaviour of an API server that this project relies on, as tests.

They run against a real server (tests/cluster/test_api_contract.py) and the fake one (tests/unit/kube/test_client.py),
so that a test on the fake server is evidence for the real one.
"""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from torchyard.cluster.checks.permissions import is_allowed, is_granted, read_rules, read_user_name
from torchyard.cluster.listing import list_kinds
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, NotFoundError

LEASE = ("coordination.k8s.io/v1", "Lease")
LABEL = "torchyard.test/contract"


def build_lease(name: str, **metadata: Any) -> dict[str, Any]:
    spec = {"holderIdentity": "here", "leaseDurationSeconds": 60, "renewTime": "2026-11-22T08:00:00.000001Z"}
    return {"apiVersion": LEASE[0], "kind": LEASE[1], "metadata": {"name": name} | metadata, "spec": spec}


def build_config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name} | metadata}


def get_refusal_status(send: Callable[[], object]) -> int:
    """The HTTP status of the ClusterError that `send` must raise."""
    with pytest.raises(ClusterError) as caught:
        send()
    return caught.value.status


class ApiContract:
    """The contract's tests; a subclass provides the fixture `client`."""

    @pytest.fixture
    def name(self) -> str:
        return f"contract-{uuid.uuid4().hex[:8]}"

    def test_created_object_has_an_identity(self, client: Client, name: str) -> None:
        """A created object gets a uid, a version, a namespace and the time of its creation."""
        metadata = client.create(build_lease(name))["metadata"]
        assert metadata["namespace"] == client.namespace
        assert all(metadata[key] for key in ("uid", "resourceVersion", "creationTimestamp"))

    def test_name_is_taken_once(self, client: Client, name: str) -> None:
        """A second object with the same name is refused with 409, also in a dry run."""
        client.create(build_lease(name))
        assert get_refusal_status(lambda: client.create(build_lease(name))) == 409
        assert get_refusal_status(lambda: client.create(build_lease(name), dry_run=True)) == 409

    def test_dry_run_makes_nothing(self, client: Client, name: str) -> None:
        """A dry run returns the object as a real creation does, and creates nothing."""
        assert client.create(build_lease(name), dry_run=True)["metadata"]["name"] == name
        assert client.get(*LEASE, name) is None

    def test_absent_object_is_404(self, client: Client, name: str) -> None:
        """Reading an absent object returns None, deleting it returns False, and changing it is refused with 404."""
        deleted = client.create(build_lease(name))
        assert client.delete(deleted, force=True) is True  # otherwise it waits for the garbage collector
        assert client.get(*LEASE, name) is None
        assert client.delete(deleted) is False
        change = {"spec": {"holderIdentity": "me"}}
        with pytest.raises(NotFoundError):
            client.patch(build_lease(name), change)

    def test_absent_objects_are_read_by_name(self, client: Client, name: str) -> None:
        """Of several names, the objects that exist are returned."""
        client.create(build_config_map(name))
        assert client.get_all("v1", "ConfigMap", [name, f"{name}-2"]).keys() == {name}

    @pytest.mark.parametrize("path", ["/apis/nobody.example/v1", "/apis/coordination.k8s.io/v1", "/api/v1"])
    def test_unserved_kind_is_not_found(self, client: Client, path: str) -> None:
        """A kind that discovery lacks is not found, though the response need not be a Status."""
        with pytest.raises(NotFoundError, match="does not serve nothings"):
            client.request("GET", f"{path}/namespaces/{client.namespace}/nothings")

    def test_server_is_ready(self, client: Client) -> None:
        """The server reports that it is ready; otherwise `await_confirmation` raises an error."""
        client.await_confirmation()

    def test_merge_patch_removes_null_keys(self, client: Client, name: str) -> None:
        """A merge patch changes the keys it names; null removes a key, and a list replaces the previous one."""
        client.create(build_config_map(name, labels={"a": "1", "b": "2"}, finalizers=["torchyard.test/one"]))
        updated = client.patch(
            build_config_map(name), {"metadata": {"labels": {"a": None, "c": "3"}, "finalizers": []}}
        )
        assert updated["metadata"]["labels"] == {"b": "2", "c": "3"}
        assert not updated["metadata"].get("finalizers")

    def test_json_patch_is_all_or_nothing(self, client: Client, name: str) -> None:
        """A JSON patch whose test fails is refused with 422, and none of its changes is made."""
        client.create(build_lease(name))
        failing_test = {"op": "test", "path": "/spec/holderIdentity", "value": "there"}
        change = {"op": "add", "path": "/spec/leaseDurationSeconds", "value": 90}
        assert get_refusal_status(lambda: client.patch(build_lease(name), [change, failing_test])) == 422
        obj = client.get(*LEASE, name)
        assert obj
        assert obj["spec"]["leaseDurationSeconds"] == 60

    def test_json_patch_reaches_an_annotation(self, client: Client, name: str) -> None:
        """A JSON patch names an annotation with `~1` for the slash; the map of annotations must exist."""
        step = {"op": "add", "path": "/metadata/annotations/torchyard~1x", "value": "y"}
        client.create(build_lease(name))
        assert get_refusal_status(lambda: client.patch(build_lease(name), [step])) == 422
        client.patch(build_lease(name), {"metadata": {"annotations": {"other": "z"}}})
        updated = client.patch(build_lease(name), [step])
        assert updated["metadata"]["annotations"] == {"other": "z", "torchyard/x": "y"}

    def test_label_selector_filters_a_list(self, client: Client, name: str) -> None:
        """A selector matches by a label's presence, by its value, by one of several, or by values it must not have."""
        client.create(build_config_map(f"{name}-1", labels={LABEL: name, "n": "1"}))
        client.create(build_config_map(f"{name}-2", labels={LABEL: name}))

        def list_names(selector: str) -> list[str]:
            config_maps = client.list("v1", "ConfigMap", {"labelSelector": selector})
            return sorted(config_map["metadata"]["name"] for config_map in config_maps)

        assert list_names(f"{LABEL}={name}") == [f"{name}-1", f"{name}-2"]
        assert list_names(f"{LABEL}={name},n") == [f"{name}-1"]
        assert list_names(f"{LABEL}={name},n!=1") == [f"{name}-2"]
        assert list_names(f"{LABEL}={name},!n") == [f"{name}-2"]
        assert list_names(f"{LABEL}={name},n in (0,1)") == [f"{name}-1"]
        assert list_names(f"n notin (0,1),{LABEL}={name}") == [f"{name}-2"]

    def test_collection_is_deleted_by_a_selector(self, client: Client, name: str) -> None:
        """One request deletes the objects that a selector matches, and no others."""
        client.create(build_config_map(f"{name}-1", labels={LABEL: name, "n": "1"}))
        client.create(build_config_map(f"{name}-2", labels={LABEL: name}))
        client.delete_collection("v1", "ConfigMap", {"labelSelector": f"{LABEL}={name},!n"}, lambda: None)
        remaining = client.list("v1", "ConfigMap", {"labelSelector": f"{LABEL}={name}"})
        assert [config_map["metadata"]["name"] for config_map in remaining] == [f"{name}-1"]

    def test_aggregated_discovery_names_kinds(self, client: Client) -> None:
        """All kinds come from one response for each root, in the preferred version of each group."""
        kinds = list_kinds(client)
        assert {LEASE, ("v1", "ConfigMap")} <= set(kinds)
        for root in ("/api", "/apis"):
            media_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            assert client.get_quick(root, accept=media_type)["kind"] == "APIGroupDiscoveryList"

    def test_field_selector_filters_a_list(self, client: Client, name: str) -> None:
        """A field selector chooses the object of a name, also beside a label selector."""
        for number in range(2):
            client.create(build_config_map(f"{name}-{number}", labels={LABEL: name}))
        params = {"labelSelector": f"{LABEL}={name}", "fieldSelector": f"metadata.name={name}-1"}
        assert [config_map["metadata"]["name"] for config_map in client.list("v1", "ConfigMap", params)] == [
            f"{name}-1"
        ]

    def test_pages_are_followed_by_a_token(self, client: Client, name: str) -> None:
        """A list with a limit is partial, and its token requests the next page."""
        for number in range(3):
            client.create(build_config_map(f"{name}-{number}", labels={LABEL: name}))
        query = {"labelSelector": f"{LABEL}={name}", "limit": "2"}
        first = client.request("GET", client.path("v1", "ConfigMap"), query)
        token = first["metadata"]["continue"]
        rest = client.request("GET", client.path("v1", "ConfigMap"), query | {"continue": token})
        assert (len(first["items"]), len(rest["items"])) == (2, 1)
        assert not rest["metadata"].get("continue")

    def test_uid_guards_a_deletion(self, client: Client, name: str) -> None:
        """A deletion with a uid other than the object's is refused with 409, and the object stays."""
        uid = client.create(build_config_map(name))["metadata"]["uid"]
        path = client.path("v1", "ConfigMap", name)
        assert (
            get_refusal_status(
                lambda: client.request("DELETE", path, body={"preconditions": {"uid": str(uuid.uuid4())}})
            )
            == 409
        )
        assert client.get("v1", "ConfigMap", name)
        client.request("DELETE", path, body={"preconditions": {"uid": uid}})
        assert client.get("v1", "ConfigMap", name) is None

    def test_version_guards_a_deletion(self, client: Client, name: str) -> None:
        """A deletion with an old resourceVersion is refused with 409, and the object stays."""
        created = client.create(build_config_map(name))
        client.patch(created, {"metadata": {"labels": {"a": "b"}}})
        assert client.delete(created, is_unchanged=True) is False
        assert client.get("v1", "ConfigMap", name)

    def test_finalizer_holds_an_object(self, client: Client, name: str) -> None:
        """A deleted object with a finalizer is only marked, and stays until the finalizer is removed."""
        assert client.delete(client.create(build_config_map(name, finalizers=["torchyard.test/held"])))
        obj = client.get("v1", "ConfigMap", name)
        assert obj
        assert obj["metadata"]["deletionTimestamp"]
        client.patch(build_config_map(name), {"metadata": {"finalizers": []}})
        assert client.get("v1", "ConfigMap", name) is None

    def test_lease_holds_times(self, client: Client, name: str) -> None:
        """A Lease's renewTime must be a time and its duration positive: anything else is refused."""
        never = build_lease(name)
        zero = build_lease(name)
        never["spec"]["renewTime"] = "never"
        zero["spec"]["leaseDurationSeconds"] = 0
        assert (get_refusal_status(lambda: client.create(never)), get_refusal_status(lambda: client.create(zero))) == (
            400,
            422,
        )

    def test_discovery_names_kinds(self, client: Client) -> None:
        """Discovery lists the groups with their preferred version, and the verbs of each of their kinds."""
        groups = {group["name"]: group["preferredVersion"] for group in client.request("GET", "/apis")["groups"]}
        assert groups["coordination.k8s.io"]["groupVersion"] == LEASE[0]
        kinds = {resource["kind"]: resource for resource in client.request("GET", f"/apis/{LEASE[0]}")["resources"]}
        assert (kinds["Lease"]["name"], kinds["Lease"]["namespaced"]) == ("leases", True)
        assert {"list", "delete"} <= set(kinds["Lease"]["verbs"])

    def test_reviews_describe_this_user(self, client: Client) -> None:
        """The server reports the user's name, and that the user may do what these tests do."""
        assert read_user_name(client) not in ("", "this user")
        assert is_allowed(client, "create", "leases.coordination.k8s.io")
        assert is_allowed(client, "get", "pods/log")
        assert is_granted(read_rules(client), "create", "leases.coordination.k8s.io")

    def test_watch_delivers_changes_after_a_list(self, client: Client, name: str) -> None:
        """A watch from a list's version delivers each later change of the selected objects, in order."""
        query = {"labelSelector": f"{LABEL}={name}"}
        version = client.request("GET", client.path("v1", "ConfigMap"), query)["metadata"]["resourceVersion"]
        client.create(build_config_map(f"{name}-other"))
        client.create(build_config_map(name, labels={LABEL: name}))
        client.delete(client.patch(build_config_map(name), {"metadata": {"annotations": {"a": "b"}}}))
        params = query | {"watch": "1", "resourceVersion": version, "timeoutSeconds": "20"}
        event_types = []
        for line in client.stream_lines(client.path("v1", "ConfigMap"), params, 20):
            event_types.append(json.loads(line)["type"])
            if event_types[-1] == "DELETED":
                break
        # A foreground deletion may first modify the object, before it removes it.
        assert (event_types[:2], set(event_types[2:-1]) - {"MODIFIED"}, event_types[-1]) == (
            ["ADDED", "MODIFIED"],
            set(),
            "DELETED",
        )

    def test_item_of_a_built_in_kind_does_not_name_it(self, client: Client, name: str) -> None:
        """The items of a list lack their kind; our client adds it."""
        client.create(build_config_map(name, labels={LABEL: name}))
        query = {"labelSelector": f"{LABEL}={name}"}
        (raw,) = client.request("GET", client.path("v1", "ConfigMap"), query)["items"]
        (item,) = client.list("v1", "ConfigMap", query)
        assert "kind" not in raw
        assert (item["apiVersion"], item["kind"]) == ("v1", "ConfigMap")

    def test_list_of_metadata_lacks_the_rest(self, client: Client, name: str) -> None:
        """A list whose reader needs only the metadata has no more, and the kind of the objects; our client adds it."""
        client.create(build_config_map(name, labels={LABEL: name}) | {"data": {"a": "b"}})
        (item,) = client.list("v1", "ConfigMap", {"labelSelector": f"{LABEL}={name}"}, is_metadata_enough=True)
        assert sorted(item) == ["apiVersion", "kind", "metadata"]
        assert (item["apiVersion"], item["kind"], item["metadata"]["name"]) == ("v1", "ConfigMap", name)
