"""A run of Weights & Biases in its offline mode, read from the file that it would upload."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.builders.experiments import RUN_ID, build_experiment, build_experiment_end, build_points
from tests.support.waiting import wait_until
from torchyard.model.observe import Wandb
from torchyard.trackers.wandb import WandbRun

pytest.importorskip("wandb", reason="there is no wandb")


_FILE_HEADER_BYTES = 7
_FULL = 1  # the type of a record that is not split
_RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, type


def read_records(path: Path) -> list[Any]:
    """The records in the first block of an offline run's file, which is a log of LevelDB's format."""
    from wandb.proto import wandb_internal_pb2

    record = getattr(wandb_internal_pb2, "Record")  # noqa: B009 - its types depend on the installed protobuf
    data = path.read_bytes()[: 1 << 15]
    offset = _FILE_HEADER_BYTES
    records = []
    while offset + _RECORD_HEADER.size < len(data):
        _, length, kind = _RECORD_HEADER.unpack_from(data, offset)
        offset += _RECORD_HEADER.size
        if kind == _FULL:
            records.append(record.FromString(data[offset : offset + length]))
        offset += length
    return records


def test_offline_run_has_curve_profile_and_end(tmp_path: Path) -> None:
    """The run has torchyard's id and name, and a later process does not inherit this one's connection."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    run = WandbRun(Wandb(project="ours"))
    run.open(build_experiment(tmp_path))
    run.write(build_points(1, 2))
    run.close(build_experiment_end())
    assert "WANDB_SERVICE" not in os.environ
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    wait_until(lambda: [record for record in read_records(file) if record.WhichOneof("record_type") == "exit"])
    records = read_records(file)
    (first_run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (first_run.run_id, first_run.display_name, first_run.project) == (
        RUN_ID.replace("-", ""),
        "mine-a1b2c3d4",
        "ours",
    )
    rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    curve = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]
    assert [(row["row"], row["loss"]) for row in curve] == [(1, 0.1), (2, 0.2)]
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]
