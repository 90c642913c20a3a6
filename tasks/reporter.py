"""What a run tells Prefect and asks of it, on a thread of its own: a server that hangs holds no step up."""

import asyncio
import contextlib
import contextvars
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import Self
from uuid import UUID

from httpx import HTTPStatusError, TransportError
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Crashed, Running

from tasks.recovery import has_person_request
from torchyard.common.escaping import escape_paragraph
from torchyard.common.log import get_log
from torchyard.model.run import Report
from torchyard.run.report import MAX_SENTENCE_CHARS, render_markdown
from torchyard.run.signals import CancelRequested

_POLL_INTERVAL_S = 3.0  # between two looks at what people ask of the run
_CALL_TIMEOUT_S = 5.0  # of one call; what fails is tried again, with the latest value
_RETRY_INTERVAL_S = 1.0
_PAGE_TIMEOUT_S = 10.0  # that Prefect may take for the report: the end of the run does not wait longer
_SIGNAL_TIMEOUT_S = 3.0  # that the signal of a cancel may take; a worker that died sends none
_TRANSIENT_STATUSES = (401, 403, 408, 429)  # answers below 500 that may be others a moment later
_NO_SUSPENSION = "a run cannot be suspended, as its job would train on: cancel it, and retry it later"
PrefectCall = Callable[[SyncPrefectClient], None]


