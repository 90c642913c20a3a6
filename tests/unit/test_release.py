"""What publishes the project: the workflow files, the issue forms, and what a tag must fit."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchyard.common.project_root import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SCHEMAS = {
    "github-workflows": list(WORKFLOWS.values()),
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2030-01-31\n\n### Added\n- A thing.\n\n## 1.2.2 - 2030-01-01\n"

_spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
assert _spec
assert _spec.loader
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)


def jobs(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]
    return jobs


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize(("schema", "paths"), SCHEMAS.items(), ids=SCHEMAS)
def test_files_for_github_are_valid(schema: str, paths: list[Path]) -> None:
    """Every file in .github fits the schema of its kind."""
    check = [
        str(Path(sys.executable).parent / "check-jsonschema"),
        "--builtin-schema",
        f"vendor.{schema}",
        *map(str, paths),
    ]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_actions_are_pinned(path: Path) -> None:
    """Every action is pinned to a commit, with the version that it is beside it."""
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_workflows_may_only_read(path: Path) -> None:
    """A workflow may read the code; only a job that publishes may do more, and it runs no command of the project."""
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all("run" not in step for job in workflow["jobs"].values() if "permissions" in job for step in job["steps"])


@pytest.mark.parametrize(("workflow", "job"), [("ci", "run"), ("release", "run")])
def test_workflows_call_what_ci_calls(workflow: str, job: str) -> None:
    """The tests of a push and of a release are `.ci/run`, nothing else."""
    assert commands(jobs(workflow)[job]).split()[3:4] == [".ci/run"]


@pytest.mark.parametrize(("workflow", "job"), [("ci", "installed"), ("release", "test")])
def test_package_is_tested_on_every_python_that_it_names(workflow: str, job: str) -> None:
    """The matrix has the versions of the package's classifiers, and each tests a built file by `.ci/installed`."""
    versions = [classifier.rpartition(" ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier]
    assert jobs(workflow)[job]["strategy"]["matrix"]["python"] == versions
    assert ".ci/installed dist/$FILE python" in commands(jobs(workflow)[job])


def test_only_what_was_tested_is_published() -> None:
    """The release publishes the files that were built before, after both kinds of tests, and needs a person's word."""
    publish = jobs("release")["publish"]
    assert set(publish["needs"]) == {"test", "run"}
    assert publish["environment"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        ("v1.2.3", "1.2.3", None),
        ("v1.2.4", "1.2.3", "the tag should be v1.2.3"),
        ("v1.2.4", "1.2.4", "no heading `## 1.2.4 - YYYY-MM-DD`"),
        ("v1.2.2", "1.2.2", "says nothing under 1.2.2"),
    ],
)
def test_tag_must_fit(tmp_path: Path, tag: str, version: str, message: str | None) -> None:
    """A tag is released only if pyproject.toml has its version, and CHANGELOG.md something about it."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    fault = release.find_fault(tag, tmp_path)
    assert (fault is None) if message is None else message in str(fault)
