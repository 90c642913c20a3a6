"""The endpoint, scraped over HTTP."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.builders.histories import KEY, build_records
from torchyard.exporter.endpoint import render_metrics, serve_metrics
from torchyard.model.errors import EndpointError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.trend.records import history_path, store_record


@pytest.fixture
def port() -> Iterator[int]:
    server, _ = serve_metrics("127.0.0.1", 0)
    yield server.server_port
    server.shutdown()
    server.server_close()


def scrape(port: int) -> dict[str, float]:
    """The sum of the samples of each family, by its name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
        return {family.name: sum(sample.value for sample in family.samples) for family in families}


def test_each_scrape_reads_the_folders_anew(port: int) -> None:
    """A run that starts between two scrapes is in the second one."""
    assert scrape(port)["torchyard_runs"] == 0
    folder = RunFolder(runs_folder() / "mine-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", entry="fresh", profile="mine", launcher="volcano")
    store_record(history_path(runs_folder(), KEY), build_records([200.0])[0])
    values = scrape(port)
    assert (values["torchyard_runs"], values["torchyard_last_run_succeeded"]) == (1, 1)
    assert 'torchyard_runs{launcher="volcano",profile="mine",state="lost"} 1.0' in render_metrics()


def test_unreadable_folder_fails_the_scrape(port: int, tmp_path: Path) -> None:
    """If the runs cannot be listed the scrape fails, so that `up` is 0 and no wrong number is stored."""
    (tmp_path / "a-file").write_text("")
    os.environ["TORCHYARD_RUNS"] = str(tmp_path / "a-file")
    with pytest.raises(urllib.error.HTTPError, match="500"):
        scrape(port)


def test_unreadable_history_is_counted(port: int) -> None:
    """A history that cannot be read counts as one unreadable line, and the others are served."""
    history_path(runs_folder(), KEY).mkdir(parents=True)
    assert scrape(port)["torchyard_unreadable_history_lines"] == 1


def test_port_in_use_is_one_sentence(port: int) -> None:
    """The error contains the address, the reason, and the options to change."""
    with pytest.raises(EndpointError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use; choose"):
        serve_metrics("127.0.0.1", port)
