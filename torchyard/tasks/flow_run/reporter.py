"""The requests of a run to its Prefect server, on a separate thread: a server that hangs delays no step.

torchyard/pages/report.py renders the report page; this module sends it.
"""

import asyncio
import contextlib
import contextvars
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run, task_run
from prefect.states import Crashed, Running
from prefect.utilities.urls import url_for

from torchyard.common.escaping import escape_paragraph
from torchyard.common.log import get_log
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.pages.report import MAX_SENTENCE_CHARS, render_markdown
from torchyard.run.signals import CancelRequested
from torchyard.trend.page import render_history

from . import states
from .late_reports import keep_pages
from .names import build_tags, format_end_tag, format_run_name
from .pages import RunPages
from .result import build_result, build_result_artifact

_POLL_INTERVAL_S = 3.0  # between two checks of the run's state in Prefect
_RETRY_INTERVAL_S = 1.0
_PAGE_TIMEOUT_S = 10.0  # for all pages of the report; the end of the run waits no longer
_SIGNAL_TIMEOUT_S = 3.0  # for the signal of a cancel to arrive; a dead worker sends none
_NO_SUSPENSION = "a run cannot be suspended, because its job would keep training: cancel it, and retry it later"
PrefectCall = Callable[[SyncPrefectClient], None]


class _PendingCall(NamedTuple):
    """A call in the mailbox, and the future that its sender waits on."""

    call: PrefectCall
    future: Future[None]


