"""TensorBoard: event files, written without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard.model.observe import TensorBoard
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint

_FOLDER = "tensorboard"


class TensorBoardRun:
    """The folder of one run: `tensorboard --logdir` of it, or of its parent folder, shows the curves."""

    def __init__(self, options: TensorBoard) -> None:
        self._options = options
        self._writer: Any = None
        self._step = 0

    def open(self, experiment: Experiment) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._options.folder:
            folder = Path(self._options.folder).expanduser() / experiment.run
        else:
            folder = Path(experiment.folder) / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))
        self._write_text("profile", experiment.parameters, experiment.tags)

    def write(self, points: Sequence[MetricPoint]) -> None:
        for point in points:
            self._step = point.step
            self._write_numbers(point)
        self._writer.flush()

    def close(self, end: ExperimentEnd) -> None:
        self._write_numbers(MetricPoint(self._step, end.timestamp, end.numbers))
        self._write_text("end", end.tags)
        self._writer.flush()
        self._writer.close()

    def _write_numbers(self, point: MetricPoint) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.numbers.items()]
        if values:
            self._writer.add_event(Event(wall_time=point.timestamp, step=point.step, summary=Summary(value=values)))

    def _write_text(self, tag: str, *tables: Any) -> None:
        """Write a table for TensorBoard's tab of texts."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        lines = ["| key | value |", "|---|---|"]
        for table in tables:
            lines += [f"| {name} | {value} |" for name, value in table.items()]
        text = "\n".join(lines)
        metadata = create_summary_metadata(display_name=tag, description="")
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=make_tensor_proto([text]))
        self._writer.add_event(Event(step=0, summary=Summary(value=[value])))
