"""The doubles of the tests behave like the real programs, as far as the project relies on them."""

import runpy
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import RUN_ID
from tests.contracts.prefect_server import PrefectContract
from tests.contracts.runai_cli import DESCRIBE_OPTIONS, LOGS_OPTIONS, SUBMIT_OPTIONS
from tests.doubles.fake_prefect import FakePrefect
from torchyard.common.project_root import ROOT


class TestFakePrefectServer(PrefectContract):
    """The contract, against the fake Prefect server."""

    @pytest.fixture
    def run_id(self, fake_prefect: FakePrefect) -> UUID:
        assert fake_prefect.state == "RUNNING"
        return UUID(RUN_ID)


def test_fake_runai_accepts_only_documented_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fake Run:ai CLI has no option that the real CLI of this generation lacks."""
    monkeypatch.setenv("RUNAI_STATE", str(tmp_path))
    monkeypatch.setenv("RUNAI_GENERATION", "v1")
    program = runpy.run_path(str(ROOT / "tests" / "programs" / "runai.py"))
    assert set(program["SUBMIT"][False]) <= SUBMIT_OPTIONS
    assert set(program["DESCRIBE"]) <= DESCRIBE_OPTIONS
    assert set(program["LOGS"]) <= LOGS_OPTIONS