class PrefectReporter:
    """Connect a run to Prefect: a mailbox of calls, and a regular check whether the run was cancelled or suspended.

    Use it as a context manager around the run. `check_cancelled`, `is_cancelled`, `is_spurious_stop` and the `show_`
    methods implement torchyard/run/reporter.py's Reporter.

    Threads. `__enter__` starts one daemon thread, `_run`, which makes all calls to Prefect with one client, one after
    the other, and checks the run's state every `_POLL_INTERVAL_S`. `__exit__` stops it and waits up to
    `CALL_TIMEOUT_S`, because a state that the thread is about to set must not overwrite the flow's final state. The
    other methods may be called on any thread.

    Mailbox. `send` queues a call under a key and returns immediately; a newer call with the same key replaces one that
    has not been made, and the future of the replaced call is then never completed. `_condition` guards
    `_pending_calls` and wakes the thread. Depending on Prefect's response, a call

        succeeds                       leaves the mailbox, and its future is done
        is refused                     leaves the mailbox, and its future contains the error
        gets no response or a 5xx      stays in the mailbox and is repeated every `_RETRY_INTERVAL_S`

    What blocks. `show_report` and `flush` wait up to `_PAGE_TIMEOUT_S` for the futures, `is_cancelled` up to
    `_SIGNAL_TIMEOUT_S`; `is_retry_requested` makes its own request. Everything else returns immediately.

    Errors. Only `check_cancelled` raises. A call that Prefect refuses is logged and dropped; a page of the report that
    is not published in time is kept in the run's folder, for the next sweep.

    Example: `reporter.send("page", lambda client: client.create_artifact(page)).result(10)`
    """

    stops: tuple[type[BaseException], ...] = (TerminationSignal,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.recovery")

    def __init__(self, run_id: str, count: int = 1, profile: str = "") -> None:
        """`run_id`: of the flow run. `count`: how many processes have started it. `profile`: for the pages' keys."""
        self.count = count
        self.flow_run_id = run_id
        self.link = url_for("flow-run", obj_id=run_id) or ""
        self.stop_exception: BaseException | None = None  # the last argument of `is_spurious_stop`
        self._run_id = UUID(run_id)
        self._pages = RunPages(self._run_id, profile)
        self._tags: tuple[str, ...] = ()  # set by `label_flow_run`; empty: the flow run keeps its own tags
        self._pending_calls: dict[str, _PendingCall] = {}
        self._condition = threading.Condition()
        self._stop_event = threading.Event()

        # Written on the reporter's thread.
        self._polled_at = -math.inf
        self._cancelled_at = math.inf  # when a cancel was first read, in monotonic seconds
        self._is_parent_gone = False
        self._ancestor_ids: tuple[UUID, ...] | None = None  # None until Prefect has listed them once
        self._parent_stopped = _get_parent_stop_event()

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect's settings and the run's log belong to a context
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="reporter")
        self._thread.start()
        self._lost_steps_future = self.send("lost", _build_lost_steps_call(str(self._run_id), self.count))
        _ignore_suspension()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        with self._condition:
            self._condition.notify()
        self._thread.join(states.CALL_TIMEOUT_S)

    def send(self, key: str, call: PrefectCall) -> Future[None]:
        """Queue a call to Prefect, in place of a pending call with this key; return the future of its result."""
        future: Future[None] = Future()
        with self._condition:
            self._pending_calls[key] = _PendingCall(call, future)
            self._condition.notify()
        return future

    def check_cancelled(self) -> None:
        """Raise CancelRequested if the run was cancelled or its flow was stopped, and no signal has arrived in time."""
        if self._is_parent_gone or time.monotonic() - self._cancelled_at > _SIGNAL_TIMEOUT_S:
            raise CancelRequested("a flow run was cancelled or stopped, and no signal has arrived here")

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled; without a response within `_SIGNAL_TIMEOUT_S`, what the last check found."""
        with contextlib.suppress(Exception):
            self.send("state", self._poll_state).result(_SIGNAL_TIMEOUT_S)
        return self._cancelled_at < math.inf

    def will_be_resumed(self) -> bool:
        return states.will_be_resumed()

    def is_spurious_stop(self, stop_exception: BaseException) -> bool:
        """Whether Prefect's client stopped the flow only because it could not renew the run's concurrency slot.

        That is the only reason why it cancels a flow without a timeout. The exception is kept in `stop_exception`.
        """
        self.stop_exception = stop_exception
        context = FlowRunContext.get()
        has_timeout = context is not None and context.flow is not None and context.flow.timeout_seconds is not None
        if not isinstance(stop_exception, asyncio.CancelledError) or has_timeout:
            return False
        get_log().warning(
            "Prefect has released the run's concurrency slot, because it could not be renewed; the job keeps running"
        )
        return True

    def is_retry_requested(self) -> bool:
        return states.has_user_request(str(self._run_id))

    def show_progress(self, progress: str, percent: float) -> None:
        """Show the job's progress in Prefect. Called in the task run that waits, whose name shows it too."""
        self._pages.set_waiting_task(task_run.id, progress)
        self.send("progress", lambda client: self._pages.publish_progress(client, progress, percent))

    def show_page(self, name: str, render: Callable[[], str]) -> None:
        """Show a page among the run's artifacts; `render` is called on the reporter's thread."""

        def call(client: SyncPrefectClient) -> None:
            self._pages.publish_page(client, name, ArtifactCreate(type="markdown", data=render()))

        self.send(f"page {name}", call)

    def label_flow_run(self, profile: Profile) -> None:
        """Name the flow run after its profile, unless a user has named it, and tag it with where it runs.

        Only for a flow run that is itself the run: a user's flow that contains runs keeps its name.
        """
        name = format_run_name(profile, str(self._run_id), flow_run.name or "")
        self._tags = build_tags(profile, flow_run.tags)
        self.send("name", lambda client: _update_flow_run(client, self._run_id, name=name, tags=self._tags))

    def show_report(self, report: Report) -> None:
        """Publish the report, the result and the history; what Prefect does not take in time is kept for a sweep."""
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        self.send("wait", self._pages.rename_waiting_task)
        if self._tags:
            tags = (*self._tags, format_end_tag(report))
            self.send("tags", lambda client: _update_flow_run(client, self._run_id, tags=tags))

        pages = self._build_end_pages(report)
        futures = {name: self._send_artifact(name, page) for name, page in pages.items()}
        late_pages: list[ArtifactCreate] = []
        for name, future in futures.items():
            try:
                future.result(max(deadline - time.monotonic(), 0))
            except FutureTimeoutError:
                late_pages.append(pages[name])
            except Exception as error:
                get_log().warning("cannot publish the %s in Prefect: %s", name, error)
        if late_pages:
            get_log().warning(
                "Prefect has not taken the report within %.0f s; the next sweep publishes it", _PAGE_TIMEOUT_S
            )
        keep_pages(Path(report.folder), late_pages)

    def _build_end_pages(self, report: Report) -> dict[str, ArtifactCreate]:
        """The pages of the run's end, by what they show."""
        sentence = escape_paragraph(report.sentence, MAX_SENTENCE_CHARS)
        pages = {
            "report": self._build_page(f"report-{report.profile}", render_markdown(report), sentence),
            "result": build_result_artifact(self._run_id, build_result(report)),
        }
        history = render_history(report.history)
        if history:
            trend_sentence = escape_paragraph(report.trend.sentence, MAX_SENTENCE_CHARS) if report.trend else ""
            pages["history"] = self._build_page(f"trend-{Path(report.history).stem}", history, trend_sentence)
        return pages

    def _build_page(self, key: str, text: str, description: str) -> ArtifactCreate:
        return ArtifactCreate(key=key, type="markdown", description=description, data=text, flow_run_id=self._run_id)

    def _send_artifact(self, name: str, artifact: ArtifactCreate) -> Future[None]:
        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(artifact)

        return self.send(f"artifact {name}", call)

    def flush(self) -> None:
        """Wait up to `_PAGE_TIMEOUT_S` for the calls that are pending now."""
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        futures = [self._lost_steps_future]
        futures += [pending.future for pending in list(self._pending_calls.values())]
        for future in futures:
            with contextlib.suppress(Exception):  # Prefect is unreachable or slow
                future.result(max(deadline - time.monotonic(), 0))

    # --- on the reporter's thread

    def _run(self) -> None:
        """Make the calls until `__exit__`; after any error continue with a new client."""
        while not self._stop_event.is_set():
            try:
                with states.open_bounded_client() as client:
                    self._process_calls(client)
            except Exception as error:
                get_log().debug("no connection to Prefect: %s", error)
                self._stop_event.wait(_RETRY_INTERVAL_S)

    def _process_calls(self, client: SyncPrefectClient) -> None:
        """Make pending calls until `__exit__`; a call that failed for a transient reason is repeated.

        Every `_POLL_INTERVAL_S` it enqueues `_poll_state`. Calls that are pending at the end are not made.
        """
        while not self._stop_event.is_set():
            if time.monotonic() - self._polled_at > _POLL_INTERVAL_S:
                self.send("state", self._poll_state)
            for key, pending in list(self._pending_calls.items()):
                if self._stop_event.is_set():
                    return
                self._execute(client, key, pending)
            with self._condition:
                if self._stop_event.is_set():  # set and notified before this thread waits
                    return
                has_pending_calls = bool(self._pending_calls)
                self._condition.wait(_RETRY_INTERVAL_S if has_pending_calls else _POLL_INTERVAL_S)

    def _execute(self, client: SyncPrefectClient, key: str, pending: _PendingCall) -> None:
        """Make one call and complete its future; on a transient error leave it in the mailbox."""
        refusal: Exception | None = None
        try:
            pending.call(client)
        except Exception as error:
            if states.is_transient_error(error):
                return
            refusal = error
            get_log().debug("Prefect refuses %s: %s", key, error)
        with self._condition:
            if self._pending_calls.get(key) is pending:  # not if a newer call has replaced it meanwhile
                del self._pending_calls[key]
        if refusal:
            pending.future.set_exception(refusal)
        else:
            pending.future.set_result(None)

    def _poll_state(self, client: SyncPrefectClient) -> None:
        """Check whether a user has cancelled or suspended the run, or cancelled a flow run that contains it."""
        self._polled_at = time.monotonic()
        own_run = client.read_flow_run(self._run_id)
        if self._ancestor_ids is None:
            self._ancestor_ids = states.list_ancestors(client, own_run)
        state = own_run.state
        ancestor_states = [client.read_flow_run(ancestor_id).state for ancestor_id in self._ancestor_ids]
        if any(map(states.is_cancelled, (state, *ancestor_states))):
            self._cancelled_at = min(self._cancelled_at, self._polled_at)
        elif self._parent_stopped.is_set() and state and state.is_running():  # not running: the flow is returning
            self._is_parent_gone = True
        elif state and state.is_paused():
            get_log().warning("%s; its state is Running again", _NO_SUSPENSION)
            client.set_flow_run_state(self._run_id, Running(message=_NO_SUSPENSION), force=True)


