"""The two ends of a process that carries a run: how it begins, and what becomes of whatever ends it."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from tasks import guard as guarding
from tasks import shell
from tasks.comeback import LOSSES, Entry, entry
from tasks.errors import OwnedError, TorchyardError
from tasks.line import Line
from tasks.model import End
from tasks.signals import STOPS, Hold, cancelling, stopper
from tasks.step import log
from tasks.sweep import ended

GUARD = str(Path(guarding.__file__))


def carry(line: Line) -> State[Any]:
    """From wherever the run is to its end. OwnedError where a process on another machine carries it."""
    with line.folder.owned():
        if flow_run.run_count > 1:
            adopt(line)
        how = entry(line.folder.events(), time.time())
        begin = first(line, how)
        line.folder.note("start", entry=how, run=line.run_id, count=flow_run.run_count, first=begin)
        if how == "echo":
            return echo(line, line.folder.last("end"))
        if how == "give-up":
            return give_up(line)
        return go_on(line, how, begin)


def go_on(line: Line, how: Entry, begin: int) -> State[Any]:
    """Bring the run to its end; a guard does so where this process cannot."""
    watcher = guard(line)
    with Hold() as signals:
        try:
            if how == "finish":
                end, sentence = reopen(line)
            else:
                end, sentence = protect(line, lambda: line.go(begin), signals)
        except OwnedError as error:
            line.folder.note("end", end="moved", by="flow", sentence=str(error))
            watcher.tell("done")
            raise
        signals.begin()
        watcher.tell("ending")
        line.say_ending(end, sentence)
        report = line.finish(end, sentence)
        watcher.tell("done")
    return ended(report.end, report.sentence)


def adopt(line: Line) -> None:
    """Go on where another machine was, if the run lives in a cluster."""
    from tasks import moving

    moving.adopt(line.folder, line.profile, line.run_id)


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
    """Whatever happens becomes an end with a sentence: what comes after must come."""
    try:
        return work()
    except OwnedError:
        raise
    except TorchyardError as error:
        return "failed", str(error)
    except STOPS as stop:
        signals.begin()
        if cancelling(line.run_id):
            return "cancelled", "cancelled through Prefect"
        return "stopped", f"stopped by {stopper(stop)}"
    except Exception as error:
        log().exception("a fault in torchyard itself")
        return "failed", f"a fault in torchyard itself: {type(error).__name__}: {error}"


def guard(line: Line) -> shell.Guard:
    finish = (sys.executable, "-m", "tasks.sweep", "LOST", str(line.folder.path))
    return shell.Guard(("-I", "-S", GUARD, line.profile.on_launcher_lost, *finish))


def echo(line: Line, end: dict[str, Any]) -> State[Any]:
    line.folder.note("end", end=end["end"], by="flow", sentence=end["sentence"])
    log().info("this run has ended already: %s", end["sentence"])
    return ended(end["end"], end["sentence"])


def give_up(line: Line) -> State[Any]:
    lease = max(line.folder.lease_left(), 0)
    sentence = (
        f"given up: {LOSSES} processes that carried this run were lost in a row at the same step; the job, if any, "
        f"lives on for {lease:.0f} s; see {line.folder.path}/journal, mend the cause, then retry this run"
    )
    line.folder.note("end", end="gave-up", by="flow", sentence=sentence)
    log().error("%s", sentence)
    return ended("gave-up", sentence)
