"""The two ends of a process that carries a run: how it begins, and what becomes of whatever ends it."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from tasks.flow_runs import obtain_key
from tasks.reporter import end_lost_steps, ignore_suspension
from torchyard.common.log import log
from torchyard.machines import processes
from torchyard.model.errors import LeftError, OwnedError, TorchyardError
from torchyard.model.run import End
from torchyard.pods import seal
from torchyard.run import watchdog as guarding
from torchyard.run.folder_lease import held, renewed_at
from torchyard.run.recovery import asked_by_person
from torchyard.run.resume import LOSSES, Entry, entry
from torchyard.run.runner import PAGE_TIMEOUT_S, Line
from torchyard.run.signals import STOPS, Hold, stopper
from torchyard.run.sweep import ended

GUARD = str(Path(guarding.__file__))


def carry(line: Line) -> State[Any]:
    """From wherever the run is to its end. OwnedError where a process on another machine carries it."""
    seal.source = obtain_key
    with line.folder.owned(), line.reporter:
        lost = line.reporter.send("lost", end_lost_steps(line.run_id, flow_run.run_count))
        if flow_run.run_count > 1:
            adopt(line)
        how = entry(line.folder.events(), lambda: asked_by_person(line.run_id))
        begin = first(line, how)
        facts = {"host": socket.gethostname(), "lost_at": renewed_at(line.folder)}
        line.folder.note("start", entry=how, run=line.run_id, count=flow_run.run_count, first=begin, **facts)
        if how not in ("echo", "give-up"):
            return go_on(line, how, begin)
        with contextlib.suppress(Exception):  # away, or slow: it says so itself
            lost.result(PAGE_TIMEOUT_S)
        return give_up(line) if how == "give-up" else echo(line, line.folder.last("end"))


def go_on(line: Line, how: Entry, begin: int) -> State[Any]:
    """Bring the run to its end; a guard does so where this process cannot."""
    watcher = guard(line)
    ignore_suspension()
    with Hold() as signals, held(line.folder, line.profile.deadlines.lease):
        line.remember()
        try:
            if how == "finish":
                end, sentence = reopen(line)
            else:
                end, sentence = protect(line, lambda: line.go(begin), signals)
            signals.begin()
            watcher.tell("ending")
            line.say_ending(end, sentence)
            report = line.finish(end, sentence)
        except OwnedError as error:
            line.folder.note("end", end="moved", by="flow", sentence=str(error))
            watcher.tell("done")
            raise
        except LeftError as error:
            return leave(line, error)
        watcher.tell("done")
    return ended(report.end, report.sentence)


def adopt(line: Line) -> None:
    """Go on where another machine was, if the run lives in a cluster."""
    from torchyard.run import takeover

    takeover.adopt(line.folder, line.profile, line.run_id)


def first(line: Line, how: Entry) -> int:
    """The first attempt of the budget: a new one, or where the budget of the process before began."""
    begun = line.folder.attempts()
    return (begun[-1] if begun else 0) + 1 if how == "fresh" else int(line.folder.last("start").get("first", 1))


def reopen(line: Line) -> tuple[End, str]:
    """The end that an earlier process was bringing about, and the attempt that it may have left open."""
    begun, past = line.folder.attempts(), line.folder.last("ending")
    intent = line.folder.intent(begun[-1]) if begun else None
    if intent:
        line.open, line.plan = (begun[-1], intent.plan), intent.plan
    return past["end"], past["sentence"]


def protect(line: Line, work: Callable[[], tuple[End, str]], signals: Hold) -> tuple[End, str]:
    """Whatever happens becomes an end with a sentence: what comes after must come.

    LeftError where what happened says nothing of the job, and the job may run: it is left alone.
    """
    try:
        return work()
    except OwnedError:
        raise
    except TorchyardError as error:
        if line.may_run:
            raise LeftError(str(error)) from error
        return "failed", str(error)
    except STOPS as stop:
        if is_slot_lost(stop):
            log().warning(
                "Prefect has taken the run's concurrency slot away, as it could not be renewed; the job goes on"
            )
            return protect(line, work, signals)
        signals.begin()
        if line.reporter.is_cancelled():
            return "cancelled", "cancelled through Prefect"
        return "stopped", f"stopped by {stopper(stop)}"
    except Exception as error:
        log().exception("a fault in torchyard itself")
        sentence = f"a fault in torchyard itself: {type(error).__name__}: {error}"
        if line.may_run:
            raise LeftError(sentence) from error
        return "failed", sentence


def is_slot_lost(stop: BaseException) -> bool:
    """Whether Prefect's client has given up renewing the run's concurrency slot: it cancels a flow for nothing else."""
    context = FlowRunContext.get()
    limited = context is not None and context.flow is not None and context.flow.timeout_seconds is not None
    return isinstance(stop, asyncio.CancelledError) and not limited


def guard(line: Line) -> processes.Guard:
    finish = (sys.executable, "-m", "torchyard.run.sweep", "LOST", str(line.folder.path))
    return processes.Guard(("-I", "-S", GUARD, line.profile.on_launcher_lost, *finish))


def echo(line: Line, end: dict[str, Any]) -> State[Any]:
    line.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
    log().info("this run has ended already: %s", end["sentence"])
    return ended(end["end"], end["sentence"])


def leave(line: Line, error: LeftError) -> State[Any]:
    """End this process as one that was lost; its guard sees to it that the run comes back."""
    line.folder.note("left", sentence=str(error))
    log().error("%s; see %s/journal", error, line.folder.path)
    return State(type=StateType.CRASHED, name="Crashed", message=str(error))


def give_up(line: Line) -> State[Any]:
    lease = max(line.folder.lease_left(), 0)
    sentence = (
        f"given up: {LOSSES} processes that carried this run were lost in a row at the same step; the job, if any, "
        f"lives on for {lease:.0f} s; see {line.folder.path}/journal, mend the cause, then retry this run"
    )
    line.folder.note("end", end="gave-up", by="flow", sentence=sentence)
    log().error("%s", sentence)
    return ended("gave-up", sentence)
