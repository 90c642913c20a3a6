"""The built wheel in a project that has its own packages `tasks` and `flows`."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL

from torchyard.common.project_root import ROOT

MAIN = "from torchyard.cli.console import main; main()"
STEPS = "load_profile, plan, preflight, ensure_rendezvous, submit, wait, collect, teardown, train_profile"
ONE_IMPORT = f"""
from torchyard.tasks import {STEPS}
print(*[step.__module__ for step in ({STEPS})], sep="\
")
"""
PRINT_ORIGINS = """
import json, tasks, flows, tasks.load, torchyard
from torchyard.tasks.steps import collect
from torchyard.tasks.flow_run.control import PrefectControl
print(json.dumps([tasks.__file__, flows.__file__, torchyard.__file__, collect.name, PrefectControl.watchdog[-1]]))
"""


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its own packages `tasks` and `flows`, and the unpacked wheel in `site`."""
    folder = tmp_path_factory.mktemp("project")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    for name in ("tasks", "flows"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    (folder / "tasks" / "load.py").touch()
    return folder


@pytest.fixture(scope="module")
def example(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/project outside of this checkout, and the unpacked wheel in `site`."""
    folder = tmp_path_factory.mktemp("example") / "project"
    shutil.copytree(ROOT / "examples" / "project", folder, ignore=shutil.ignore_patterns("__pycache__", "best.json"))
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder


def run_python(project: Path, code: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run code in the project's folder; on its path the wheel precedes this checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCHYARD_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(project), str(project / "site")])
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("args", "end", "text"),
    [
        pytest.param(["--without-torch"], "succeeded", "3.141592654", id="without torch"),
        pytest.param(["--fail"], "failed", "node-1 did not find a file", id="fail"),
        pytest.param([], "succeeded", "epoch 10: ", id="digits", marks=pytest.mark.slow),
    ],
)
def test_demo_of_the_wheel(project: Path, tmp_path: Path, args: list[str], end: str, text: str) -> None:
    """The demo runs two agents in an empty folder with only the wheel, and stores its run there."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCHYARD_")}
    completed = subprocess.run(
        [sys.executable, "-c", MAIN, "demo", *args],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(project / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    (report,) = tmp_path.glob("runs/*/report.json")
    assert (completed.returncode, json.loads(report.read_text())["end"]) == (0, end), (
        completed.stdout + completed.stderr
    )
    assert text in completed.stdout


def list_pythons() -> list[Path]:
    """One interpreter of each other supported minor version of Python, from PATH and from pyenv."""
    names = [f"python3.{minor}" for minor in range(11, 30)]
    paths = [Path(folder, name) for folder, name in itertools.product(os.get_exec_path(), names)]
    paths += (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python3")
    print_minor = "import sys; print(sys.version_info.minor if sys.version_info >= (3, 11, 2) else 0)"
    interpreters: dict[int, Path] = {}
    for path in filter(Path.exists, paths):
        minor_text = subprocess.run([path, "-c", print_minor], capture_output=True, text=True, check=False).stdout
        interpreters.setdefault(int(minor_text or 0), path)  # pyenv's shim of an inactive version prints nothing
    return [path for minor, path in sorted(interpreters.items()) if minor not in (0, sys.version_info.minor)]


@pytest.mark.parametrize("path", list_pythons(), ids=lambda path: str(path.parent.parent.name))
def test_other_pythons_can_read_the_wheel(project: Path, path: Path) -> None:
    """Every other Python compiles every module without a warning; `.ci/installed` runs them, with all packages."""
    compile_all = ["-W", "error", "-m", "compileall", "-q", "-f", str(project / "site" / "torchyard")]
    completed = subprocess.run([path, *compile_all], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """The wheel that is built from the sdist has the same files, and the sdist has the version of pyproject.toml."""
    pip_command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip_command, "install", "--target", str(tmp_path / "tools"), "hatchling"], check=True)
    build_sdist = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build_sdist, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path / "tools")})
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sdist = tmp_path / f"torchyard-{version}.tar.gz"
    subprocess.run([*pip_command, "wheel", "--no-deps", "-w", str(tmp_path), str(sdist)], check=True)
    built = tmp_path / wheel.name
    assert zipfile.ZipFile(built).namelist() == zipfile.ZipFile(wheel).namelist()


def test_wheel_adds_one_name(wheel: Path) -> None:
    """The wheel adds only `torchyard` to the top of site-packages."""
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"torchyard"}


def test_projects_own_tasks_and_flows_are_found(project: Path) -> None:
    """`tasks` and `flows` are the project's; the steps and the watchdog's module are those of `torchyard.tasks`."""
    completed = run_python(project, PRINT_ORIGINS)
    assert completed.returncode == 0, completed.stderr
    expected = [str(project / name / "__init__.py") for name in ("tasks", "flows")]
    expected.append(str(project / "site" / "torchyard" / "__init__.py"))
    assert json.loads(completed.stdout) == [*expected, "collect", "torchyard.tasks.recovery"]


