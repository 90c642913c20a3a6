"""The release of the project: the workflow files, the issue forms, and the rules for a tag."""

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


def read_jobs(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]
    return jobs


def join_commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize(("schema", "paths"), SCHEMAS.items(), ids=SCHEMAS)
def test_files_for_github_are_valid(schema: str, paths: list[Path]) -> None:
    """Every file in .github is valid by its schema."""
    check = [
        str(Path(sys.executable).parent / "check-jsonschema"),
        "--builtin-schema",
        f"vendor.{schema}",
        *map(str, paths),
    ]
    completed = subprocess.run(check, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_actions_are_pinned(path: Path) -> None:
    """Every action is pinned to a commit, with its version in a comment."""
    actions = re.findall(r"uses: (.*)", path.read_text())
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_workflows_may_only_read(path: Path) -> None:
    """A workflow may only read the code; a job with more rights, to publish, runs no command of the project."""
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all("run" not in step for job in workflow["jobs"].values() if "permissions" in job for step in job["steps"])


@pytest.mark.parametrize(("workflow", "job"), [("ci", "run"), ("release", "run")])
def test_workflows_call_the_ci_script(workflow: str, job: str) -> None:
    """The tests of a push and of a release are `.ci/run` alone."""
    assert join_commands(read_jobs(workflow)[job]).split()[3:4] == [".ci/run"]


@pytest.mark.parametrize(("workflow", "job"), [("ci", "installed"), ("release", "test")])
def test_package_is_tested_on_every_supported_python(workflow: str, job: str) -> None:
    """The matrix has the versions of the package's classifiers, and each tests a built file by `.ci/installed`."""
    versions = [classifier.rpartition(" ")[2] for classifier in PROJECT["classifiers"] if "Python :: 3." in classifier]
    assert read_jobs(workflow)[job]["strategy"]["matrix"]["python"] == versions
    assert ".ci/installed dist/$FILE python" in join_commands(read_jobs(workflow)[job])


def test_only_tested_files_are_published() -> None:
    """The release publishes the files that both kinds of tests have tested, once a person approves it."""
    publish = read_jobs("release")["publish"]
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
def test_tag_must_match_version_and_changelog(tmp_path: Path, tag: str, version: str, message: str | None) -> None:
    """A tag is released only if pyproject.toml has its version and CHANGELOG.md describes it."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    fault = release.find_fault(tag, tmp_path)
    assert (fault is None) if message is None else message in str(fault)
