"""`make train` and `make up` fail with one sentence before anything is started."""

import os
import subprocess
import sys

from scripts.server import find_free_port
from torchyard.common.project_root import ROOT

YARD = [sys.executable, str(ROOT / "scripts" / "yard.py")]


def test_server_that_does_not_answer_is_one_sentence() -> None:
    """A PREFECT_API_URL at which no server responds is an error, and nothing is started."""
    completed = run_yard("train", "digits-local", PREFECT_API_URL=f"http://127.0.0.1:{find_free_port()}/api")
    assert completed.stderr.startswith("no Prefect API responds at http://127.0.0.1:")


def test_unknown_profile_is_an_error_before_anything_starts() -> None:
    """`make train PROFILE=digits-locl` names the nearest profile and starts no server."""
    completed = run_yard("train", "digits-locl")
    assert completed.stdout == ""
    assert "did you mean digits-local?" in completed.stderr


def test_name_that_cannot_be_used_is_one_sentence() -> None:
    """A POOL that Prefect would refuse is an error before a server is started."""
    completed = run_yard("up", TORCHYARD_POOL="a/b")
    assert (completed.stdout, completed.stderr.count("\n")) == ("", 1)
    assert completed.stderr.startswith("TORCHYARD_POOL: 'a/b' cannot be used: ")


def run_yard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script, which must fail with a sentence and no traceback."""
    command = [*YARD, *arguments]
    completed = subprocess.run(
        command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 1
    assert "Traceback" not in completed.stderr
    return completed
