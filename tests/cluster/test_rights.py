"""Least privilege: runs of an account that has only the role in deploy/kubernetes/rbac.yaml, or less."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from tests.cluster.complete_runs import run_to_completion
from tests.cluster.jobs import Jobs, until
from tests.cluster.provide import ProvidedObjects, build_local_overrides
from tests.cluster.small import NEEDS_MCAD, list_pod_profiles
from torchyard.cluster import create, orphans
from torchyard.cluster.checks.cluster import check_cluster
from torchyard.cluster.checks.permissions import is_allowed
from torchyard.cluster.listing import list_kinds, list_labelled_objects
from torchyard.common.project_root import ROOT
from torchyard.kube import client, kubeconfig
from torchyard.kube.client import Client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Permission
from torchyard.model.run import Run
from torchyard.pods import lease_record

GROUP = "rbac.authorization.k8s.io"
NAME = "least"
ONE_PER_SYSTEM = (
    "yolov5-volcano-etcd",
    "yolov5-pytorchjob-etcd",
    "fms-vela",
    "yolov5-jobset",
    "yolov5-job",
    *NEEDS_MCAD,
)
COMPLETE_RUNS = (
    "yolov5-volcano-etcd",
    "yolov5-pytorchjob-etcd",
    "yolov5-volcano",
    "mnist-2x4",
    "fms-vela",
    "yolov5-jobset",
    "yolov5-job",
)
FindFailures = Callable[[ManifestPlan], list[str]]
Rights = frozenset[tuple[str, str]]  # resource, as preflight spells it, and verb


def read_role(name: str) -> Rights:
    """The rights that a role of deploy/kubernetes/rbac.yaml grants."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rbac.yaml").read_text())
    (rules,) = (document["rules"] for document in documents if document["metadata"]["name"] == name)
    rights: set[tuple[str, str]] = set()
    for rule in rules:
        for group, resource, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            rights.add((f"{resource}.{group}" if group else resource, verb))
    return frozenset(rights)


ROLE = read_role("torchyard")
OPTIONAL_RIGHTS = Rights({("pods", "deletecollection")})  # the garbage collector deletes the same pods, one by one


@cache
def plan_profile(profile: str, namespace: str = "runai-any") -> ManifestPlan:
    """The plan of a profile in a namespace; MCAD's AppWrappers keep the API group that the profile names."""
    local_overrides = {
        key: value for key, value in build_local_overrides(profile, namespace).items() if key != "options.api"
    }
    loaded_profile = load_profile(profile, local_overrides | {"cluster.context": NAME})
    plan = registry.make_plan(loaded_profile, Run(id="0" * 8, attempt=1, folder="/runs"))
    assert isinstance(plan, ManifestPlan)
    return plan


@cache
def list_required_rights(profile: str) -> Rights:
    """The rights that a profile's plan requires."""
    rights: set[tuple[str, str]] = set()
    for requirement in plan_profile(profile).requires:
        if isinstance(requirement, Permission):
            rights.update((requirement.resource, verb) for verb in requirement.verbs)
    return frozenset(rights)


REQUIRED_RIGHTS = [
    pytest.param(name, (resource, verb), id=f"{name}-{verb} {resource}")
    for name in ONE_PER_SYSTEM
    for resource, verb in sorted(list_required_rights(name))
]


