"""Least privilege: runs of an account that has only the role in deploy/kubernetes/rbac.yaml, or less."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from tests.cluster.carried import completed
from tests.cluster.jobs import Jobs, until
from tests.cluster.provide import Home, at_home
from tests.cluster.small import ELSEWHERE, in_pods
from torchyard.cluster import create, orphans
from torchyard.cluster.checks.cluster import check_cluster
from torchyard.cluster.checks.permissions import is_allowed
from torchyard.cluster.delete import _list_visible_objects, list_kinds
from torchyard.common.project_root import ROOT
from torchyard.kube import client, kubeconfig
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Check, Permission
from torchyard.model.run import Run
from torchyard.pods import lease_record

GROUP, NAME = "rbac.authorization.k8s.io", "least"
ONE_A_SYSTEM = ("yolov5-volcano-etcd", "yolov5-pytorchjob-etcd", "fms-vela", "yolov5-jobset", *ELSEWHERE)
CARRIED = ("yolov5-volcano-etcd", "yolov5-pytorchjob-etcd", "yolov5-volcano", "mnist-2x4", "fms-vela", "yolov5-jobset")
Before = Callable[[ManifestPlan], list[str]]
Rights = frozenset[tuple[str, str]]  # resource, as preflight spells it, and verb


def role(name: str) -> Rights:
    """The rights that a role of deploy/kubernetes/rbac.yaml grants."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    (rules,) = (each["rules"] for each in documents if each["metadata"]["name"] == name)
    return frozenset(
        (f"{resource}.{group}" if group else resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


ROLE = role("torchyard")


@cache
def planned(profile: str, namespace: str = "runai-any") -> ManifestPlan:
    """The plan of a profile in a namespace; MCAD's AppWrappers keep the API group that the profile names."""
    home = {key: value for key, value in at_home(profile, namespace).items() if key != "options.api"}
    chosen = load_profile(profile, {**home, "cluster.context": NAME})
    plan = registry.load_launcher(chosen.launcher).plan(chosen, Run(id="0" * 8, attempt=1, folder="/runs"))
    assert isinstance(plan, ManifestPlan)
    return plan


@cache
def needed(profile: str) -> Rights:
    needs = (need for need in planned(profile).requires if isinstance(need, Permission))
    return frozenset((need.resource, verb) for need in needs for verb in need.verbs)


EACH = [
    pytest.param(name, (resource, verb), id=f"{name}-{verb} {resource}")
    for name in ONE_A_SYSTEM
    for resource, verb in sorted(needed(name))
]


class Account:
    """A ServiceAccount with one Role in one namespace: context `least`."""

    def __init__(self, admin: Client, place: Path) -> None:
        self.admin, self.granted = admin, Rights()
        self.name = f"system:serviceaccount:{admin.namespace}:{NAME}"
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}})
        self.role = self._make("Role", rules=[])
        ref = {"apiGroup": GROUP, "kind": "Role", "name": NAME}
        self.subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": admin.namespace}]
        self._make("RoleBinding", roleRef=ref, subjects=self.subjects)
        self.kubeconfig = place / "least.yaml"
        self.kubeconfig.write_text(yaml.safe_dump(self._document()))

    def _make(self, kind: str, **more: Any) -> dict[str, Any]:
        return self.admin.create({"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": NAME}, **more})

    def _document(self) -> dict[str, Any]:
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = self.admin.path("v1", "ServiceAccount", NAME)
        token = self.admin.request("POST", f"{path}/token", body=asked)["status"]["token"]
        known, active = kube_config.list_kube_config_contexts(kubeconfig.get_kubeconfig_paths())
        here = next(each for each in known if each["name"] == (kubeconfig.read_current_context() or active["name"]))
        context = {"cluster": here["context"]["cluster"], "user": NAME}
        return {"users": [{"name": NAME, "user": {"token": token}}], "contexts": [{"name": NAME, "context": context}]}

    def grant(self, rights: Rights) -> None:
        """Grant only these rights, and wait until the API server applies them."""
        rules = [
            {"apiGroups": [each.partition(".")[2]], "resources": [each.partition(".")[0]], "verbs": [verb]}
            for each, verb in rights
        ]
        self.admin.patch(self.role, {"rules": rules})
        mine = client.get_cluster_client(Cluster(context=NAME, namespace=self.admin.namespace))
        for right in rights ^ self.granted:
            until(partial(self._is_known, mine, right, right in rights))
        self.granted = rights

    def _is_known(self, mine: Client, right: tuple[str, str], granted: bool) -> bool:
        resource, verb = right
        return is_allowed(mine, verb, resource) == granted


