"""Event files, read by TensorBoard itself."""

from pathlib import Path

import pytest

from tests.builders.experiments import build_experiment, build_experiment_end, build_points
from torchyard.model.observe import TensorBoard
from torchyard.trackers.tensorboard import TensorBoardRun

pytest.importorskip("tensorboard", reason="there is no tensorboard")


def test_curve_and_profile_are_in_the_event_files(tmp_path: Path) -> None:
    """Two processes of one run write one curve, the profile and the end."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardRun(TensorBoard())
    second = TensorBoardRun(TensorBoard())
    for run, steps in ((first, (1, 2)), (second, (3,))):
        run.open(build_experiment(tmp_path))
        run.write(build_points(*steps))
    second.close(build_experiment_end(numbers={"summary.best": 0.3}))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    curve = [(point.step, round(point.value, 3), point.wall_time) for point in events.Scalars("loss")]
    assert curve == [(1, 0.1, 1_700_000_001.0), (2, 0.2, 1_700_000_002.0), (3, 0.3, 1_700_000_003.0)]
    assert [(point.step, round(point.value, 3)) for point in events.Scalars("summary.best")] == [(3, 0.3)]
    text = events.Tensors("profile/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| args | --epochs 3 |" in text
    assert "torchyard.end" in events.Tensors("end/text_summary")[0].tensor_proto.string_val[0].decode()


def test_folder_of_all_runs_has_a_folder_for_each_run(tmp_path: Path) -> None:
    """In a folder that the user names, each run has a subfolder, so that TensorBoard can compare the runs."""
    run = TensorBoardRun(TensorBoard(folder=str(tmp_path / "all")))
    run.open(build_experiment(tmp_path))
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["mine-a1b2c3d4"]