class Account:
    """A ServiceAccount with one Role in one namespace: context `least`.

    `grant` replaces the Role's rules; `granted` are the rights that the API server applies at the moment.
    """

    def __init__(self, admin_client: Client, folder: Path) -> None:
        self.admin_client = admin_client
        self.granted = Rights()
        self.name = f"system:serviceaccount:{admin_client.namespace}:{NAME}"
        admin_client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}})
        self.role = self._create("Role", rules=[])
        role_ref = {"apiGroup": GROUP, "kind": "Role", "name": NAME}
        self.subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": admin_client.namespace}]
        self._create("RoleBinding", roleRef=role_ref, subjects=self.subjects)
        self.kubeconfig = folder / "least.yaml"
        self.kubeconfig.write_text(yaml.safe_dump(self._build_kubeconfig()))

    def _create(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.admin_client.create(
            {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": NAME}} | fields
        )

    def _build_kubeconfig(self) -> dict[str, Any]:
        token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = self.admin_client.path("v1", "ServiceAccount", NAME)
        token = self.admin_client.request("POST", f"{path}/token", body=token_request)["status"]["token"]
        contexts, active = kube_config.list_kube_config_contexts(kubeconfig.get_kubeconfig_paths())
        current_name = kubeconfig.read_current_context() or active["name"]
        (current,) = (entry for entry in contexts if entry["name"] == current_name)
        context = {"cluster": current["context"]["cluster"], "user": NAME}
        return {"users": [{"name": NAME, "user": {"token": token}}], "contexts": [{"name": NAME, "context": context}]}

    def grant(self, rights: Rights) -> None:
        """Grant only these rights, and wait until the API server applies them."""
        rules = []
        for resource, verb in rights:
            plural, _, group = resource.partition(".")
            rules.append({"apiGroups": [group], "resources": [plural], "verbs": [verb]})
        self.admin_client.patch(self.role, {"rules": rules})
        account_client = client.get_cluster_client(Cluster(context=NAME, namespace=self.admin_client.namespace))
        for right in rights ^ self.granted:
            until(partial(self._is_applied, account_client, right, right in rights))
        self.granted = rights

    def _is_applied(self, account_client: Client, right: tuple[str, str], granted: bool) -> bool:
        resource, verb = right
        return is_allowed(account_client, verb, resource) == granted


@pytest.fixture(scope="module")
def account(admin_client: Client, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """The account, with a kubeconfig context for the whole module: `cluster.context: least`."""
    with pytest.MonkeyPatch.context() as patch:
        account = Account(Client(Cluster(namespace=namespace)), tmp_path_factory.mktemp("account"))
        patch.setenv("KUBECONFIG", f"{os.environ['KUBECONFIG']}{os.pathsep}{account.kubeconfig}")
        client.get_cluster_client.cache_clear()
        yield account
    client.get_cluster_client.cache_clear()


@pytest.fixture(scope="module")
def baseline(account: Account) -> FindFailures:
    """The failed checks of a plan with the whole role, because the test cluster is not the profile's own."""
    failures_by_job: dict[str, list[str]] = {}

    def find_failures(plan: ManifestPlan) -> list[str]:
        if plan.job not in failures_by_job:
            account.grant(ROLE)
            failures_by_job[plan.job] = list_failures(check_cluster(plan))
        return failures_by_job[plan.job]

    return find_failures


@pytest.fixture(scope="module")
def provided(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProvidedObjects]:
    """The objects that the profiles refer to, for the whole module."""
    provided = ProvidedObjects(namespace, tmp_path_factory.mktemp("claims"))
    yield provided
    provided.clear()


def list_failures(checks: Iterable[Finding]) -> list[str]:
    """The failed checks, as `name: detail`."""
    return [f"{check.where}: {check.what}" for check in checks if check.verdict == "failed"]


# --- the role


def test_role_grants_exactly_what_profiles_need() -> None:
    """The role grants every right that a shipped profile needs, and no other but the optional ones."""
    required: set[tuple[str, str]] = set()
    for name in (*list_pod_profiles(), *NEEDS_MCAD):
        required |= list_required_rights(name)
    assert required | OPTIONAL_RIGHTS == ROLE


@pytest.mark.slow
@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("profile", COMPLETE_RUNS)
def test_role_is_sufficient_for_a_complete_run(
    account: Account, fake_overrides: dict[str, Any], provided: ProvidedObjects, profile: str
) -> None:
    """With only the role a run is Completed without leftovers; checks that need more rights are warnings."""
    account.grant(ROLE)
    namespace = account.admin_client.namespace
    plan = plan_profile(profile, namespace)
    provided.provide(plan)
    ends = {"pod.annotations": {"torchyard.test/end-after": "1"}, "attempts": 1, "deadlines.start": "30s"}
    report = run_to_completion(
        profile, build_local_overrides(profile, namespace) | fake_overrides | ends | {"cluster.context": NAME}
    )
    kinds = list_kinds(account.admin_client)
    assert list_labelled_objects(account.admin_client, kinds, {"torchyard/run": report.run}).objects == []


@pytest.mark.slow
@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("profile", ["yolov5-volcano", "yolov5-jobset"])
def test_job_runs_without_the_right_to_create_config_maps(
    account: Account, fake_overrides: dict[str, Any], provided: ProvidedObjects, profile: str
) -> None:
    """Without the right on ConfigMaps preflight only warns, and the job runs without torchyard's own files."""
    account.grant(Rights((resource, verb) for resource, verb in ROLE if resource != "configmaps"))
    namespace = account.admin_client.namespace
    provided.provide(plan_profile(profile, namespace))
    ends = {"pod.annotations": {"torchyard.test/end-after": "1"}, "attempts": 1, "deadlines.start": "30s"}
    report = run_to_completion(
        profile, build_local_overrides(profile, namespace) | fake_overrides | ends | {"cluster.context": NAME}
    )
    assert report.end == "succeeded"


@pytest.mark.parametrize(("profile", "right"), REQUIRED_RIGHTS)
def test_missing_verb_is_reported(
    account: Account, baseline: FindFailures, profile: str, right: tuple[str, str]
) -> None:
    """If one of the rights that a profile needs is missing, preflight fails and names only that right."""
    plan = plan_profile(profile, account.admin_client.namespace)
    expected = baseline(plan)
    account.grant(ROLE - {right})
    resource, verb = right
    new = [failure for failure in list_failures(check_cluster(plan)) if failure not in expected]
    assert new == [f"rights: {account.name} may not {verb} {resource} in namespace {account.admin_client.namespace}"]


@pytest.fixture
def sweep_role_everywhere(account: Account) -> Iterator[None]:
    """The account has role torchyard-sweep in every namespace."""
    version = f"{GROUP}/v1"
    kind = "ClusterRoleBinding"
    name = f"sweep-{account.admin_client.namespace}"
    path = account.admin_client.path(version, kind, namespace=None)
    role_ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "torchyard-sweep"}
    binding = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    account.admin_client.request("POST", path, body=binding | {"roleRef": role_ref, "subjects": account.subjects})
    yield
    account.admin_client.request("DELETE", f"{path}/{name}")


def test_sweeper_that_may_not_list_leases_removes_nothing(account: Account, jobs: Jobs) -> None:
    """A sweep with only the role torchyard removes nothing and names the missing role: any run may still be running."""
    account.grant(ROLE)
    plan = jobs.start()
    scope = orphans.SweepScope(lambda _: None, lambda _: None, without_lease=True)
    with pytest.raises(ClusterError, match=r"list leases.*torchyard-sweep"):
        list(orphans.find_orphans(NAME, scope))
    assert jobs.client.get(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)


@pytest.mark.usefixtures("sweep_role_everywhere")
def test_sweeper_needs_no_more_than_two_roles(account: Account, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torchyard-sweep everywhere and torchyard where runs are, a dead run's leftovers are found and removed."""
    monkeypatch.setattr(orphans, "LEASE_OBSERVATION_S", 1.0)
    account.grant(ROLE)
    plan = jobs.plan()
    plan.lease["spec"]["leaseDurationSeconds"] = 1
    create.create_job(plan)
    scope = orphans.SweepScope(lambda _: None)
    orphans_of_run = until(lambda: [orphan for orphan in orphans.find_orphans(NAME, scope) if orphan.run == plan.run])
    assert orphans.remove_orphan(orphans_of_run[0]) == []
    assert jobs.list_labelled(plan, "v1", "Pod") == []
