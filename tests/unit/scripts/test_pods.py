"""The work pool of a Kubernetes installation: how a run's pod is built."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.api import YardError
from scripts.pods import build_job_template, merge_manifest, read_run_pod
from torchyard.common.project_root import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
RUN_POD = yaml.safe_load((KUBERNETES / "run-pod.yaml").read_text())


def get_pod_spec(template: dict[str, Any]) -> Any:
    return template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]


def test_lists_are_merged_by_name() -> None:
    """An item with an existing name is changed, another one is added, and null removes a key."""
    base = {"volumes": [{"name": "runs", "emptyDir": {}}], "args": ["a", "b"], "kept": 1}
    change = {"volumes": [{"name": "runs", "emptyDir": None, "hostPath": {}}, {"name": "more"}], "args": ["c"]}
    merged = {"volumes": [{"name": "runs", "hostPath": {}}, {"name": "more"}], "args": ["c"], "kept": 1}
    assert merge_manifest(base, change) == merged


def test_template_keeps_what_prefect_fills_in() -> None:
    """A run's pod has Prefect's command and image, our account and folder, and one container."""
    pod = get_pod_spec(build_job_template(RUN_POD, "registry/torchyard:1", "ml"))
    (container,) = pod["containers"]
    assert (container["args"], container["image"]) == ("{{ command }}", "{{ image }}")
    assert (pod["serviceAccountName"], pod["volumes"]) == ("torchyard-run", [{"name": "runs", "emptyDir": {}}])
    assert container["env"] == [{"name": "TORCHYARD_RUNS", "value": "/runs"}]


def test_worker_may_not_restart_pods_itself() -> None:
    """The limit of Kubernetes' own restarts is 0: only then does Prefect start an evicted run again."""
    fields = build_job_template({}, "registry/torchyard:1", "ml")["variables"]["properties"]
    assert (fields["backoff_limit"]["default"], fields["image"]["default"]) == (0, "registry/torchyard:1")


def test_claim_replaces_the_empty_folder(tmp_path: Path) -> None:
    """With the component `claim` the runs are on the claim, and nowhere else."""
    for path in (KUBERNETES / "run-pod.yaml", KUBERNETES / "claim" / "runs-on-claim.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    claim = {"persistentVolumeClaim": {"claimName": "torchyard-runs"}}
    assert read_run_pod(tmp_path)["volumes"] == [{"name": "runs"} | claim]


def test_server_does_not_start_without_its_password() -> None:
    """A container whose Secret is missing is not started, unless its reference is optional: the password's is not."""
    objects = yaml.safe_load_all((KUBERNETES / "server" / "server.yaml").read_text())
    (server,) = [obj for obj in objects if obj["kind"] in ("Deployment", "StatefulSet")]
    (container,) = server["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    reference = variables["PREFECT_SERVER_API_AUTH_STRING"]["valueFrom"]["secretKeyRef"]
    assert not reference.get("optional")


@pytest.mark.parametrize("text", ["[1]", "a: [", "word"])
def test_file_that_is_not_a_pod_is_named(tmp_path: Path, text: str) -> None:
    """A file that is not a YAML mapping is an error with its path."""
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(YardError, match=r"mine\.yaml"):
        read_run_pod(tmp_path)