@pytest.fixture(scope="module")
def account(plane: Client, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """The account, with a kubeconfig context for the whole module: `cluster.context: least`."""
    with pytest.MonkeyPatch.context() as patch:
        made = Account(Client(Cluster(namespace=namespace)), tmp_path_factory.mktemp("account"))
        patch.setenv("KUBECONFIG", f"{os.environ['KUBECONFIG']}{os.pathsep}{made.kubeconfig}")
        client.get_cluster_client.cache_clear()
        yield made
    client.get_cluster_client.cache_clear()


@pytest.fixture(scope="module")
def before(account: Account) -> Before:
    """The failed checks of a plan with the whole role, because the test cluster is not the profile's own."""
    known: dict[str, list[str]] = {}

    def find(plan: ManifestPlan) -> list[str]:
        if plan.job not in known:
            account.grant(ROLE)
            known[plan.job] = failures(check_cluster(plan))
        return known[plan.job]

    return find


@pytest.fixture(scope="module")
def home(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(namespace, tmp_path_factory.mktemp("claims"))
    yield made
    made.clear()


def failures(found: Iterable[Check]) -> list[str]:
    return [f"{each.name}: {each.detail}" for each in found if each.verdict == "failed"]


# --- the role


def test_role_is_what_profiles_need() -> None:
    """The role grants every right that a shipped profile needs, and no other."""
    assert frozenset().union(*(needed(name) for name in (*in_pods(), *ELSEWHERE))) == ROLE


@pytest.mark.slow
@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("profile", CARRIED)
def test_role_carries_a_whole_run(account: Account, fake: dict[str, Any], home: Home, profile: str) -> None:
    """With only the role a run is Completed and leaves nothing; checks that it may not make are warnings."""
    account.grant(ROLE)
    namespace = account.admin.namespace
    plan = planned(profile, namespace)
    home.provide(plan)
    ends = {"pod.annotations": {"torchyard.test/end-after": "1"}, "attempts": 1, "deadlines.start": "30s"}
    report = completed(profile, {**at_home(profile, namespace), **fake, **ends, "cluster.context": NAME})
    assert _list_visible_objects(account.admin, list_kinds(account.admin), {"torchyard/run": report.run}) == []


@pytest.mark.parametrize(("profile", "right"), EACH)
def test_missing_verb_is_named(account: Account, before: Before, profile: str, right: tuple[str, str]) -> None:
    """If one of the rights that a profile needs is missing, preflight fails and names only that right."""
    plan = planned(profile, account.admin.namespace)
    known = before(plan)
    account.grant(ROLE - {right})
    resource, verb = right
    new = [each for each in failures(check_cluster(plan)) if each not in known]
    assert new == [f"rights: {account.name} may not {verb} {resource} in namespace {account.admin.namespace}"]


@pytest.fixture
def everywhere(account: Account) -> Iterator[None]:
    """The account has role torchyard-sweep in every namespace."""
    version, kind, name = f"{GROUP}/v1", "ClusterRoleBinding", f"sweep-{account.admin.namespace}"
    path = account.admin.path(version, kind, namespace=None)
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "torchyard-sweep"}
    thing = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    account.admin.request("POST", path, body={**thing, "roleRef": ref, "subjects": account.subjects})
    yield
    account.admin.request("DELETE", f"{path}/{name}")


def test_sweeper_that_may_not_list_leases_takes_nothing(account: Account, jobs: Jobs) -> None:
    """A sweep with only the role torchyard removes nothing and names the missing role: any run may still be alive."""
    account.grant(ROLE)
    plan = jobs.start()
    terms = orphans.SweepScope(lambda _: "", lambda _: "", without_lease=True)
    with pytest.raises(ClusterError, match=r"list leases.*torchyard-sweep"):
        list(orphans.find_orphans(NAME, terms))
    assert jobs.server.get(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)


@pytest.mark.usefixtures("everywhere")
def test_sweeper_needs_no_more_than_two_roles(account: Account, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torchyard-sweep everywhere and torchyard where runs are, a dead run's leftovers are found and removed."""
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 1.0)
    account.grant(ROLE)
    plan = jobs.plan()
    plan.lease["spec"]["leaseDurationSeconds"] = 1
    create.create_job(plan)
    terms = orphans.SweepScope(lambda _: "")
    mine = until(lambda: [each for each in orphans.find_orphans(NAME, terms) if each.run == plan.run])
    assert orphans.remove_orphan(mine[0]) == []
    assert jobs.labelled(plan, "v1", "Pod") == []
