"""The endpoint that Prometheus scrapes: each scrape reads the run folders anew."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric

from torchyard.exporter.facts import RunsReader
from torchyard.exporter.families import build_families
from torchyard.model.errors import EndpointError
from torchyard.run.folder import runs_folder
from torchyard.trend.records import History, list_histories, read_history


class _RunsCollector:
    """What prometheus_client calls for each scrape; an error becomes HTTP 500, so that `up` is 0."""

    def __init__(self) -> None:
        self._reader, self._lock = RunsReader(), Lock()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            found = self._reader.read()
            histories = [_read_history(path) for path in list_histories(runs_folder())]
        yield from build_families(found, histories)

    def describe(self) -> list[Metric]:
        """Nothing: else the registry would read every run to learn the names."""
        return []


def render_metrics() -> str:
    """What a scrape would get now."""
    return generate_latest(_make_registry()).decode()


def serve_metrics(host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Serve `/metrics` on a thread; EndpointError if nothing can listen there."""
    try:
        return start_http_server(port, host, _make_registry())
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EndpointError(
            f"metrics: cannot listen on {host}:{port}: {why}; choose another --port or --host"
        ) from error


def _read_history(path: Path) -> History:
    """A history; one that cannot be read is at least one line that cannot be read."""
    try:
        return read_history(path)
    except OSError:
        return History((), 1)


def _make_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_RunsCollector())
    return registry
