"""Fixtures that many tests share: a separate runs folder, fake servers, and profiles written by the test."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import settings

from tests.doubles.fake_api import FakeApi
from tests.doubles.installed_packages import InstalledPackages, run_installed_packages
from tests.doubles.pod_sessions import PodSessions, SessionHandler
from tests.inputs.user_manifests import KINDS, MANIFESTS, Launched, read_manifest
from tests.processes.receiver import Receiver, run_receiver
from tests.support.caller import forget_caller
from tests.support.longest_first import sort_tests
from tests.tools.skips import refuse_skip
from torchyard.cluster.logs.log_follower import LOG_READERS
from torchyard.kube import absence
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Cluster, Profile
from torchyard.model.run import Run

if TYPE_CHECKING:
    from tests.doubles.fake_prefect import FakePrefect

forget_caller()

# On a busy machine an example may take long; that is not a failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

RUN_ID = "0190c7f0-0000-7000-8000-0000a1b2c3d4"
Write = Callable[..., Path]
Planned = Callable[..., ManifestPlan]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_tests(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path) -> Iterator[None]:
    """Give each test its own runs folder, and hide the user's profiles and pool; restore the environment after it."""
    original_env = dict(os.environ)
    os.environ["TORCHYARD_RUNS"] = str(tmp_path / "runs")
    os.environ.pop("TORCHYARD_PROFILES", None)
    os.environ.pop("TORCHYARD_POOL", None)
    yield
    os.environ.clear()
    os.environ.update(original_env)


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect API for the whole session; without heartbeats a flow ends one second earlier."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing import utilities

    from tests.processes.prefect_servers import copy_empty_database

    folder = tmp_path_factory.mktemp("prefect")
    copy_empty_database(folder / "prefect-test.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilities, "mkdtemp", lambda: str(folder))  # where the harness has its database
        with (
            utilities.prefect_test_harness(server_startup_timeout=120),
            temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        ):
            yield


@pytest.fixture
def fake_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A fake API server, which KUBECONFIG names during the test. An absence is confirmed at once."""
    monkeypatch.setattr(absence, "CONFIRMATION_DELAY_S", 0.01)
    server = FakeApi(tmp_path)
    os.environ["KUBECONFIG"] = str(server.kubeconfig)
    get_cluster_client.cache_clear()
    yield server
    for reader in LOG_READERS.list_all():  # logs that a test has left open would be requested for ever
        reader.stop()
    server.close()
    get_cluster_client.cache_clear()


@pytest.fixture
def pod_sessions(tmp_path: Path) -> Iterator[PodSessions]:
    """A fake API server with exec and portforward, which KUBECONFIG names during the test."""
    server = PodSessions(tmp_path, SessionHandler)
    os.environ["KUBECONFIG"] = str(server.kubeconfig)
    get_cluster_client.cache_clear()
    yield server
    server.close()
    get_cluster_client.cache_clear()


@pytest.fixture
def fake_server(fake_api: FakeApi) -> Client:
    """Our client of the fake API server."""
    return get_cluster_client(Cluster())


@pytest.fixture
def fake_prefect() -> Iterator["FakePrefect"]:
    """A fake Prefect server, which this process uses."""
    from tests.doubles.fake_prefect import run_fake_prefect  # Prefect takes 1.5 s to import

    with run_fake_prefect() as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks on the loopback interface."""
    with run_receiver() as server:
        yield server


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstalledPackages]:
    """Installs packages with entry points for one test."""
    yield from run_installed_packages(tmp_path / "site", monkeypatch)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a profile of a program that prints, with the given keys changed; return its path.

    `code` is the text of the program, `code_folder` the profile's key `code`.
    """

    def write_profile(name: str = "sample", code: str = "print('hello')", code_folder: Any = None, **keys: Any) -> Path:
        (tmp_path / f"{name}.py").write_text(code)
        document = {"about": "a test", "launcher": "baremetal", "program": f"{name}.py"} | keys
        if code_folder is not None:
            document["code"] = code_folder
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write_profile


@pytest.fixture
def planned(write: Write, tmp_path: Path) -> Planned:
    """Plan a job in pods from the given keys of its profile; the default launcher is Volcano."""

    def plan_keys(attempt: int = 1, name: str = "sample", **keys: Any) -> ManifestPlan:
        path = write(name, **{"launcher": "volcano", "image": "train:v1"} | keys)
        return manifest_plan_of(load(path), tmp_path, attempt)

    return plan_keys


@pytest.fixture
def launched(planned: Planned, tmp_path: Path) -> Launched:
    """Plan a manifest of these documents, or that of a guide's row, whose name is the only argument."""

    def launch(*documents: Any, **keys: Any) -> ManifestPlan:
        if isinstance(documents[0], str):
            path = MANIFESTS / f"{documents[0]}.yaml"
            documents = tuple(read_manifest(documents[0]))
        else:
            path = tmp_path / "job.yaml"
            path.write_text(yaml.safe_dump_all(documents))
        launchers = [KINDS[document["kind"]] for document in documents if document["kind"] in KINDS]
        launcher = launchers[0] if launchers else "volcano"
        return planned(**{"launcher": launcher, "image": None, "program": None, "manifest": str(path)} | keys)

    return launch


def plan_of(profile: Profile, folder: Path, attempt: int = 1) -> Plan:
    """The plan of a profile for the run with RUN_ID."""
    return registry.make_plan(profile, Run(id=RUN_ID, attempt=attempt, folder=str(folder)))


def command_plan_of(profile: Profile, folder: Path, attempt: int = 1) -> CommandPlan:
    """The plan of a profile whose launcher starts processes on machines."""
    plan = plan_of(profile, folder, attempt)
    assert isinstance(plan, CommandPlan)
    return plan


def manifest_plan_of(profile: Profile, folder: Path, attempt: int = 1) -> ManifestPlan:
    """The plan of a profile whose launcher creates Kubernetes objects."""
    plan = plan_of(profile, folder, attempt)
    assert isinstance(plan, ManifestPlan)
    return plan


def load(path: Path, **overrides: Any) -> Profile:
    return load_profile(str(path), overrides)
