"""Checkpoints on disk, small and without torch: the layout of each format, complete."""

import json
import pickle
import zipfile
from pathlib import Path


def write_torch(path: Path, **values: int) -> Path:
    """A file as torch.save writes it: a zip whose entries are stored, with a pickle and one storage."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(values, protocol=2))
        archive.writestr("archive/data/0", b"\1" * 2000)
    return path


def write_safetensors(path: Path) -> Path:
    """A file with one tensor of 64 bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1" * 64)
    return path


def write_json(path: Path, value: object) -> Path:
    """A JSON file, indented as Transformers writes it."""
    path.write_text(json.dumps(value, indent=2) + "\n")
    return path


def write_transformers(folder: Path, *, step: int) -> Path:
    """What Trainer saves in `checkpoint-N`, in its order."""
    write_safetensors(folder / "model.safetensors")
    write_json(folder / "config.json", {"model_type": "gpt2"})
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        write_torch(folder / name)
    write_json(folder / "trainer_state.json", {"global_step": step})
    return folder


def write_accelerate(folder: Path) -> Path:
    """What Accelerator.save_state writes with two processes."""
    write_safetensors(folder / "model.safetensors")
    for name in ("optimizer.bin", "scheduler.bin", "random_states_1.pkl", "random_states_0.pkl"):
        write_torch(folder / name)
    return folder


def write_deepspeed(folder: Path) -> Path:
    """What DeepSpeed writes with two ranks, and the file beside it that names the last step."""
    write_torch(folder / "mp_rank_00_model_states.pt", dp_world_size=2)
    for rank in range(2):
        write_torch(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (folder.parent / "latest").write_text(folder.name)
    return folder


def write_shards(folder: Path) -> Path:
    """A model in two shards, with their index."""
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for shard in shards:
        write_safetensors(folder / shard)
    weight_map = {f"layer.{number}": shard for number, shard in enumerate(shards)}
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder
