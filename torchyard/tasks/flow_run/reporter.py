"""What a run reports to Prefect and asks of it, on a thread of its own: a server that hangs delays no step.

The report page is written by torchyard/pages/report.py and sent from here.
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
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, Self
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
from .names import build_tags, format_end_tag, format_run_name
from .pages import RunPages
from .result import build_result, build_result_artifact

_POLL_INTERVAL_S = 3.0  # between two checks of the run's state in Prefect
_RETRY_INTERVAL_S = 1.0
_PAGE_TIMEOUT_S = 10.0  # how long Prefect may take for the report; the end of the run waits no longer
_SIGNAL_TIMEOUT_S = 3.0  # how long the signal of a cancel may take; a dead worker sends none
_NO_SUSPENSION = "a run cannot be suspended, as its job would train on: cancel it, and retry it later"
PrefectCall = Callable[[SyncPrefectClient], None]


class PrefectReporter:
    """A mailbox for Prefect, in which the latest call of a key wins, and a regular check of the run's state.

    What happens to a call, by Prefect's answer:
        done        it leaves the mailbox
        no answer   it stays, and is tried again every second
        refused     it is dropped, and its future holds the error

    Example: `reporter.send("page", lambda client: client.create_artifact(page)).result(10)`
    """

    stops: tuple[type[BaseException], ...] = (TerminationSignal,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.recovery")

    def __init__(self, run_id: str, count: int = 1, profile: str = "") -> None:
        self._run_id, self.count = UUID(run_id), count
        self.link = url_for("flow-run", obj_id=run_id) or ""
        self._pages, self._tags = RunPages(self._run_id, profile), tuple[str, ...]()
        self.report: Report | None = None
        self.stop_exception: BaseException | None = None
        self._pending_calls: dict[str, tuple[PrefectCall, Future[None]]] = {}
        self._condition = threading.Condition()
        self._stop_event = threading.Event()
        self._cancelled_at = math.inf
        self._polled_at = -math.inf
        self._ancestor_ids: tuple[UUID, ...] | None = None  # the flow runs around this one, once Prefect has said them
        self._parent_stopped, self._is_parent_gone = _get_parent_stop_event(), False

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect's settings and the run's log belong to a context
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="reporter")
        self._thread.start()
        self._lost_steps_call = self.send("lost", _build_lost_steps_call(str(self._run_id), self.count))
        _ignore_suspension()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        with self._condition:
            self._condition.notify()
        self._thread.join(states.CALL_TIMEOUT_S)  # a state that it is about to set must not overwrite the final one

    def send(self, key: str, call: PrefectCall) -> Future[None]:
        """Queue a call to Prefect; it replaces an earlier call of this key that is not done yet."""
        future: Future[None] = Future()
        with self._condition:
            self._pending_calls[key] = call, future
            self._condition.notify()
        return future

    def check_cancelled(self) -> None:
        """Raise CancelRequested if the run was cancelled a moment ago and no signal has arrived."""
        if self._is_parent_gone or time.monotonic() - self._cancelled_at > _SIGNAL_TIMEOUT_S:
            raise CancelRequested("a flow run was cancelled or stopped, and no signal has arrived here")

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled, as far as Prefect answers within a few seconds."""
        with contextlib.suppress(Exception):
            self.send("look", self._poll_state).result(_SIGNAL_TIMEOUT_S)
        return self._cancelled_at < math.inf

    def is_handed_on(self) -> bool:
        return states.is_handed_on()

    def is_void(self, stop_exception: BaseException) -> bool:
        """Whether Prefect's client has given up renewing the run's slot: it cancels a flow for no other reason."""
        self.stop_exception = stop_exception
        context = FlowRunContext.get()
        has_timeout = context is not None and context.flow is not None and context.flow.timeout_seconds is not None
        if not isinstance(stop_exception, asyncio.CancelledError) or has_timeout:
            return False
        get_log().warning(
            "Prefect has taken the run's concurrency slot away, as it could not be renewed; the job goes on"
        )
        return True

    def was_asked_again(self) -> bool:
        return states.has_user_request(str(self._run_id))

    def show_progress(self, progress: str, percent: float) -> None:
        """Show in Prefect how much is done."""
        self._pages.set_waiting_task(task_run.id, progress)
        self.send("progress", lambda client: self._pages.publish_progress(client, progress, percent))

    def show_page(self, name: str, render: Callable[[], str]) -> None:
        """Show a page among the run's artifacts; it is rendered on the reporter's thread."""

        def call(client: SyncPrefectClient) -> None:
            self._pages.publish_page(client, name, ArtifactCreate(type="markdown", data=render()))

        self.send(f"page {name}", call)

    def label_flow_run(self, profile: Profile) -> None:
        """Name the flow run after its profile, unless a user has named it, and tag it with where it runs.

        Only for a flow run that is the run: a user's flow keeps its name.
        """
        name, self._tags = (
            format_run_name(profile, str(self._run_id), flow_run.name or ""),
            build_tags(profile, flow_run.tags),
        )
        self.send("name", lambda client: _update_flow_run(client, self._run_id, name=name, tags=self._tags))

    def show_report(self, report: Report) -> None:
        """Show the report and the history in Prefect; an unreachable server costs the pages, not the report."""
        self.report, deadline = report, time.monotonic() + _PAGE_TIMEOUT_S
        self.send("wait", self._pages.rename_waiting_task)
        if self._tags:
            tags = (*self._tags, format_end_tag(report))
            self.send("tags", lambda client: _update_flow_run(client, self._run_id, tags=tags))
        sentence = escape_paragraph(report.sentence, MAX_SENTENCE_CHARS)
        futures = {"report": self._send_page(f"report-{report.profile}", render_markdown(report), sentence)}
        futures["result"] = self._send_artifact("result", build_result_artifact(self._run_id, build_result(report)))
        if history := render_history(report.history):
            trend_sentence = escape_paragraph(report.trend.sentence, MAX_SENTENCE_CHARS) if report.trend else ""
            futures["history"] = self._send_page(f"trend-{Path(report.history).stem}", history, trend_sentence)
        for name, future in futures.items():
            try:
                future.result(max(deadline - time.monotonic(), 0))
            except NotYetError:
                get_log().warning("the %s is not in Prefect: no answer for %.0f s", name, _PAGE_TIMEOUT_S)
            except Exception as error:
                get_log().warning("the %s is not in Prefect: %s", name, error)

    def _send_page(self, key: str, text: str, description: str) -> Future[None]:
        fields = {"key": key, "type": "markdown", "description": description}
        return self._send_artifact(key, ArtifactCreate(data=text, flow_run_id=self._run_id, **fields))

    def _send_artifact(self, key: str, page: ArtifactCreate) -> Future[None]:
        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(page)

        return self.send(key, call)

    def flush(self) -> None:
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        for future in [self._lost_steps_call, *(call_future for _, call_future in list(self._pending_calls.values()))]:
            with contextlib.suppress(Exception):  # Prefect is unreachable or slow
                future.result(max(deadline - time.monotonic(), 0))

    # --- on the reporter's own thread

    def _run(self) -> None:
        """Serve the mailbox until the run is over, whatever happens to Prefect."""
        while not self._stop_event.is_set():
            try:
                with states.open_bounded_client() as client:
                    self._process_calls(client)
            except Exception as error:
                get_log().debug("no connection to Prefect: %s", error)
                self._stop_event.wait(_RETRY_INTERVAL_S)

    def _process_calls(self, client: SyncPrefectClient) -> None:
        while not self._stop_event.is_set():
            if time.monotonic() - self._polled_at > _POLL_INTERVAL_S:
                self.send("look", self._poll_state)
            for key, (call, future) in list(self._pending_calls.items()):
                if self._stop_event.is_set():
                    return
                self._execute(client, key, call, future)
            with self._condition:
                has_pending_calls = bool(self._pending_calls)
                self._condition.wait(_RETRY_INTERVAL_S if has_pending_calls else _POLL_INTERVAL_S)

    def _execute(self, client: SyncPrefectClient, key: str, call: PrefectCall, future: Future[None]) -> None:
        """Make one call; it stays in the mailbox if Prefect is unreachable."""
        refused = None
        try:
            call(client)
        except Exception as error:
            if states.is_transient_error(error):
                return
            refused = error
            get_log().debug("Prefect refuses %s: %s", key, error)
        with self._condition:
            if self._pending_calls.get(key) == (call, future):
                del self._pending_calls[key]
        future.set_exception(refused) if refused else future.set_result(None)

    def _poll_state(self, client: SyncPrefectClient) -> None:
        """Check whether a user has cancelled or suspended the run, or cancelled one around it."""
        self._polled_at = time.monotonic()
        own_run = client.read_flow_run(self._run_id)
        if self._ancestor_ids is None:
            self._ancestor_ids = states.list_ancestors(client, own_run)
        state = own_run.state
        if any(
            map(
                states.is_cancelled,
                (state, *(client.read_flow_run(ancestor_id).state for ancestor_id in self._ancestor_ids)),
            )
        ):
            self._cancelled_at = min(self._cancelled_at, self._polled_at)
        elif self._parent_stopped.is_set() and state and state.is_running():  # not so if the flow returns
            self._is_parent_gone = True
        elif state and state.is_paused():
            get_log().warning("%s; its state is Running again", _NO_SUSPENSION)
            client.set_flow_run_state(self._run_id, Running(message=_NO_SUSPENSION), force=True)


