"""What the kubelet does with a pod: it expands the variables in a command, and mounts torchyard's own files."""

import re
from pathlib import Path

from tests.builders.plan_parts import get_container, get_pod_spec
from torchyard.agents.job_files import MOUNTED
from torchyard.model.plan import ManifestPlan


def expand_variables(text: str, env: dict[str, str]) -> str:
    """An argument of a command, as the kubelet expands it (kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)


def mount_job_files(plan: ManifestPlan, folder: Path) -> list[str]:
    """Write torchyard's own files, and the folder for records, below `folder`; return the pod's command with its paths.

    A pod has them at fixed paths, which a test cannot have on this machine.
    """
    volumes = {volume["name"]: volume for volume in get_pod_spec(plan).get("volumes", ())}
    config_maps = {obj["metadata"]["name"]: obj for obj in plan.objects if obj["kind"] == "ConfigMap"}
    for mount in get_container(plan).get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        path = Path(f"{folder}{mount['mountPath']}")
        if mount["mountPath"] == MOUNTED.records:
            path.mkdir(parents=True)
        if mount["mountPath"] == MOUNTED.files:
            source = volume["configMap"]
            for item in source["items"]:
                file = path / item["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(config_maps[source["name"]]["data"][item["key"]])
    argv: list[str] = get_container(plan)["command"]
    return [arg.replace(MOUNTED.files, f"{folder}{MOUNTED.files}") for arg in argv]
