"""The values files of a profile: their layers, and the file in which a mistake is."""

from pathlib import Path

import pytest

from tests.inputs.chart_values import JOB, load_values, write_values
from tests.inputs.user_files import get_refusal, list_findings


def test_later_file_wins(tmp_path: Path) -> None:
    """A later file overrides an earlier one, and the profile overrides both."""
    profile = load_values(tmp_path, {"numPods": 2, "numGpusPerPod": 8}, {"numPods": 3, "numGpusPerPod": 4}, nodes=5)
    assert (str(profile.nodes), profile.processes) == ("5", 4)


def test_mappings_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    """A later file's mapping is merged into that of an earlier file, and its list replaces the earlier list."""
    first = {"mountNVMe": {"storage": "1Gi", "mountPath": "/a"}, "setupCommands": ["one", "two"]}
    profile = load_values(tmp_path, first, {"mountNVMe": {"storage": "2Gi"}, "setupCommands": ["three"]})
    assert (profile.mounts["/a"].ephemeral, profile.setup) == ("2Gi", ("three",))


def test_null_removes_a_key(tmp_path: Path) -> None:
    """A null removes the key of earlier files, even inside a mapping."""
    first = {"numPods": 4, "multiNicNetworkName": "net", "mountNVMe": {"storage": "1Gi", "mountPath": "/a"}}
    profile = load_values(
        tmp_path, first, {"numPods": None, "multiNicNetworkName": None, "mountNVMe": {"mountPath": None}}
    )
    assert (str(profile.nodes), profile.pod.networks) == ("1", {})
    assert list(profile.mounts) == ["/workspace/scratch-nvme"]


def test_profile_overrides_its_values_files(tmp_path: Path) -> None:
    """A variable of the profile is added to those of the files, and its program replaces theirs with the arguments."""
    values = {"environmentVariables": [{"name": "A", "value": 1}, {"name": "B", "value": 1}], "mainProgram": "a.py -x"}
    profile = load_values(tmp_path, values, env={"B": 2}, program="b.py")
    assert profile.env == {"A": "1", "B": "2"}
    assert (profile.program, profile.args) == ("b.py", ())


def test_mistake_is_reported_with_the_file_that_contains_it(tmp_path: Path) -> None:
    """All findings come at once, each with the last file that has the key."""
    message = get_refusal(write_values(tmp_path, JOB | {"numPods": "a", "priorty": "x"}, {"namespace": "A"}))
    assert f"{tmp_path}/values-0.yaml:4: numPods" in message
    assert f"{tmp_path}/values-0.yaml:5: unknown key priorty: did you mean priority?" in message
    assert f"{tmp_path}/values-1.yaml:1: namespace" in message


@pytest.mark.parametrize("text", [b"", b"# all as the chart has it\n", b"---\n", b"~\n"])
def test_values_file_may_be_empty(tmp_path: Path, text: bytes) -> None:
    """An empty values file is accepted, as helm does; only the keys that the chart needs are missing."""
    assert not any("mapping" in finding for finding in list_findings(tmp_path, "values", text))
