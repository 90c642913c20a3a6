"""A process that is watched by a piece of Python code."""

from pathlib import Path

import pytest

from tests.doubles.scripted_hosts import MakeProcess, build_process
from torchyard.model.plan import Process


@pytest.fixture
def make_process(tmp_path: Path) -> MakeProcess:
    """A process whose log is `there`, and which is watched by a piece of Python code."""

    def make(code: str) -> Process:
        return build_process(tmp_path, code)

    (tmp_path / "there").write_text("one\ntwo\nthree\n")
    return make