def _update_flow_run(client: SyncPrefectClient, run_id: UUID, **fields: Any) -> None:
    client.update_flow_run(run_id, **fields)


def _get_parent_stop_event() -> threading.Event:
    """The event that Prefect sets when the flow of a submitted task ends or is stopped.

    A signal reaches only that flow's main thread, not its tasks' threads. Prefect has no public name for the event: if
    it is missing, an event that is never set is returned, and only a cancel ends such a run.
    """
    flow_context = FlowRunContext.get()
    task_context = TaskRunContext.get()
    cancel_events = getattr(getattr(flow_context, "task_runner", None), "_cancel_events", {})
    event = cancel_events.get(task_context.task_run.id) if task_context else None
    return event or threading.Event()


def _ignore_suspension() -> None:
    """Prevent Prefect's engine from leaving a suspended run, and its job, at the next step.

    The engine marks a suspension in the flow run's context, and every task that starts obeys the mark.
    """
    request = getattr(FlowRunContext.get(), "flow_run_suspension_request", None)
    if request is not None:
        request.mark_requested = lambda state: None


def _build_lost_steps_call(run_id: str, count: int) -> PrefectCall:
    """A call that sets the unfinished task runs of this run's earlier processes to Crashed; else they stay Running."""

    def call(client: SyncPrefectClient) -> None:
        state_types = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        live_filter = TaskRunFilter(state=TaskRunFilterState(type=state_types))
        run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id)]))
        for lost_task in client.read_task_runs(flow_run_filter=run_filter, task_run_filter=live_filter):
            if lost_task.flow_run_run_count < count:
                client.set_task_run_state(lost_task.id, Crashed(message="its process was lost"), force=True)

    return call
