"""`torchyard metrics`: the state of all runs for Prometheus, printed once or served."""

import gc

from torchyard.exporter.endpoint import render_metrics, serve_metrics


def print_metrics() -> int:
    """Print what a scrape would get."""
    print(render_metrics(), end="")
    return 0


def serve_until_stopped(host: str, port: int) -> int:
    """Serve until this process is stopped."""
    gc.enable()  # the short verbs do without (console.py)
    server, thread = serve_metrics(host, port)
    print(f"http://{host}:{server.server_port}/metrics", flush=True)
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()
    return 0
