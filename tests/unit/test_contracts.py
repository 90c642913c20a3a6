"""The doubles of the tests behave like the real programs, as far as the project relies on them."""

from uuid import UUID

import pytest

from tests.conftest import RUN_ID
from tests.contracts.prefect_server import PrefectContract
from tests.doubles.fake_prefect import FakePrefect


class TestFakePrefectServer(PrefectContract):
    """The contract, against the fake Prefect server."""

    @pytest.fixture
    def run_id(self, fake_prefect: FakePrefect) -> UUID:
        assert fake_prefect.state == "RUNNING"
        return UUID(RUN_ID)