def test_run_from_a_wheel_keeps_its_run_in_the_current_folder(project: Path) -> None:
    """The command line stores its run under ./runs, not in site-packages, and finds the shipped profiles."""
    profile: dict[str, Any] = {"about": "prints one", "launcher": "baremetal", "program": "one.py", "nodes": 1}
    profile |= {"agent": "none", "rendezvous": "env", "metrics": "none"}
    (project / "one.yaml").write_text(yaml.safe_dump(profile))
    (project / "one.py").write_text("print('one')")
    completed = run_python(project, MAIN, "run", "one.yaml")
    assert completed.returncode == 0, completed.stderr
    assert [path.name for path in (project / "runs").glob("*/report.json")] == ["report.json"]
    assert not (project / "site" / "torchyard" / "runs").exists()
    help_text = run_python(project, MAIN, "--help").stdout
    assert (project / "site" / "torchyard" / "SKILL.md").exists()
    assert str(project / "site" / "torchyard" / "SKILL.md") in "".join(help_text.split())
    plan_result = run_python(project, MAIN, "plan", "digits-local")
    assert plan_result.returncode == 0, plan_result.stderr
    assert str(project / "site" / "torchyard" / "programs") in plan_result.stdout


@pytest.fixture(scope="module")
def extended(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the unpacked wheel in `site`, where the package of examples/launcher is installed by pip."""
    folder = tmp_path_factory.mktemp("extended")
    source = shutil.copytree(ROOT / "examples" / "launcher", folder / "source")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(folder / "site"), str(source)]
    subprocess.run(install, check=True)
    (folder / "ranks.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    profile = {"about": "prints its rank", "launcher": "processes", "program": "ranks.py", "nodes": 2}
    (folder / "ranks.yaml").write_text(yaml.safe_dump(profile))
    return folder


def test_launcher_of_another_package_runs_a_job(extended: Path) -> None:
    """A package outside the repository, named by its entry point, runs a job through `torchyard run` to success."""
    completed = run_python(extended, MAIN, "run", "ranks.yaml")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (report,) = (extended / "runs").glob("*/report.json")
    assert json.loads(report.read_text())["end"] == "succeeded"
    logs = "".join(path.read_text() for path in sorted(report.parent.glob("attempt-1/*/log")))
    assert "rank 0 of 2" in logs
    assert "rank 1 of 2" in logs


def test_launcher_of_another_package_is_listed(extended: Path) -> None:
    """`torchyard profiles --launchers` lists it with its package and version."""
    lines = run_python(extended, MAIN, "profiles", "--launchers").stdout.splitlines()
    assert lines[-1].startswith("processes   torchyard-processes 0.1.0  Processes on this machine: ")


def test_example_launcher_keeps_the_contract(extended: Path) -> None:
    """The example's own test passes with only the wheel."""
    code = "from source.test_contract import test_launcher_keeps_the_contract as test; test(); print('kept')"
    completed = run_python(extended, code)
    assert completed.stdout == "kept\n", completed.stderr


def test_one_import_brings_every_step(project: Path) -> None:
    """One import provides every step, both from a wheel beside a project's own `tasks` and from a checkout."""
    completed = run_python(project, ONE_IMPORT)
    assert completed.returncode == 0, completed.stderr
    from_checkout = subprocess.run(
        [sys.executable, "-c", ONE_IMPORT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert completed.stdout == from_checkout.stdout


def test_checkout_leaves_a_project_its_own_tasks(tmp_path: Path) -> None:
    """A project's folder `tasks` precedes the namespace of an editable install, which puts the checkout on sys.path."""
    print_origin = "import tasks.mine, torchyard.tasks; print(tasks.mine.__file__)"
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.py").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    completed = subprocess.run(
        [sys.executable, "-c", print_origin], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.stdout.strip() == str(tmp_path / "tasks" / "mine.py"), completed.stderr


def test_wheel_is_typed(wheel: Path) -> None:
    """The wheel has the marker py.typed, so that type checkers use its annotations."""
    assert "torchyard/py.typed" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_example_project_runs_with_only_the_wheel(example: Path) -> None:
    """The example's flow trains twice with its own profile, program, tasks and flows, and records the better run."""
    url = {"PREFECT_API_URL": PREFECT_API_URL.value() or ""}
    completed = run_python(example, f"import os; os.environ.update({url}); import flows; print(flows.nightly().run)")
    assert completed.returncode == 0, completed.stderr
    best = json.loads((example / "best.json").read_text())
    assert best["run"] == completed.stdout.split()[-1]
    assert Path(best["model"]).is_relative_to(example / "runs" / best["run"])
    assert len([*(example / "runs").glob("line-*/report.json")]) == 2
