"""Where each kind of job finds its code."""

from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.agents.job_code import get_pod_folder


@pytest.fixture
def path(write: Write, tmp_path: Path) -> Path:
    """A profile with code on this machine and behind ssh."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").touch()
    hosts = [{"host": "localhost", "address": "10.0.0.1"}, "gpu1"]
    return write(program="a.py", code_folder="mine", nodes=2, options={"hosts": hosts})


def test_machines_start_in_the_unpacked_code(path: Path, tmp_path: Path) -> None:
    """On this machine all attempts start in one folder of the run, behind ssh each in its own copy."""
    for attempt in (1, 2):
        plan = command_plan_of(load(path), tmp_path / "run", attempt)
        assert plan.code
        local, remote = (process.spec or {} for process in plan.processes)
        (site,) = plan.sites
        assert local["cwd"] == plan.code.folder == f"{tmp_path}/run/code-{plan.code.archive.short_digest}"
        assert local["argv"][-1] == f"{plan.code.folder}/a.py"
        assert (remote["cwd"], remote["argv"][-1]) == (f"{site.folder}/work", f"{site.folder}/work/a.py")
        assert (site.code, site.work) == (plan.code, None)


def test_module_starts_in_the_code(path: Path, tmp_path: Path) -> None:
    """A module is imported from the folder with the code."""
    plan = command_plan_of(load(path, program=None, module="a"), tmp_path / "run")
    specs = [process.spec or {} for process in plan.processes]
    assert [spec["argv"][-3:] for spec in specs] == [["-m", "--", "a"]] * 2
    assert [Path(spec["cwd"]).name for spec in specs] == [f"code-{load(path).code.archive.short_digest}", "work"]  # type: ignore[union-attr]


def test_pods_have_the_code_in_their_work_folder(path: Path) -> None:
    """The code is in /code, or in the profile's work folder; without code there is no such folder."""
    profile = load(path)
    assert get_pod_folder(profile) == "/code"
    pod = profile.pod.model_copy(update={"workdir": "/workspace"})
    assert get_pod_folder(profile.model_copy(update={"pod": pod})) == "/workspace"
    assert get_pod_folder(profile.model_copy(update={"code": None})) is None
