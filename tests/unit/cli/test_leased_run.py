"""A run that another machine started, as the verbs with `--cluster` find it."""

import signal
import tempfile
from pathlib import Path

import pytest

from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import RUN, build_lease, build_object
from torchyard.cli.leased_run import copy_logs, find_leased_nodes, find_leased_run
from torchyard.model.errors import AccessError, ClusterError, NoRunError, TorchyardError


def test_run_without_a_lease_is_an_error(fake_api: FakeApi) -> None:
    """A run that has ended has no Lease: the error names where its logs are then."""
    with pytest.raises(NoRunError) as error:
        find_leased_run(RUN, "")
    message = str(error.value)
    assert "`torchyard ps --cluster` lists the runs there; a run is not there any more once it has ended" in message
    assert "its logs are then on the machine that started it, and in its archive" in message


def test_run_of_two_namespaces_is_not_guessed(fake_api: FakeApi) -> None:
    """Two Leases of one name are two runs."""
    fake_api.put(build_lease(ago=10))
    fake_api.put(build_lease(ago=10), "team-b")
    with pytest.raises(TorchyardError, match="several namespaces have a run"):
        find_leased_run(RUN, "")


def test_nodes_are_those_of_the_last_attempt(fake_api: FakeApi) -> None:
    """The pods of an earlier attempt, and the one of the run's store, are not nodes."""
    fake_api.put(build_lease(ago=10))
    for attempt in ("1", "2"):
        pod = build_object("v1", "Pod", f"{RUN}-{attempt}-worker-{attempt}")
        pod["metadata"]["labels"]["torchyard/attempt"] = attempt
        fake_api.put(pod)
    store = build_object("v1", "Pod", f"{RUN}-2-etcd")
    store["metadata"]["labels"] |= {"torchyard/attempt": "2", "torchyard/role": "etcd"}
    fake_api.put(store)
    assert find_leased_nodes(RUN, "").names == ("worker-2",)


def test_run_without_pods_has_no_nodes(fake_api: FakeApi) -> None:
    """A run whose job waits has no nodes yet; pods that may not be listed are another error."""
    fake_api.put(build_lease(ago=10))
    with pytest.raises(AccessError, match="it has no pod now"):
        find_leased_nodes(RUN, "")
    fake_api.fail("GET", "/namespaces/default/pods", 403)
    with pytest.raises(ClusterError, match="403"):
        find_leased_nodes(RUN, "")


def test_copies_are_removed(fake_api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the copies is removed, also if SIGTERM ends the process, whose old handler is restored."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake_api.put(build_lease(ago=10))
    leased = find_leased_run(RUN, "")
    old_handler = signal.getsignal(signal.SIGTERM)

    def copy_until_sigterm() -> None:
        with copy_logs(leased, is_following=False):
            assert list(tmp_path.glob("torchyard-logs-*"))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        copy_until_sigterm()
    assert not list(tmp_path.glob("torchyard-logs-*"))
    assert signal.getsignal(signal.SIGTERM) == old_handler
