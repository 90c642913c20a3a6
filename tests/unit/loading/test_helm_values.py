"""The keys of a helm chart: their types, their defaults, and mistakes in them."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.inputs.chart_values import JOB, load_values, write_values
from tests.inputs.user_files import get_refusal
from torchyard.loading.helm_values import ChartValues
from torchyard.model.errors import ProfileError


def test_null_removes_a_default(tmp_path: Path) -> None:
    """A null removes the chart's default queue and priority."""
    profile = load_values(tmp_path, {"queueName": None, "priority": None})
    assert (profile.options, profile.pod.priority_class) == ({}, None)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"numPod": 4}, "unknown key numPod: did you mean numPods?"),
    ({"mountNVMe": {"storage": "1Gi", "mount": "/a"}}, "unknown key mountNVMe.mount: did you mean mountPath?"),
    ({"envFrom": [{"prefix": "A"}]}, "unknown key envFrom.0.prefix"),
    ({"numPods": "4"}, "numPods: must be a whole number, not '4'"),
    ({"numPods": True}, "numPods: must be a whole number"),
    ({"numPods": 0}, "numPods: must be greater than or equal to 1"),
    ({"totalMemoryPerPod": 1}, "totalMemoryPerPod: must be a text"),
    ({"totalMemoryPerPod": "1 GB"}, "totalMemoryPerPod: must match pattern"),
    ({"jobName": "My_Job"}, "jobName: must match pattern"),
    ({"jobName": "a" * 51}, "jobName: must have at most 50 characters"),
    ({"jobName": None, "priority": "urgent"}, "priority: must be 'default-priority', 'low-priority' or"),
    ({"environmentVariables": [{"name": "A"}]}, "a variable has a name and one of value, secret, configmap"),
    ({"disableSharedMemory": "yes"}, "disableSharedMemory: must be true or false"),
    ({"warmupGracePeriodDuration": "1w"}, "warmupGracePeriodDuration: must match pattern"),
    ({"warmupGracePeriodDuration": "0s"}, "warmupGracePeriodDuration: must match pattern"),
    ({"restartPolicy": "OnFailure"}, "restartPolicy: only Never"),
    ({"limitGpusPerPod": 4, "numGpusPerPod": 8}, "limitGpusPerPod: GPUs are not shared: leave it out, or set it to 8"),
    ({"numRoceGdr": 2}, "numRoceGdr: one pod has no other to reach"),
    ({"mainProgram": "train.py --out=$OUT"}, "mainProgram: '$' is for a shell"),
    ({"mainProgram": 'train.py "$OUT"'}, "mainProgram: '$' is for a shell"),
    ({"mainProgram": "train.py && echo"}, "mainProgram: '&' is for a shell"),
    ({"mainProgram": "train.py 'a"}, "mainProgram: a quote is not closed"),
    ({"mainProgram": None}, "mainProgram: is missing: torchrun needs a program"),
]


@pytest.mark.parametrize(("values", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_is_reported_with_its_line(tmp_path: Path, values: dict[str, Any], expected: str) -> None:
    """Each mistake is reported with its file and line."""
    path = write_values(tmp_path, JOB, {"namespace": "ml"} | values)
    assert re.search(rf"values-1\.yaml:[2-5]: .*{re.escape(expected)}", get_refusal(path))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(values=st.dictionaries(st.sampled_from(sorted(ChartValues.model_fields)), ANY, max_size=5))
def test_wrong_values_are_reported_and_never_crash(tmp_path: Path, values: dict[str, Any]) -> None:
    """With any values of the chart's keys, the profile loads or raises ProfileError."""
    with suppress(ProfileError):
        load_values(tmp_path, values)
