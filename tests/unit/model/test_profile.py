"""The models of a profile: names, defaults, and values that YAML reads differently."""

import pytest

from tests.conftest import Write, load
from tests.inputs.user_files import get_refusal
from torchyard.loading.profile import load_profile


def test_invalid_name_is_refused(write: Write) -> None:
    """A file name that cannot become a job's name is refused, with the rule and a name that can."""
    path = write("My_Profile")
    refusal = get_refusal(path)
    assert f"{path}: the file's name is that of the profile, which has lower-case letters" in refusal
    assert "to my-profile.yaml" in refusal


def test_threshold_of_the_profile_takes_precedence(write: Write) -> None:
    """`min_busbw` takes precedence over the hardware file's, and without both there is none."""
    shape = {"hardware": "oke/bm-gpu-b4-8", "fabric": "host", "nodes": 2, "processes": 8, "launcher": "volcano"}
    shape |= {"image": "train:v1", "check_fabric": "30s"}
    limits = [load(write(**shape, **keys)).required_busbw for keys in ({}, {"min_busbw": 20})]
    assert [*limits, load(write()).required_busbw] == [185, 20, None]


@pytest.mark.parametrize("written", ["off", "'off'", "no"])
def test_off_needs_no_quotes(write: Write, written: str) -> None:
    """A bare `off`, which YAML reads as false, is the value `off`, in a file and with --set."""
    path = write()
    path.write_text(f"{path.read_text()}\non_hang: {written}\n")
    assert load(path).on_hang == "off"
    assert load_profile(str(write()), {"on_hang": False}).on_hang == "off"


@pytest.mark.parametrize(
    ("keys", "restarts"),
    [({}, 0), ({"nodes": {"min": 1, "max": 2}}, 100), ({"nodes": {"min": 1, "max": 2}, "restarts": 1}, 1)],
    ids=["fixed", "elastic", "set"],
)
def test_elastic_job_may_restart_its_processes(write: Write, keys: dict[str, object], restarts: int) -> None:
    """Only an elastic job restarts processes by default; `restarts` replaces the default."""
    assert load(write(launcher="pytorchjob", image="train:v1", **keys)).max_restarts == restarts
