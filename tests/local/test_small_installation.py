"""The small installation of docs/index.md: the wheel without its dependencies, in an environment of seven packages."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT

Completed = subprocess.CompletedProcess[str]
Torchyard = Callable[..., Completed]
PACKAGES = {
    "annotated-types",
    "pydantic",
    "pydantic-core",
    "pyyaml",
    "tenacity",
    "typing-extensions",
    "typing-inspection",
}


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has the small installation, with the versions of requirements.lock."""
    folder = tmp_path_factory.mktemp("small")
    versions = re.findall(r"^([\w.-]+==[\w.]+) \\?$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "versions.txt").write_text("\n".join(versions))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    interpreter = str(folder / "venv" / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", interpreter, "install", "-q", "--disable-pip-version-check"]
    engine_packages = ["pydantic", "pyyaml", "tenacity"]
    subprocess.run([*install, "-c", str(folder / "versions.txt"), *engine_packages], check=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    return interpreter


@pytest.fixture
def torchyard(python: str, tmp_path: Path) -> Torchyard:
    """The command of the small installation, in an empty folder; keywords are environment variables."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHYARD_", "PYTHON"))}

    def call(*args: str, **environment: str) -> Completed:
        command = [str(Path(python).parent / "torchyard"), *args]
        return subprocess.run(command, cwd=tmp_path, env=own | environment, capture_output=True, text=True, check=False)

    return call


def test_environment_has_seven_packages(python: str) -> None:
    """The engine's dependencies are seven packages, which are all that pip installs."""
    code = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
    names = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {re.sub("[._]", "-", name).lower() for name in names.split()} == PACKAGES | {"torchyard"}


def test_runs_and_their_trend_need_nothing_else(torchyard: Torchyard, tmp_path: Path) -> None:
    """Two runs succeed, and their log, their hangs, their history and its plot can be read."""
    for _ in range(2):
        completed = torchyard("demo", "--without-torch")
        assert completed.returncode == 0, completed.stdout + completed.stderr
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/report.json")]
    assert [report["end"] for report in reports] == ["succeeded", "succeeded"]
    run_name = reports[0]["run"]
    plot = torchyard("trend", "pi", "--value", "seconds", "--plot", "trend.svg")
    for completed in (torchyard("logs", run_name), torchyard("why", run_name), torchyard("trend", "pi"), plot):
        assert (completed.returncode, completed.stderr) == (0, "")
    assert (tmp_path / "trend.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "args",
    [["plan", "yolov5-volcano"], ["profiles"], ["profiles", "--launchers"], ["schema"], ["trend"], ["--version"]],
    ids=" ".join,
)
def test_profiles_and_plans_need_nothing_else(torchyard: Torchyard, args: list[str]) -> None:
    """Every profile is planned, also one for a cluster."""
    completed = torchyard(*args)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout


@pytest.mark.parametrize(
    ("args", "environment", "packages"),
    [
        pytest.param(["check", "yolov5-volcano"], {}, "kubernetes urllib3 httpx httpcore h2", id="cluster"),
        pytest.param(["run", "yolov5-volcano"], {}, "kubernetes urllib3 httpx httpcore h2", id="run in a cluster"),
        pytest.param(["metrics", "--once"], {}, "prometheus-client", id="metrics"),
        pytest.param(["check", "pi-local", "--set", "notify=[json://host/x]"], {}, "apprise", id="notify"),
        pytest.param(["run", "pi-local", "--set", "notify=[$HOOK]"], {"HOOK": "json://h/x"}, "apprise", id="variable"),
        pytest.param(["check", "pi-local", "--set", "metrics.pattern=(?P<pi>.+)"], {}, "regex", id="pattern"),
        pytest.param(["check", "pi-local", "--set", "metrics_to=[wandb]"], {}, "wandb", id="tracker"),
        pytest.param(["run", "pi-local"], {"TORCHYARD_ARCHIVE": "s3://bucket/x"}, "fsspec s3fs", id="archive"),
        pytest.param(["trend"], {"TORCHYARD_ARCHIVE": "file:///tmp/x"}, "fsspec", id="archive on a disk"),
        pytest.param(["demo"], {}, "torch scikit-learn", id="demo with torch"),
    ],
)
def test_what_is_missing_is_one_sentence(
    torchyard: Torchyard, args: list[str], environment: dict[str, str], packages: str
) -> None:
    """A feature that needs more names the missing packages and the command that installs them; no traceback."""
    completed = torchyard(*args, **environment)
    output = completed.stdout + completed.stderr
    # The keys `notify` and `metrics` are checked with the profile.
    is_profile_error = any(part in " ".join(args) for part in ("notify=[json", "metrics.pattern="))
    assert completed.returncode == (3 if is_profile_error else 1), output
    assert "Traceback" not in output
    assert re.search(rf"needs {packages.replace(' ', ', ')}, which (is|are) not installed in \S+", output), output
    assert f"pip install {packages}" in output
