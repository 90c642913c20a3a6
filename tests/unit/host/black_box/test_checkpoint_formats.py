"""read_checkpoint: whether a file or a folder is a complete checkpoint, by what is in it."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders.checkpoints import (
    write_accelerate,
    write_deepspeed,
    write_safetensors,
    write_shards,
    write_torch,
    write_transformers,
)
from torchyard.host.black_box.checkpoint_formats import (
    COMPLETE,
    TORN,
    UNVERIFIED,
    has_checkpoint_name,
    is_unfinished,
    parse_step,
    read_checkpoint,
)

WRITERS: dict[str, Callable[[Path], Path]] = {
    "checkpoint-500": lambda folder: write_transformers(folder, step=500),
    "checkpoint_3": write_accelerate,
    "global_step100": write_deepspeed,
    "export": write_shards,
}
FORMATS = {
    "checkpoint-500": "transformers",
    "checkpoint_3": "accelerate",
    "global_step100": "deepspeed",
    "export": "sharded",
}
# Saves with a real torch: a file in each of its two formats, and a folder of torch.distributed.checkpoint.
SCRIPT = """
import os, sys, torch
import torch.distributed.checkpoint
folder = sys.argv[1]
weights = {"layer.0": torch.ones(50), "layer.1": torch.ones(50, dtype=torch.bfloat16)}
torch.save({"model": weights, "global_step": 120}, os.path.join(folder, "last.ckpt"))
torch.save({"model": weights, "step": 120}, os.path.join(folder, "step_120.pt"), _use_new_zipfile_serialization=False)
torch.distributed.checkpoint.save(weights, checkpoint_id=os.path.join(folder, "step-120"), no_dist=True)
"""
TORCH_FORMATS = {"last.ckpt": "torch", "step_120.pt": "torch-legacy", "step-120": "dcp"}


@pytest.fixture(scope="module")
def torch_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a real torch has saved."""
    folder = tmp_path_factory.mktemp("torch")
    subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)], check=True)
    return folder


def copy_checkpoint(source: Path, folder: Path) -> Path:
    """A copy with the times of the original."""
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)
    return target


