"""The pages of a run: each event replaces the page that it is about."""

import time
from types import SimpleNamespace

import pytest

from tests.builders.hang_examples import HANG
from tests.doubles.shown_pages import KeptPages
from torchyard.model.event import AttemptStarted, RowsRead, WaitEnded
from torchyard.model.hang import HangUpdate
from torchyard.sinks import pages as pages_module


def test_progress_is_shown_and_curves_are_drawn_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of each update is shown, and a job that runs for longer than 15 s has a page of curves."""
    now = time.monotonic()
    monkeypatch.setattr(pages_module, "time", SimpleNamespace(monotonic=lambda: now))
    pages = KeptPages()
    pages.take(AttemptStarted(1, "sample-1"))
    pages.take(RowsRead(({"epoch": 1, "epochs": 8, "loss": 0.5},)))
    assert (pages.progress, pages.pages) == ([("epoch 1 of 8", 12.5)], {})
    now += 16
    pages.take(RowsRead(({"epoch": 2, "epochs": 8, "loss": 0.25},)))
    pages.take(WaitEnded())
    assert pages.progress[-1][1] == 25.0
    assert r"| 2 | 0\.25 |" in pages.pages["metrics"]
    assert "data:image/svg+xml" in pages.pages["metrics"]


def test_curves_have_every_row_without_a_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come too soon after a drawing are drawn as soon as the next is due, or at the end of the job."""
    now = time.monotonic()
    monkeypatch.setattr(pages_module, "time", SimpleNamespace(monotonic=lambda: now))
    pages = KeptPages()
    pages.take(AttemptStarted(1, "sample-1"))
    now += 16
    for epoch in (1, 2):
        pages.take(RowsRead(({"epoch": epoch, "loss": 1 / epoch},)))
    assert pages.sentences["metrics"] == "epoch 1: loss 1"
    now += 16
    pages.take(RowsRead(()))
    assert pages.sentences["metrics"] == "epoch 2: loss 0.5"
    pages.take(RowsRead(({"epoch": 3, "loss": 0.25}, {"checkpoint": "/saved/3", "step": 30})))
    pages.take(WaitEnded())
    assert pages.sentences["metrics"] == "epoch 3: loss 0.25, step 30"


def test_short_job_has_its_curves_in_the_report_alone() -> None:
    """A job that ends before its first drawing has no page of curves."""
    pages = KeptPages()
    pages.take(AttemptStarted(1, "sample-1"))
    pages.take(RowsRead(({"epoch": 1, "loss": 1},)))
    pages.take(WaitEnded())
    assert pages.pages == {}


def test_hang_is_a_page_of_its_job() -> None:
    """The page about a hang names the job of the attempt."""
    pages = KeptPages()
    pages.take(AttemptStarted(1, "sample-1"))
    pages.take(HangUpdate(hang=HANG, is_certain=True))
    assert "sample-1" in pages.pages["hang"].replace("\\", "")
