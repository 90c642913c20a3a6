"""A user's files, written and loaded, and the findings about them."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from tests.builders.generated_profiles import build_plan
from tests.conftest import RUN_ID
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError
from torchyard.model.plan import Plan
from torchyard.model.run import Run

PLANS: TypeAdapter[Plan] = TypeAdapter(Plan)
PROFILE = {
    "about": "a test",
    "launcher": "volcano",
    "image": "i:1",
    "program": "a.py",
    "args": ["--one", 2],
    "nodes": {"min": 1, "max": 2},
    "env": {"A": "1", "B": {"secret": "s", "key": "k"}},
    "resources": {"gpus": 1},
    "setup": ["true"],
    "mounts": {"/data": {"claim": "c"}, "/more": {"ephemeral": "1Gi", "storage_class": "fast"}},
    "pod": {"shm": "1Gi", "networks": {"a/b": 1}, "avoid": {"a": ["b"]}, "init": [{"name": "a", "image": "i:1"}]},
    "cluster": {"namespace": "runai-vision"},
    "deadlines": {"start": "1m", "run": 5},
    "hardware": "oke/bm-gpu-b4-8",
    "fabric": "host",
    "options": {"queue": "default"},
}
FILES: dict[str, dict[str, Any]] = {  # the profile that names the file
    "profile": {},
    "hardware": PROFILE | {"hardware": "drawn", "fabric": "host"},
    "values": {"about": "a test", "launcher": "appwrapper", "image": "i:1", "values": ["it.yaml"]},
    "manifest": {"about": "a test", "launcher": "volcano", "manifest": "it.yaml"},
}
HEAD = "about: a test\nlauncher: volcano\nimage: i:1\nprogram: a.py\n"


def list_findings(folder: Path, kind: str, text: bytes) -> tuple[str, ...]:
    """The findings about a file of this kind; none if it can be planned, and its plan survives JSON."""
    path = folder / "sample.yaml"
    user_file = folder / "it.yaml"
    if kind == "profile":
        user_file = path
    elif kind == "hardware":
        user_file = folder / "hardware" / "drawn.yaml"
    user_file.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(FILES[kind]))
    user_file.write_bytes(text)
    os.environ["TORCHYARD_PROFILES"] = str(folder)
    try:
        profile = load_profile(str(path))
        job_plan = build_plan(profile, Run(id=RUN_ID, attempt=2, folder="/runs/here"))
    except ProfileError as error:
        return tuple(map(str, error.findings))
    assert PLANS.validate_json(job_plan.model_dump_json()) == job_plan
    return ()


def get_refusal(path: Path | str, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ProfileError) as error:
        load_profile(str(path), overrides)
    return str(error.value)
