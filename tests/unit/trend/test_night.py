"""One run compared with earlier ones: its record, its verdict, and the sentence."""

from pathlib import Path

import pytest

from tests.builders.histories import KEY, TREND, build_records, draw_noisy_values
from tests.conftest import Write, load
from torchyard.model.fabric import FabricReading, FabricVerdict
from torchyard.model.run import Collected, Failure, Metrics, Row
from torchyard.model.trend import Trend, TrendVerdict
from torchyard.trend.night import build_record, compare_run
from torchyard.trend.records import Record, RunIdentity, history_path, read_history

STEADY = [200.0, 201.0, 199.0, 200.5, 199.5, 200.0]


def compare_all(runs: Path, *records: Record) -> TrendVerdict | None:
    """Compare some runs, one after the other; return the verdict on the last one."""
    return [compare_run(runs, record) for record in records][-1]


def test_worse_run_is_reported_with_its_band(tmp_path: Path) -> None:
    """The sentence contains the value, the median, the difference, and the usual range."""
    assert compare_all(tmp_path, *build_records([*STEADY, 150.0])) == TrendVerdict(
        verdict="worse",
        sentence="busbw is 150, 25.0 % below 200, the median of the last 6 runs; 191.6 to 208.4 would be usual",
    )


def test_planted_drop_is_reported_in_its_night(tmp_path: Path) -> None:
    """Twenty nights, each compared when it ends: the planted drop of night 12 is found in night 12."""
    values = draw_noisy_values(12, 0.01)
    values[11] *= 0.85
    verdicts = [compare_run(tmp_path, record) for record in build_records(values)]
    assert [night for night, verdict in enumerate(verdicts, 1) if verdict and verdict.verdict == "worse"] == [12]


def test_usual_and_first_runs_are_reported(tmp_path: Path) -> None:
    """The sentence of a usual run contains its band, that of one of the first five runs their number."""
    verdicts = [compare_all(tmp_path, record) for record in build_records(STEADY[:3])]
    assert [verdict.sentence for verdict in verdicts if verdict] == [
        "busbw is 200; 0 earlier runs have this number, and a comparison needs 5",
        "busbw is 201; 1 earlier run has this number, and a comparison needs 5",
        "busbw is 199; 2 earlier runs have this number, and a comparison needs 5",
    ]
    last = compare_all(tmp_path, *build_records([*STEADY, 201.0]))
    assert last
    assert last.sentence == "busbw is 201, 0.5 % above 200, the median of the last 6 runs; 191.6 to 208.4 is usual"


def test_failed_runs_are_kept_and_not_compared_with(tmp_path: Path) -> None:
    """A failed job is in the history and has no verdict; later runs are not compared with its number."""
    failed = build_records([1.0] * 6, end="failed")
    assert compare_all(tmp_path, *failed) is None
    last = compare_all(tmp_path, build_records([0.0] * 6 + [200.0])[-1])
    assert last
    assert last.sentence.startswith("busbw is 200; 0 earlier runs")
    assert len(read_history(history_path(tmp_path, KEY)).records) == 7


def test_nothing_is_compared_without_a_trend(tmp_path: Path) -> None:
    """A profile without a trend has its runs recorded, and no verdict."""
    assert compare_all(tmp_path, *build_records(STEADY, trend=None)) is None
    assert len(read_history(history_path(tmp_path, KEY)).records) == len(STEADY)


def test_missing_number_is_reported_with_those_that_exist(tmp_path: Path) -> None:
    """A missing number is not a regression, and the sentence lists the available ones."""
    verdict = compare_all(tmp_path, *build_records(STEADY, trend=Trend(value="bw", on_regression="fail")))
    assert verdict == TrendVerdict(verdict="unknown", sentence="the run has no number bw; its numbers: busbw, step")


def test_seconds_are_the_runs_own(tmp_path: Path) -> None:
    """A trend of `seconds` compares the durations of runs, if the program prints no number of that name."""
    *_, last = build_records([*STEADY, 1.0], trend=Trend(value="seconds", better="lower"))
    compare_all(tmp_path, *build_records(STEADY))
    verdict = compare_all(tmp_path, last.model_copy(update={"seconds": 90.0}))
    assert verdict
    assert (verdict.verdict, verdict.sentence[:31]) == ("worse", "seconds is 90, 50.0 % above 60,")


def test_run_that_ends_twice_gets_the_same_verdict(tmp_path: Path) -> None:
    """A resumed run gets the verdict of its first end, and is compared neither with itself nor with later runs."""
    *_, worst, _, _ = records = build_records([*STEADY, 150.0, 200.0, 199.0])
    first = compare_all(tmp_path, *records[:-2])
    compare_all(tmp_path, *records[-2:])
    assert compare_all(tmp_path, worst.model_copy(update={"end": "failed", "at": worst.at + 1e6})) == first


@pytest.mark.parametrize("obstacle", ["file", "history"])
def test_unusable_history_is_not_a_fact_about_the_job(
    tmp_path: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A history that can be neither written nor read is reported in the verdict and in the log."""
    path = history_path(tmp_path, KEY)
    path.mkdir(parents=True) if obstacle == "file" else path.parent.write_text("")
    verdict = compare_all(tmp_path, build_records([1.0])[0])
    assert verdict
    assert (verdict.verdict, "cannot be compared" in verdict.sentence) == ("unknown", True)
    assert "cannot record the run's numbers" in caplog.text


def test_unreadable_lines_are_reported(tmp_path: Path) -> None:
    """The sentence contains the number of lines that cannot be read."""
    compare_all(tmp_path, *build_records(STEADY))
    with history_path(tmp_path, KEY).open("a") as file:
        file.write("torn\n")
    verdict = compare_all(tmp_path, build_records([*STEADY, 200.0])[-1])
    assert verdict
    assert verdict.sentence.endswith("; 1 lines of the history cannot be read")


def test_record_has_the_numbers_of_the_summary_and_of_the_last_row(write: Write) -> None:
    """Texts, booleans, nan and numbers that no float can hold are left out; the summary wins over the row."""
    rows: tuple[Row, ...] = ({"size": 1, "busbw": 1.0}, {"size": 2, "busbw": 9.0, "ok": True, "seconds": 1})
    summary: Row = {"seconds": 5, "gpu": "H100", "huge": 10**400, "lost": None}
    fabric = FabricVerdict(verdict="as-promised", sentence="", reading=FabricReading())
    collected = Collected(logs=(), metrics=Metrics(rows=rows, summary=summary), failure=None, fabric=fabric)
    profile = load(write(), trend=TREND.model_dump())
    record = build_record(profile, RunIdentity("sample-1", 5.0), "succeeded", collected)
    assert record.numbers == {"size": 2.0, "busbw": 9.0, "seconds": 5.0}
    assert (record.fabric, record.trend, record.identity) == ("as-promised", TREND, ("sample-1", 5.0))
    assert record.seconds == pytest.approx(record.at - 5.0)


def test_record_of_a_failure_has_its_cause(write: Write) -> None:
    """The cause of the last attempt is kept if the run failed, and not if a person cancelled it."""
    collected = Collected(logs=(), metrics=Metrics(), failure=Failure(cause="oom-host", sentence="killed"))
    causes = {
        end: build_record(load(write()), RunIdentity("sample-1", 5.0), end, collected).cause
        for end in ("failed", "cancelled")
    }
    assert causes == {"failed": "oom-host", "cancelled": ""}
