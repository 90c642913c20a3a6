"""The black box in a Python that starts: it starts its threads, hides nothing, and costs no program its start."""

import os
import subprocess
import sys
from pathlib import Path

from torchyard.agents.black_box import build_recorder_spec
from torchyard.host.black_box.slot import read_slots
from torchyard.loading.profile import load_profile

SITE = build_recorder_spec(load_profile("digits-local"), None)["recorder"]


def run(code: str, *path: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "PYTHONPATH")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join((SITE, *path)), **env}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def test_rank_keeps_a_record(tmp_path: Path) -> None:
    """A process with a rank writes its record, without a change of its program."""
    run("import time; time.sleep(1)", TORCHYARD_BLACK_BOX=str(tmp_path), RANK="2", WORLD_SIZE="4", LOCAL_RANK="0")
    assert [(rank, record["world"]) for rank, record in read_slots(str(tmp_path)).items()] == [(2, 4)]


def test_program_without_a_rank_is_left_alone(tmp_path: Path) -> None:
    """A Python that is no rank of the job keeps nothing."""
    run("pass", TORCHYARD_BLACK_BOX=str(tmp_path / "box"))
    assert not (tmp_path / "box").exists()


def test_hidden_sitecustomize_is_imported(tmp_path: Path) -> None:
    """The image's own sitecustomize runs as it does without the black box."""
    (tmp_path / "sitecustomize.py").write_text("print('the image says hello')\n")
    assert "the image says hello" in run("pass", str(tmp_path)).stdout


def test_folder_is_not_on_the_programs_path() -> None:
    """The program imports nothing of the black box by accident."""
    assert run(f"import sys; print({SITE!r} in sys.path)").stdout == "False\n"


def test_black_box_that_cannot_start_costs_nothing_else() -> None:
    """The program runs, and its log says what is missing."""
    result = run("print('trained')", TORCHYARD_BLACK_BOX="/proc/none", RANK="0", WORLD_SIZE="1")
    assert (result.stdout, result.stderr.startswith("torchyard: no black box in this process: ")) == ("trained\n", True)
