"""Takers of a wait's events, for tests of one kind of event."""

from collections.abc import Callable

from torchyard.model.event import EmitJobEvent, JobEvent, RowsRead, StatusRead
from torchyard.model.run import Row, Status


def take_rows(take: Callable[[tuple[Row, ...]], object]) -> EmitJobEvent:
    """Pass on rank 0's new rows, at every poll."""

    def emit(event: JobEvent) -> None:
        if isinstance(event, RowsRead):
            take(event.rows)

    return emit


def take_status(take: Callable[[Status, float], object]) -> EmitJobEvent:
    """Pass on each status, with the seconds since the submit."""

    def emit(event: JobEvent) -> None:
        if isinstance(event, StatusRead):
            take(event.status, event.waited_s)

    return emit
