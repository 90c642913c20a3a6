"""The endpoint that Prometheus scrapes: each scrape reads the run folders again."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric

from torchyard.exporter.families import build_families
from torchyard.listing.run_summaries import RunsReader
from torchyard.model.errors import EndpointError
from torchyard.run.folder import runs_folder
from torchyard.trend.records import History, list_histories, read_history


class _RunsCollector:
    """A collector that prometheus_client calls for each scrape; an error becomes HTTP 500, so that `up` is 0.

    Scrapes may overlap on several threads: the lock guards the reader, which has a cache.
    """

    def __init__(self) -> None:
        self._reader = RunsReader()
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            all_runs = self._reader.read()
            histories = [_read_history(path) for path in list_histories(runs_folder())]
        yield from build_families(all_runs, histories)

    def describe(self) -> list[Metric]:
        """Nothing, because the registry would otherwise read every run to learn the names."""
        return []


def render_metrics() -> str:
    """The response to a scrape at this moment."""
    return generate_latest(_create_registry()).decode()


def serve_metrics(host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Serve `/metrics` on a thread. EndpointError if this address cannot be used."""
    try:
        return start_http_server(port, host, _create_registry())
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"metrics: cannot listen on {host}:{port}: {reason}; choose another --port or --host"
        raise EndpointError(message) from error


def _read_history(path: Path) -> History:
    """A history. A file that cannot be read counts as one unreadable line, so that the metric shows it."""
    try:
        return read_history(path)
    except OSError:
        return History((), 1)


def _create_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_RunsCollector())
    return registry
