"""The code of a job in real pods: an edit is run by the next run, and no image is built for it."""

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.jobs import require_real_nodes, until
from tests.cluster.provide import build_path, build_volume, is_bound
from torchyard.assembly import create_runner
from torchyard.kube.client import Client
from torchyard.loading.profile import load_profile
from torchyard.model.profile import Cluster
from torchyard.run.control import LocalControl

pytestmark = pytest.mark.slow
PROFILE = {
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


@pytest.fixture
def claim(admin_client: Client, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """The folder of a volume that all pods can mount: its claim is called `shared`."""
    require_real_nodes(admin_client)
    folder = tmp_path / "volume"
    client = Client(Cluster(namespace=namespace))
    objects = build_volume("shared", namespace, folder)
    for obj in objects:
        client.request("POST", build_path(client, obj), body=obj)
    until(lambda: is_bound(client, "shared"))
    yield folder
    for obj in reversed(objects):
        client.request("DELETE", build_path(client, obj, obj["metadata"]["name"]))


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
    path.write_text(yaml.safe_dump(PROFILE))
    for word in ("before", "after"):
        (tmp_path / "words" / "__init__.py").write_text(f"WORD = {word!r}")
        lines = run_profile(path, user_overrides | {"cluster.namespace": namespace})
        assert [f"{word} /code" in line for line in lines] == [True, True], lines


def test_large_folder_comes_by_a_claim_once(
    claim: Path, user_overrides: dict[str, Any], namespace: str, tmp_path: Path
) -> None:
    """What is too large for a ConfigMap is sent to the volume, and only once: a second run finds it there."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import os; print(os.path.getsize('data.bin'), os.getcwd(), flush=True)")
    (folder / "data.bin").write_bytes(random.Random(1).randbytes(3_000_000))
    path = folder / "large.yaml"
    path.write_text(yaml.safe_dump(PROFILE | {"code": {"path": ".", "claim": "shared"}}))
    modified_times = []
    for _ in range(2):
        lines = run_profile(path, user_overrides | {"cluster.namespace": namespace})
        assert ["3000000 /code" in line for line in lines] == [True, True], lines
        (archive,) = [path for path in claim.rglob("*") if path.is_file()]
        assert archive.name == "code.tar.gz"
        modified_times.append(archive.stat().st_mtime_ns)
    assert modified_times[0] == modified_times[1]