class PrefectReporter:
    """A mailbox for Prefect, where the latest call of a key wins, and a regular look at the state of the run.

    A call that Prefect does not answer stays in the mailbox; one that it refuses is dropped.
    """

    stops: tuple[type[BaseException], ...] = (TerminationSignal,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", "tasks.recovery")

    def __init__(self, run_id: str, count: int = 1) -> None:
        self._run_id, self.count = UUID(run_id), count
        self._artifact: UUID | None = None
        self._calls: dict[str, tuple[PrefectCall, Future[None]]] = {}
        self._news = threading.Condition()
        self._over = threading.Event()
        self._cancelled_at = math.inf
        self._looked_at = -math.inf

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect's settings and the run's log belong to a context
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="reporter")
        self._thread.start()
        self._lost_steps = self.send("lost", _end_lost_steps(str(self._run_id), self.count))
        _ignore_suspension()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._news:
            self._news.notify()
        self._thread.join(_CALL_TIMEOUT_S)  # a state that it is about to set must not follow the final one

    def send(self, key: str, call: PrefectCall) -> Future[None]:
        """Have something done in Prefect soon; it takes the place of an earlier call of this key that is not done."""
        done: Future[None] = Future()
        with self._news:
            self._calls[key] = call, done
            self._news.notify()
        return done

    def check_cancelled(self) -> None:
        """CancelRequested where somebody cancelled the run a moment ago, and no signal has told it."""
        if time.monotonic() - self._cancelled_at > _SIGNAL_TIMEOUT_S:
            raise CancelRequested

    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the run, as far as Prefect answers within a few seconds."""
        with contextlib.suppress(Exception):
            self.send("look", self._look).result(_SIGNAL_TIMEOUT_S)
        return self._cancelled_at < math.inf

    def is_void(self, stop: BaseException) -> bool:
        """Whether Prefect's client has given up renewing the run's slot: it cancels a flow for nothing else."""
        context = FlowRunContext.get()
        limited = context is not None and context.flow is not None and context.flow.timeout_seconds is not None
        if not isinstance(stop, asyncio.CancelledError) or limited:
            return False
        get_log().warning(
            "Prefect has taken the run's concurrency slot away, as it could not be renewed; the job goes on"
        )
        return True

    def was_asked_again(self) -> bool:
        return has_person_request(str(self._run_id))

    def show_progress(self, name: str, percent: float) -> None:
        """Show in Prefect how much is done."""
        runs = {"flow_run_id": flow_run.id, "task_run_id": task_run.id}

        def call(client: SyncPrefectClient) -> None:
            if self._artifact:
                client.update_artifact(self._artifact, ArtifactUpdate(data=percent))
            else:
                about = {"key": "progress", "type": "progress", "description": name}
                self._artifact = client.create_artifact(ArtifactCreate(data=percent, **about, **runs)).id

        self.send("progress", call)

    def show_report(self, report: Report) -> None:
        """Show the report in Prefect; a server that is away costs the page, not the report."""
        said = escape_paragraph(report.sentence, MAX_SENTENCE_CHARS)
        about = {"key": f"report-{report.profile}", "type": "markdown", "description": said}
        page = ArtifactCreate(data=render_markdown(report), flow_run_id=self._run_id, **about)

        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(page)

        try:
            self.send("report", call).result(_PAGE_TIMEOUT_S)
        except NotYetError:
            get_log().warning("the report is not in Prefect: no answer for %.0f s", _PAGE_TIMEOUT_S)
        except Exception as error:
            get_log().warning("the report is not in Prefect: %s", error)

    def flush(self) -> None:
        with contextlib.suppress(Exception):  # away, or slow: it says so itself
            self._lost_steps.result(_PAGE_TIMEOUT_S)

    # --- on the reporter's own thread

    def _run(self) -> None:
        """Serve the mailbox until the run is over, whatever happens to Prefect."""
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            while not self._over.is_set():
                try:
                    with get_client(sync_client=True, httpx_settings={"timeout": _CALL_TIMEOUT_S}) as client:
                        self._serve(client)
                except Exception as error:
                    get_log().debug("no way to Prefect: %s", error)
                    self._over.wait(_RETRY_INTERVAL_S)

    def _serve(self, client: SyncPrefectClient) -> None:
        while not self._over.is_set():
            if time.monotonic() - self._looked_at > _POLL_INTERVAL_S:
                self.send("look", self._look)
            for key, (call, done) in list(self._calls.items()):
                if self._over.is_set():
                    return
                self._make(client, key, call, done)
            with self._news:
                undone = bool(self._calls)
                self._news.wait(_RETRY_INTERVAL_S if undone else _POLL_INTERVAL_S)

    def _make(self, client: SyncPrefectClient, key: str, call: PrefectCall, done: Future[None]) -> None:
        """Make one call; it stays in the mailbox where Prefect is away."""
        refusal = None
        try:
            call(client)
        except Exception as error:
            if _is_transient_error(error):
                return
            refusal = error
            get_log().debug("Prefect refuses %s: %s", key, error)
        with self._news:
            if self._calls.get(key) == (call, done):
                del self._calls[key]
        done.set_exception(refusal) if refusal else done.set_result(None)

    def _look(self, client: SyncPrefectClient) -> None:
        """See what people ask of the run."""
        self._looked_at = time.monotonic()
        state = client.read_flow_run(self._run_id).state
        if state and (state.is_cancelling() or state.is_cancelled()):
            self._cancelled_at = min(self._cancelled_at, self._looked_at)
        elif state and state.is_paused():
            get_log().warning("%s; its state is Running again", _NO_SUSPENSION)
            client.set_flow_run_state(self._run_id, Running(message=_NO_SUSPENSION), force=True)


def _is_transient_error(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in _TRANSIENT_STATUSES
    return isinstance(error, TransportError)


def _ignore_suspension() -> None:
    """Keep Prefect's engine from leaving a suspended run at its next step, and its job with it.

    The engine marks a request in the run's context, and every task that begins heeds it.
    """
    request = getattr(FlowRunContext.get(), "flow_run_suspension_request", None)
    if request is not None:
        request.mark_requested = lambda state: None


def _end_lost_steps(run_id: str, count: int) -> PrefectCall:
    """Crash the task runs of this run's earlier processes, which would be Running for ever."""

    def call(client: SyncPrefectClient) -> None:
        kinds = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        living = TaskRunFilter(state=TaskRunFilterState(type=kinds))
        this = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id)]))
        for lost in client.read_task_runs(flow_run_filter=this, task_run_filter=living):
            if lost.flow_run_run_count < count:
                client.set_task_run_state(lost.id, Crashed(message="its process was lost"), force=True)

    return call
