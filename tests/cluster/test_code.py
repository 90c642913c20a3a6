"""The code of a job in real pods: an edit is run by the next run, and no image is built for it."""

import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.jobs import require_real_nodes
from torchyard.assembly import create_runner
from torchyard.kube.client import Client
from torchyard.loading.profile import load_profile
from torchyard.run.control import LocalControl

pytestmark = pytest.mark.slow


def run_profile(path: Path, overrides: dict[str, Any]) -> list[str]:
    """Run a profile to its end, and return the first line of each node's log."""
    ended = create_runner(load_profile(str(path), overrides), str(uuid.uuid4()), LocalControl()).run()
    assert ended.report
    assert (ended.end, ended.report.leftovers) == ("succeeded", ()), ended.sentence
    logs = sorted(Path(ended.report.folder, "attempt-1").glob("worker-*/log"))
    return [log.read_text().splitlines()[0].partition(" | ")[2] or log.read_text() for log in logs]


def test_pods_run_the_folder_of_this_machine(
    admin_client: Client, user_overrides: dict[str, Any], namespace: str, tmp_path: Path
) -> None:
    """Two pods import a package of this machine, and after an edit the next run has it."""
    require_real_nodes(admin_client)
    (tmp_path / "words").mkdir()
    (tmp_path / "train.py").write_text("import os, words; print(words.WORD, os.getcwd(), flush=True)")
    path = tmp_path / "edited.yaml"
    document = {
        "about": "the code of this folder",
        "launcher": "job",
        "image": "torchyard/node-python:local",
        "code": {"path": ".", "exclude": ["runs"]},
        "program": "train.py",
        "nodes": 2,
        "agent": "none",
        "rendezvous": "env",
        "pod": {"node_selector": {"torchyard/node": "real"}},
    }
    path.write_text(yaml.safe_dump(document))
    for word in ("before", "after"):
        (tmp_path / "words" / "__init__.py").write_text(f"WORD = {word!r}")
        lines = run_profile(path, user_overrides | {"cluster.namespace": namespace})
        assert [f"{word} /code" in line for line in lines] == [True, True], lines
