"""`torchyard trend`: all histories, one of them, and its plot."""

from pathlib import Path

import pytest

from tests.builders.histories import KEY, build_records, draw_noisy_values
from torchyard.cli.main import main
from torchyard.run.folder import runs_folder
from torchyard.trend.records import history_path, store_record


@pytest.fixture
def history() -> Path:
    """A history of twenty nights."""
    path = history_path(runs_folder(), KEY)
    for record in build_records([*draw_noisy_values(1, 0.01, 19), 150.0]):
        store_record(path, record)
    return path


def test_histories_are_listed(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each history has a line with its name, the number of its runs, and their common properties."""
    assert main(["trend"]) == 0
    assert capsys.readouterr().out.split("  ") == [history.stem, "20 runs", "nodes x processes: 2x1\n"]


def test_history_of_one_run_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of a history with one run contains `1 run`, not `1 runs`."""
    store_record(history_path(runs_folder(), KEY), build_records([1.0])[0])
    assert main(["trend"]) == 0
    assert capsys.readouterr().out.split("  ")[1] == "1 run"


def test_missing_history_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first run there is no history, which is not an error."""
    assert main(["trend"]) == 0
    assert capsys.readouterr().out.startswith(f"there is no history in {runs_folder()}/history")


@pytest.mark.parametrize("name", [KEY.profile, KEY.stem, f"some/{KEY.profile}.yaml"])
def test_history_is_shown_by_profile_or_name(history: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A profile may be a path, as for a run, and the newest run and the path of the history come last."""
    assert main(["trend", name]) == 0
    *_, last, location = capsys.readouterr().out.splitlines()
    assert (last.split()[-1], location) == ("worse", str(history))


def test_another_number_can_be_shown(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--value shows a number that no run has compared."""
    assert main(["trend", history.stem, "--value", "step", "--lower"]) == 0
    assert "step" in capsys.readouterr().out.splitlines()[0]


def test_lower_without_a_number_is_refused(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--lower describes the number of --value, and is not ignored without it."""
    assert main(["trend", history.stem, "--lower"]) == 2
    assert "use it with --value NAME" in capsys.readouterr().err


def test_plot_is_written(history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--plot writes an SVG file, and a path that cannot be written is an error."""
    assert main(["trend", history.stem, "--plot", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    assert main(["trend", history.stem, "--plot", str(tmp_path / "none" / "x.svg")]) == 3
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("history")
def test_ambiguous_history_is_an_error_that_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A name without a history, and a profile with two of them, are errors that list the histories."""
    other_key = KEY.model_copy(update={"nodes": "4x1"})
    store_record(history_path(runs_folder(), other_key), build_records([1.0])[0])
    assert main(["trend", "nope"]) == 3
    assert f"there is no such history; there are: {KEY.stem}, {other_key.stem}" in capsys.readouterr().err
    assert main(["trend", KEY.profile]) == 3
    assert "2 histories are of this profile: name one of" in capsys.readouterr().err
