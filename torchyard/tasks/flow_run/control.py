"""How Prefect controls a run: cancels, suspensions and restarts of its flow run."""

import asyncio
import contextlib
import math
import sys
import threading
import time
from typing import Self
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
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
from prefect.states import Crashed, Running
from prefect.utilities.urls import url_for

from torchyard.common.log import get_log
from torchyard.run.signals import CancelRequested

from . import states
from .requests import PrefectCall, PrefectRequests

_PENDING_TIMEOUT_S = 10.0  # for the calls that are pending at the end of a run
_SIGNAL_TIMEOUT_S = 3.0  # for the signal of a cancel to arrive; a dead worker sends none
_NO_SUSPENSION = "a run cannot be suspended, because its job would keep training: cancel it, and retry it later"


class PrefectControl:
    """Connect a run to Prefect: a regular check whether the run was cancelled or suspended.

    Implements torchyard/run/control.py's RunControl. Use it as a context manager around the run; PrefectSink shares
    its `requests`, which are made only within the block.

    Threads. The state of the flow run is checked on the thread of `requests`. The methods may be called on any thread.

    What blocks. `is_cancelled` waits up to `_SIGNAL_TIMEOUT_S` for the response, the end of the block up to
    `_PENDING_TIMEOUT_S` for pending calls, unless it is left by an error; `is_retry_requested` makes its own request.
    Everything else returns immediately.

    Errors. Only `check_cancelled` raises.
    """

    stops: tuple[type[BaseException], ...] = (TerminationSignal,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.recovery")
    is_automatic = True

    def __init__(self, run_id: str, count: int = 1) -> None:
        """`run_id`: of the flow run. `count`: how many processes have started it."""
        self.count = count
        self.flow_run_id = run_id
        self.link = url_for("flow-run", obj_id=run_id) or ""
        self.requests = PrefectRequests(self._poll_state)
        self.stop_exception: BaseException | None = None  # the last argument of `is_spurious_stop`
        self._run_id = UUID(run_id)

        # Written on the thread of `requests`.
        self._cancelled_at = math.inf  # when a cancel was first read, in monotonic seconds
        self._is_parent_gone = False
        self._ancestor_ids: tuple[UUID, ...] | None = None  # None until Prefect has listed them once
        self._parent_stopped = _get_parent_stop_event()

    def __enter__(self) -> Self:
        self.requests.start()
        if self.count > 1:  # the first process has lost none
            self.requests.send("lost", _build_lost_steps_call(str(self._run_id), self.count))
        _ignore_suspension()
        return self

    def __exit__(self, *error: object) -> None:
        is_left_by_error = any(error)
        self.requests.close(0.0 if is_left_by_error else _PENDING_TIMEOUT_S)

    def check_cancelled(self) -> None:
        """Raise CancelRequested if the run was cancelled or its flow was stopped, and no signal has arrived in time."""
        if self._is_parent_gone or time.monotonic() - self._cancelled_at > _SIGNAL_TIMEOUT_S:
            raise CancelRequested("a flow run was cancelled or stopped, and no signal has arrived here")

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled; without a response within `_SIGNAL_TIMEOUT_S`, what the last check found."""
        with contextlib.suppress(Exception):
            self.requests.send("state", self._poll_state).result(_SIGNAL_TIMEOUT_S)
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

    def is_retry_requested(self, active_count: int) -> bool:
        return states.has_user_request(str(self._run_id), active_count)

    # --- on the thread of `requests`

    def _poll_state(self, client: SyncPrefectClient) -> None:
        """Check whether a user has cancelled or suspended the run, or cancelled a flow run that contains it."""
        polled_at = time.monotonic()
        own_run = client.read_flow_run(self._run_id)
        if self._ancestor_ids is None:
            self._ancestor_ids = states.list_ancestors(client, own_run)
        state = own_run.state
        ancestor_states = [client.read_flow_run(ancestor_id).state for ancestor_id in self._ancestor_ids]
        if any(map(states.is_cancelled, (state, *ancestor_states))):
            self._cancelled_at = min(self._cancelled_at, polled_at)
        elif self._parent_stopped.is_set() and state and state.is_running():  # not running: the flow is returning
            self._is_parent_gone = True
        elif state and state.is_paused():
            get_log().warning("%s; its state is Running again", _NO_SUSPENSION)
            client.set_flow_run_state(self._run_id, Running(message=_NO_SUSPENSION), force=True)


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
    """A call that sets the unfinished task runs of this run's earlier processes to Crashed; else they stay Running.

    `count`: how many processes have started the run. Prefect records a task run late, and that of this process has the
    count 0 until it is recorded as Running.
    """

    def call(client: SyncPrefectClient) -> None:
        state_types = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        live_filter = TaskRunFilter(state=TaskRunFilterState(type=state_types))
        run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id)]))
        for lost_task in client.read_task_runs(flow_run_filter=run_filter, task_run_filter=live_filter):
            if 1 <= lost_task.flow_run_run_count < count:
                client.set_task_run_state(lost_task.id, Crashed(message="its process was lost"), force=True)

    return call