def _update_flow_run(client: SyncPrefectClient, run_id: UUID, **fields: Any) -> None:
    client.update_flow_run(run_id, **fields)


def _get_parent_stop_event() -> threading.Event:
    """What Prefect sets if the flow around a submitted task ends or is stopped: a signal reaches only its main thread.

    It has no public name; without it only a cancel ends such a run.
    """
    flow_context, task_context = FlowRunContext.get(), TaskRunContext.get()
    cancel_events = getattr(getattr(flow_context, "task_runner", None), "_cancel_events", {})
    return (cancel_events.get(task_context.task_run.id) if task_context else None) or threading.Event()


def _ignore_suspension() -> None:
    """Keep Prefect's engine from leaving a suspended run, and its job, at the next step.

    The engine marks a request in the run's context, and every task that starts obeys it.
    """
    request = getattr(FlowRunContext.get(), "flow_run_suspension_request", None)
    if request is not None:
        request.mark_requested = lambda state: None


def _build_lost_steps_call(run_id: str, count: int) -> PrefectCall:
    """Set the task runs of this run's earlier processes to Crashed; they would stay Running for ever."""

    def call(client: SyncPrefectClient) -> None:
        state_types = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        live_filter = TaskRunFilter(state=TaskRunFilterState(type=state_types))
        run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id)]))
        for lost_task in client.read_task_runs(flow_run_filter=run_filter, task_run_filter=live_filter):
            if lost_task.flow_run_run_count < count:
                client.set_task_run_state(lost_task.id, Crashed(message="its process was lost"), force=True)

    return call
