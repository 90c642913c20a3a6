"""`torchyard metrics`: the state of all runs for Prometheus, printed once or served."""

import contextlib
import gc
import signal
import threading
from collections.abc import Iterator

from torchyard.exporter.endpoint import render_metrics, serve_metrics

# If a thread that has just started for a request handles a signal, only a wait that ends lets this one run its handler.
_SIGNAL_CHECK_INTERVAL_S = 0.5


def print_metrics() -> int:
    """Print the response to one scrape."""
    print(render_metrics(), end="")
    return 0


def serve_until_stopped(host: str, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C. EndpointError if the address cannot be used.

    A process that was started with SIGINT ignored, such as by nohup, keeps ignoring it.
    """
    gc.enable()  # disabled for the short verbs (console.py)
    stop_event = threading.Event()
    # Before the address is printed: its reader may stop this process immediately.
    with _handle_stop_signals(stop_event):
        server, _ = serve_metrics(host, port)
        print(f"http://{host}:{server.server_port}/metrics", flush=True)
        while not stop_event.wait(_SIGNAL_CHECK_INTERVAL_S):
            pass
        server.shutdown()
    return 0


@contextlib.contextmanager
def _handle_stop_signals(stop_event: threading.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C set the event, except a signal that is ignored; then restore the handlers."""
    handled = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
    old_handlers = {number: signal.signal(number, lambda *_: stop_event.set()) for number in handled}
    try:
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)