@pytest.mark.parametrize("name", TORCH_FORMATS)
def test_what_torch_saves(name: str, torch_checkpoints: Path, tmp_path: Path) -> None:
    """A checkpoint of a real torch is complete, and no beginning of one of its files is."""
    path = copy_checkpoint(torch_checkpoints / name, tmp_path)
    state = read_checkpoint(str(path))
    assert (state.format, state.verdict, state.problem, state.step) == (TORCH_FORMATS[name], COMPLETE, None, 120)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        data = file.read_bytes()
        assert data
        for end in range(0, len(data), max(len(data) // 30, 1)):
            file.write_bytes(data[:end])
            assert read_checkpoint(str(path)).verdict == TORN, (file.name, end)
        file.write_bytes(data)


@pytest.mark.parametrize("name", WRITERS)
def test_folder_is_complete_until_a_file_is_missing(name: str, tmp_path: Path) -> None:
    """A folder of a framework is complete; without one of the files that a program needs to resume it is not."""
    path = WRITERS[name](tmp_path / name)
    state = read_checkpoint(str(path))
    assert (state.format, state.verdict, state.problem) == (FORMATS[name], COMPLETE, None)
    assert state.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    optional = {
        "config.json",
        "training_args.bin",
        "scheduler.pt",
        "scheduler.bin",
        "rng_state.pth",
        "random_states_1.pkl",
    }
    for file in sorted(path.iterdir()):
        if file.name not in optional:
            data = file.read_bytes()
            stat = file.stat()
            file.unlink()
            assert not read_checkpoint(str(path)).is_complete, file.name
            file.write_bytes(data[: len(data) // 2])
            assert read_checkpoint(str(path)).verdict == TORN, file.name
            file.write_bytes(data)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert read_checkpoint(str(path)).is_complete


@pytest.mark.parametrize(
    ("name", "last"), [("checkpoint-500", "trainer_state.json"), ("checkpoint_3", "random_states_0.pkl")]
)
def test_last_file_of_an_earlier_save(name: str, last: str, tmp_path: Path) -> None:
    """A folder into which a second save has begun to write is not complete: its last file is the earlier one."""
    path = WRITERS[name](tmp_path / name)
    status = (path / last).stat()
    os.utime(path / last, (status.st_mtime - 60, status.st_mtime - 60))
    state = read_checkpoint(str(path))
    assert (state.verdict, "later save" in str(state.problem)) == (UNVERIFIED, True)


def test_dcp_folder_that_is_saved_again(torch_checkpoints: Path, tmp_path: Path) -> None:
    """A `.metadata` that is older than the files it names is of an earlier save."""
    path = copy_checkpoint(torch_checkpoints / "step-120", tmp_path)
    os.utime(path / ".metadata", (1000, 1000))
    assert read_checkpoint(str(path)).verdict == UNVERIFIED


def test_missing_file_that_checkpoints_beside_it_have(tmp_path: Path) -> None:
    """A folder without the optimizer is not verified if the other checkpoints have one, and complete if none has."""
    path = write_transformers(tmp_path / "checkpoint-1000", step=1000)
    for folder in (path, write_transformers(tmp_path / "checkpoint-500", step=500)):
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (folder / name).unlink()
    assert read_checkpoint(str(path)).is_complete
    write_transformers(tmp_path / "checkpoint-500", step=500)
    assert read_checkpoint(str(path)).verdict == UNVERIFIED


def test_deepspeed_save_that_latest_does_not_name(tmp_path: Path) -> None:
    """DeepSpeed's folder is complete once `latest`, which is written last, names it or a later one."""
    write_deepspeed(tmp_path / "global_step100")
    path = write_deepspeed(tmp_path / "global_step200")
    assert read_checkpoint(str(tmp_path / "global_step100")).is_complete
    (tmp_path / "latest").write_text("global_step100")
    assert read_checkpoint(str(path)).verdict == UNVERIFIED
    (tmp_path / "latest").unlink()
    assert read_checkpoint(str(path)).verdict == UNVERIFIED


def test_folder_of_an_unknown_program(tmp_path: Path) -> None:
    """Complete files in a folder of an unknown format are not verified, and a torn one makes it torn."""
    write_torch(tmp_path / "step_100" / "model.pt")
    path = write_torch(tmp_path / "step_100" / "optimizer.pt")
    assert read_checkpoint(str(path.parent)).verdict == UNVERIFIED
    os.truncate(path, 100)
    assert read_checkpoint(str(path.parent)).verdict == TORN


@pytest.mark.parametrize("name", ["model.pt.tmp", "model.safetensors.incomplete", "tmp-model.pt", "x.ckpt.part"])
def test_unfinished_name_is_never_complete(name: str, tmp_path: Path) -> None:
    """A file under the name of an unfinished one is torn, and so is a folder that has one, or such a name."""
    assert is_unfinished(name)
    path = write_safetensors(tmp_path / name)
    assert read_checkpoint(str(path)).verdict == TORN
    folder = write_transformers(tmp_path / "checkpoint-5", step=5)
    path.rename(folder / name)
    assert read_checkpoint(str(folder)).verdict == TORN
    unfinished_folder = write_transformers(tmp_path / "tmp-checkpoint-6", step=6)
    assert read_checkpoint(str(unfinished_folder)).verdict == TORN


def test_link_is_followed_once(tmp_path: Path) -> None:
    """`latest` is the checkpoint that it leads to; a link to a link is not followed, and no target is no checkpoint."""
    path = write_torch(tmp_path / "step_7.pt")
    latest = tmp_path / "latest"
    latest.symlink_to(path.name)
    state = read_checkpoint(str(latest))
    assert (state.path, state.verdict, state.step) == (str(latest), COMPLETE, 7)
    (tmp_path / "last").symlink_to("latest")
    assert read_checkpoint(str(tmp_path / "last")).verdict == UNVERIFIED
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_checkpoint(str(latest))


def test_file_that_cannot_be_read_is_not_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read proves nothing."""
    path = write_transformers(tmp_path / "checkpoint-5", step=5)

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", fail)
    for candidate in (path, path / "optimizer.pt"):
        state = read_checkpoint(str(candidate))
        assert (state.verdict, "Input/output error" in str(state.problem)) == (UNVERIFIED, True)


@pytest.mark.parametrize("name", WRITERS)
def test_folder_that_cannot_be_listed_whole_is_not_torn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose status cannot be read may exist: the folder is not complete, and a missing file proves nothing."""
    path = WRITERS[name](tmp_path / name)
    assert read_checkpoint(str(path)).is_complete
    unreadable = ""
    scan = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name = entry.name
            self._entry = entry

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return self._entry.is_dir(follow_symlinks=follow_symlinks)

        def stat(self) -> os.stat_result:
            if self.name == unreadable:
                raise OSError(5, "Input/output error")
            return self._entry.stat()

    @contextlib.contextmanager
    def scan_disk(folder: str) -> Iterator[list[Entry]]:
        with scan(folder) as entries:
            yield [Entry(entry) for entry in entries]

    monkeypatch.setattr(os, "scandir", scan_disk)
    for file in sorted(path.iterdir()):
        unreadable = file.name
        assert read_checkpoint(str(path)).verdict == UNVERIFIED, file.name
    unreadable = ""
    assert read_checkpoint(str(path)).is_complete


def test_link_to_itself_is_no_file(tmp_path: Path) -> None:
    """A link that leads nowhere hides none of the files beside it."""
    path = write_accelerate(tmp_path / "checkpoint_3")
    (path / "a").symlink_to("a")
    assert read_checkpoint(str(path)).is_complete


@pytest.mark.parametrize(
    ("data", "verdict"),
    [(b'{"version": 2}', UNVERIFIED), (b"\0" * 64, TORN), (b"\x80\x04" + b"\0" * 64, TORN), (b"\x80\x04", TORN)],
)
def test_metadata_in_another_format_is_not_torn(
    data: bytes, verdict: str, torch_checkpoints: Path, tmp_path: Path
) -> None:
    """Only bytes that were not written show that `.metadata` is incomplete, not a format that is unknown."""
    path = copy_checkpoint(torch_checkpoints / "step-120", tmp_path)
    (path / ".metadata").write_bytes(data)
    assert read_checkpoint(str(path)).verdict == verdict


def test_dcp_folder_with_metadata_of_each_rank_is_not_torn(torch_checkpoints: Path, tmp_path: Path) -> None:
    """Without collectives each rank saves `__RANK.metadata`, and nothing names the number of ranks."""
    path = copy_checkpoint(torch_checkpoints / "step-120", tmp_path)
    (path / ".metadata").rename(path / "__0.metadata")
    state = read_checkpoint(str(path))
    assert (state.verdict, "each rank has saved its own metadata" in str(state.problem)) == (UNVERIFIED, True)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("checkpoint-500", True),
        ("tmp-checkpoint-500", True),
        ("epoch_3", True),
        ("epoch=3-step=120.ckpt", True),
        ("step_100.tmp", True),
        ("checkpoints", False),
        ("version_0", False),
        ("run_step2_sft", False),
    ],
)
def test_name_of_a_folder(name: str, is_one: bool) -> None:
    """A folder whose name ends with a step or an epoch is one checkpoint; others may contain several."""
    assert has_checkpoint_name(name) == is_one


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("checkpoint_3", 3),
        ("step-100", 100),
        ("step_100.pt", 100),
        ("epoch=3-step=120.ckpt", 120),
        ("global_step100", 100),
        ("iter_0000100", 100),
        ("epoch_3", None),
        ("model-00001-of-00002.safetensors", None),
        ("last.ckpt", None),
    ],
)
def test_step_in_a_name(name: str, step: int | None) -> None:
    """The step is read from the names that frameworks use."""
    assert parse_step(name) == step
