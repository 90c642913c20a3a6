"""The requests of a run to its Prefect server, on a separate thread: a server that hangs delays no step."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import NamedTuple

from prefect.client.orchestration import SyncPrefectClient

from torchyard.common.log import get_log
from torchyard.common.outbox import Outbox, OutboxSettings, RefusedError

from . import states

# Quiet, because Prefect's client logs its own errors.
_SETTINGS = OutboxSettings(retry_s=1.0, tick_s=3.0, in_order=False, is_quiet=True)
PrefectCall = Callable[[SyncPrefectClient], None]


class _NamedCall(NamedTuple):
    """A call, and its key for the log."""

    key: str
    call: PrefectCall


class PrefectRequests:
    """An outbox of calls to Prefect, which are made between `start` and `close`.

    A newer call with the same key replaces one that has not been made. Depending on Prefect's response, a call

        succeeds                       leaves the outbox, and its future is done
        is refused                     leaves the outbox, and its future contains the error
        gets no response or a 5xx      stays in the outbox and is repeated; the others do not wait for it
        raises NotRecordedError        the same
    """

    def __init__(self, poll: PrefectCall) -> None:
        """`poll`: a call that is also made every few seconds."""
        self._client: SyncPrefectClient | None = None
        self._clients = ExitStack()
        self._outbox: Outbox[_NamedCall] = Outbox(
            "Prefect",
            self._deliver,
            _SETTINGS,
            on_tick=lambda: self.send("state", poll),
            close=self._clients.close,
        )
        self._has_given_up = False

    def start(self) -> None:
        self._outbox.start()

    def send(self, key: str, call: PrefectCall) -> Future[None]:
        """Queue a call in place of a pending call with this key; return the future of its result."""
        return self._outbox.put(_NamedCall(key, call), key)

    def discard(self, key: str) -> None:
        """Do not make the pending call with this key."""
        self._outbox.discard(key)

    def give_up(self) -> None:
        """Do not wait for pending calls at `close`: Prefect has not responded for long enough."""
        self._has_given_up = True

    def close(self, timeout_s: float) -> None:
        """Make the pending calls, for at most `timeout_s` seconds, and end the thread.

        Calls that are still pending then are dropped, all of them if `timeout_s` is 0 or the server did not respond
        before. The call that is being made is waited for until its own time limit, because a state that it sets must
        not overwrite the flow's final state.
        """
        if timeout_s and not self._has_given_up:
            self._outbox.finish(timeout_s)
        self._outbox.stop(states.CALL_TIMEOUT_S)

    def _deliver(self, items: Sequence[_NamedCall]) -> int:
        """Make one call. RefusedError if Prefect refuses it, any other error if it must be repeated."""
        (pending,) = items
        if self._client is None:
            self._client = self._clients.enter_context(states.open_bounded_client())
        try:
            pending.call(self._client)
        except Exception as error:
            if states.is_transient_error(error):
                raise
            get_log().debug("Prefect refuses %s: %s", pending.key, error)
            raise RefusedError from error
        return 1
