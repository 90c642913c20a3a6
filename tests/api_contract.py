"""What an API server does, as far as this project relies on it.

It runs against the real one (tests/cluster/test_api_contract.py) and the fake one
(tests/unit/kube/test_client.py), so that tests on the fake one mean something.
"""

import json
import uuid
from typing import Any

import pytest

from torchyard.cluster.checks.permissions import _read_user_name, is_allowed
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError

LEASE = ("coordination.k8s.io/v1", "Lease")
LABEL = "torchyard.test/contract"


def lease(name: str, **about: Any) -> dict[str, Any]:
    spec = {"holderIdentity": "here", "leaseDurationSeconds": 60, "renewTime": "2026-11-22T08:00:00.000001Z"}
    return {"apiVersion": LEASE[0], "kind": LEASE[1], "metadata": {"name": name, **about}, "spec": spec}


def config(name: str, **about: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **about}}


def refusal(ask: Any) -> int:
    """The status with which a request is refused."""
    with pytest.raises(ClusterError) as caught:
        ask()
    return caught.value.status


class ApiContract:
    """The tests; a subclass provides the fixture `server`."""

    @pytest.fixture
    def name(self) -> str:
        return f"contract-{uuid.uuid4().hex[:8]}"

    def test_created_object_has_an_identity(self, server: Client, name: str) -> None:
        """A created object gets a uid, a version, a namespace and the time of its creation."""
        made = server.create(lease(name))["metadata"]
        assert made["namespace"] == server.namespace
        assert all(made[key] for key in ("uid", "resourceVersion", "creationTimestamp"))

    def test_name_is_taken_once(self, server: Client, name: str) -> None:
        """A second object with the same name is refused with 409, also in a dry run."""
        server.create(lease(name))
        assert refusal(lambda: server.create(lease(name))) == 409
        assert refusal(lambda: server.create(lease(name), dry_run=True)) == 409

    def test_dry_run_makes_nothing(self, server: Client, name: str) -> None:
        """A dry run answers like a real creation and creates nothing."""
        assert server.create(lease(name), dry_run=True)["metadata"]["name"] == name
        assert server.get(*LEASE, name) is None

    def test_what_is_not_there_is_404(self, server: Client, name: str) -> None:
        """Reading an absent object returns None, deleting it returns False, and changing it is refused with 404."""
        assert server.get(*LEASE, name) is None
        assert server.delete(*LEASE, name) is False
        assert refusal(lambda: server.patch(lease(name), {"spec": {"holderIdentity": "me"}})) == 404

    def test_unknown_kind_is_404(self, server: Client) -> None:
        """A kind that the server does not know is refused with 404."""
        assert refusal(lambda: server.request("GET", server.path("nobody.example/v1", "Nothing"))) == 404

    def test_merge_patch_takes_null_away(self, server: Client, name: str) -> None:
        """A merge patch changes the keys it names; null removes a key, and a list replaces the previous one."""
        server.create(config(name, labels={"a": "1", "b": "2"}, finalizers=["torchyard.test/one"]))
        made = server.patch(config(name), {"metadata": {"labels": {"a": None, "c": "3"}, "finalizers": []}})
        assert made["metadata"]["labels"] == {"b": "2", "c": "3"}
        assert not made["metadata"].get("finalizers")

    def test_json_patch_is_all_or_nothing(self, server: Client, name: str) -> None:
        """A JSON patch whose test fails is refused with 422, and none of its changes is made."""
        server.create(lease(name))
        wrong = {"op": "test", "path": "/spec/holderIdentity", "value": "there"}
        change = {"op": "add", "path": "/spec/leaseDurationSeconds", "value": 90}
        assert refusal(lambda: server.patch(lease(name), [change, wrong])) == 422
        found = server.get(*LEASE, name)
        assert found
        assert found["spec"]["leaseDurationSeconds"] == 60

    def test_json_patch_reaches_an_annotation(self, server: Client, name: str) -> None:
        """A JSON patch names an annotation with `~1` for the slash; the map of annotations must exist."""
        step = {"op": "add", "path": "/metadata/annotations/torchyard~1x", "value": "y"}
        server.create(lease(name))
        assert refusal(lambda: server.patch(lease(name), [step])) == 422
        server.patch(lease(name), {"metadata": {"annotations": {"other": "z"}}})
        made = server.patch(lease(name), [step])
        assert made["metadata"]["annotations"] == {"other": "z", "torchyard/x": "y"}

    def test_labels_choose(self, server: Client, name: str) -> None:
        """A selector matches by a label's presence, by its value, or by a value that it must not have."""
        server.create(config(f"{name}-1", labels={LABEL: name, "n": "1"}))
        server.create(config(f"{name}-2", labels={LABEL: name}))

        def chosen(selector: str) -> list[str]:
            found = server.list("v1", "ConfigMap", {"labelSelector": selector})
            return sorted(each["metadata"]["name"] for each in found)

        assert chosen(f"{LABEL}={name}") == [f"{name}-1", f"{name}-2"]
        assert chosen(f"{LABEL}={name},n") == [f"{name}-1"]
        assert chosen(f"{LABEL}={name},n!=1") == [f"{name}-2"]

    def test_pages_are_followed_by_a_token(self, server: Client, name: str) -> None:
        """A list with a limit is partial and says so with a token that continues it."""
        for number in range(3):
            server.create(config(f"{name}-{number}", labels={LABEL: name}))
        query = {"labelSelector": f"{LABEL}={name}", "limit": "2"}
        first = server.request("GET", server.path("v1", "ConfigMap"), query)
        token = first["metadata"]["continue"]
        rest = server.request("GET", server.path("v1", "ConfigMap"), {**query, "continue": token})
        assert (len(first["items"]), len(rest["items"])) == (2, 1)
        assert not rest["metadata"].get("continue")

    def test_uid_guards_a_deletion(self, server: Client, name: str) -> None:
        """A deletion with a uid other than the object's is refused with 409, and the object stays."""
        uid = server.create(config(name))["metadata"]["uid"]
        path = server.path("v1", "ConfigMap", name)
        assert (
            refusal(lambda: server.request("DELETE", path, body={"preconditions": {"uid": str(uuid.uuid4())}})) == 409
        )
        assert server.get("v1", "ConfigMap", name)
        server.request("DELETE", path, body={"preconditions": {"uid": uid}})
        assert server.get("v1", "ConfigMap", name) is None

    def test_finalizer_holds_an_object(self, server: Client, name: str) -> None:
        """A deleted object with a finalizer is only marked, and stays until the finalizer is removed."""
        server.create(config(name, finalizers=["torchyard.test/held"]))
        assert server.delete("v1", "ConfigMap", name)
        held = server.get("v1", "ConfigMap", name)
        assert held
        assert held["metadata"]["deletionTimestamp"]
        server.patch(config(name), {"metadata": {"finalizers": []}})
        assert server.get("v1", "ConfigMap", name) is None

    def test_lease_holds_times(self, server: Client, name: str) -> None:
        """A Lease's renewTime must be a time and its duration positive: anything else is refused."""
        never, zero = lease(name), lease(name)
        never["spec"]["renewTime"] = "never"
        zero["spec"]["leaseDurationSeconds"] = 0
        assert (refusal(lambda: server.create(never)), refusal(lambda: server.create(zero))) == (400, 422)

    def test_discovery_names_kinds(self, server: Client) -> None:
        """Discovery lists the groups with their preferred version, and the verbs of each of their kinds."""
        groups = {each["name"]: each["preferredVersion"] for each in server.request("GET", "/apis")["groups"]}
        assert groups["coordination.k8s.io"]["groupVersion"] == LEASE[0]
        kinds = {each["kind"]: each for each in server.request("GET", f"/apis/{LEASE[0]}")["resources"]}
        assert (kinds["Lease"]["name"], kinds["Lease"]["namespaced"]) == ("leases", True)
        assert {"list", "delete"} <= set(kinds["Lease"]["verbs"])

    def test_reviews_are_about_this_user(self, server: Client) -> None:
        """The server says what this user is called, and that it may do what these tests do."""
        assert _read_user_name(server) not in ("", "this user")
        assert is_allowed(server, "create", "leases.coordination.k8s.io")
        assert is_allowed(server, "get", "pods/log")

    def test_watch_tells_what_came_after_a_list(self, server: Client, name: str) -> None:
        """A watch from a list's version delivers each later change of the selected objects, in order."""
        query = {"labelSelector": f"{LABEL}={name}"}
        version = server.request("GET", server.path("v1", "ConfigMap"), query)["metadata"]["resourceVersion"]
        server.create(config(f"{name}-other"))
        server.create(config(name, labels={LABEL: name}))
        server.patch(config(name), {"metadata": {"annotations": {"a": "b"}}})
        server.delete("v1", "ConfigMap", name)
        asked = {**query, "watch": "1", "resourceVersion": version, "timeoutSeconds": "20"}
        seen = []
        for line in server.stream_lines(server.path("v1", "ConfigMap"), asked, 20):
            seen.append(json.loads(line)["type"])
            if seen[-1] == "DELETED":
                break
        # A foreground deletion is a change of its own before the object disappears.
        assert (seen[:2], set(seen[2:-1]) - {"MODIFIED"}, seen[-1]) == (["ADDED", "MODIFIED"], set(), "DELETED")

    def test_item_of_a_built_in_kind_does_not_name_it(self, server: Client, name: str) -> None:
        """The items of a list lack their kind; our client adds it."""
        server.create(config(name, labels={LABEL: name}))
        query = {"labelSelector": f"{LABEL}={name}"}
        (raw,) = server.request("GET", server.path("v1", "ConfigMap"), query)["items"]
        (item,) = server.list("v1", "ConfigMap", query)
        assert "kind" not in raw
        assert (item["apiVersion"], item["kind"]) == ("v1", "ConfigMap")
