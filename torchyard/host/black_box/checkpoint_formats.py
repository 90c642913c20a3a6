"""What a checkpoint on disk is: its format, its step, and whether it is complete, proven by the files themselves.

A checkpoint is a file (torch.save, Lightning, safetensors) or a folder (torch.distributed.checkpoint, Transformers,
Accelerate, DeepSpeed, Megatron, the shards of a Hugging Face model). Three verdicts are possible: `complete` is proven
by the format, `torn` is disproved by it, and everything else is `unverified`, such as several files in a folder of an
unknown program: each may be complete, and nothing shows that they are all. Only metadata are read, a few MiB at most of
each file, and nothing is executed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Dict, Iterable, Iterator, NamedTuple, Optional, Pattern, Set, Tuple

from . import checkpoint_files
from .checkpoint_files import CHECKPOINT_SUFFIXES, FileContent, IncompleteError, UnverifiedError

COMPLETE = "complete"
TORN = "torn"
UNVERIFIED = "unverified"
_MAX_FILES = 20_000  # of one checkpoint
_MAX_READ_FILES = 2_000  # of one checkpoint, of which the content is read
_MAX_DEPTH = 3  # of a checkpoint's own folders
_READ_SUFFIXES = (*CHECKPOINT_SUFFIXES, ".pkl", ".json")
_STEP = re.compile(r"step[-_=]?(\d{1,15})(?!\d)")
_NUMBER = re.compile(r"(?:^|[-_.])(?:checkpoint|ckpt|iter|iteration)[-_=]?(\d{1,15})(?!\d)")
_UNFINISHED_SUFFIX = r"\.(?:tmp|temp|part|partial|incomplete)(?:[-_.]\w+)?"
_UNFINISHED = re.compile(r"^tmp-|%s$" % _UNFINISHED_SUFFIX, re.IGNORECASE)
_CHECKPOINT_FILE = re.compile(r"\.(?:pt|pth|ckpt|bin|safetensors)(?:%s)?$" % _UNFINISHED_SUFFIX)
_CHECKPOINT_FOLDER = re.compile(
    r"(?:^|[-_.])(?:checkpoint|ckpt|global_step|step|iter|iteration|epoch)[-_=]?\d+(?:%s)?$|\.ckpt$"
    % _UNFINISHED_SUFFIX
)
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(\..*)$")
# Files that each rank writes: their numbers begin at 0 and have no gap.
_RANK_FILES = (
    re.compile(r"^(random_states_)(\d+)(\.pkl)$"),
    re.compile(r"^(rng_state_)(\d+)(\.pth)$"),
    re.compile(r"^(.*zero_pp_rank_)(\d+)(_mp_rank_\d+_\w+_states\.pt)$"),
    re.compile(r"^(mp_rank_)(\d+)(_model_states\.pt)$"),
)
_RANK_METADATA = re.compile(r"^__\d+\.metadata$")  # of torch.distributed.checkpoint without collectives
_DEEPSPEED_NAME = re.compile(r"^global_step\d+$")
_DEEPSPEED_OPTIMIZER = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt$")
_MEGATRON_NAME = re.compile(r"^iter_\d+$")
_TRAINER_STATE = "trainer_state.json"
_RANDOM_STATE = "random_states_0.pkl"
_NOT_WEIGHTS = re.compile(
    r"^(?:training_args|optimizer|scheduler|sampler|scaler|rng_state|random_states|dl_state|custom_checkpoint)"
)
_SAVED_WITH_OPTIMIZER = re.compile(r"^(?:scheduler|rng_state)")
_OPTIMIZER = re.compile(r"optim|_model_states\.pt$")  # DeepSpeed may have it in the model's file
_STATE_FILES = re.compile(r"^(?:optimizer|scheduler|sampler|scaler|custom_checkpoint)[^/]*\.(?:pt|bin|pkl)$")
_LATEST_FILES = ("latest", "latest_checkpointed_iteration.txt")  # DeepSpeed's and Megatron's, written last
_MAX_PEERS = 4  # checkpoints beside this one that are compared
_ORDER_TOLERANCE_S = 1.0  # between the times of two files that several nodes wrote


class _FormatRule(NamedTuple):
    """A folder has the format if its name and the name of a file in it match; None matches always."""

    format: str
    name: Optional[Pattern[str]]
    file: Optional[Pattern[str]]


_FORMATS = (
    _FormatRule("dcp", None, re.compile(r"^\.metadata|\.distcp$")),
    _FormatRule("transformers", None, re.compile(r"^trainer_state\.json$")),
    _FormatRule("accelerate", None, re.compile(r"^random_states_\d+\.pkl$")),
    _FormatRule("deepspeed", None, re.compile(r"_(?:model|optim)_states\.pt$")),
    _FormatRule("deepspeed", _DEEPSPEED_NAME, None),
    _FormatRule("megatron", _MEGATRON_NAME, None),
    _FormatRule(
        "transformers",
        re.compile(r"^checkpoint-\d+$"),
        re.compile(r"^(?:config\.json|adapter_config\.json|training_args\.bin)$"),
    ),
    _FormatRule(
        "accelerate", re.compile(r"^checkpoint_\d+$"), re.compile(r"^(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin$")
    ),
    _FormatRule("sharded", None, re.compile(r"\.index\.json$|-\d{5}-of-\d{5}\.")),
)


class MissingFileError(IncompleteError):
    """A file of the checkpoint is not in the listing of its folder, which proves nothing if that is partial."""


class CheckpointState(NamedTuple):
    """What a checkpoint is.

    format: such as `torch`, `safetensors`, `dcp`, `transformers`; empty if it is unknown.
    verdict: COMPLETE, TORN or UNVERIFIED.
    problem: why it is not complete, in one sentence; None if it is.
    step: of the training, from its state or its name; None if neither has it.
    size_bytes: of all its files.
    modified_at, first_written_at: the newest and the oldest time of its files, in seconds since the epoch by the file
        system's clock. A file has only the newest.
    """

    path: str
    format: str
    verdict: str
    problem: Optional[str]
    step: Optional[int]
    size_bytes: int
    modified_at: float
    first_written_at: float

    @property
    def is_complete(self) -> bool:
        return self.verdict == COMPLETE


class FolderListing(NamedTuple):
    """The regular files of a folder and of the folders in it, by their paths relative to it.

    is_partial: there are more files or levels than are listed, or one could not be read.
    """

    files: Dict[str, os.stat_result]
    is_partial: bool


def read_checkpoint(path: str) -> CheckpointState:
    """Judge the checkpoint that is a file or a folder. A link, such as `latest`, is followed once.

    Raises FileNotFoundError if there is none; every other error is a problem of the result.
    """
    status = os.lstat(path)
    target = path
    if stat.S_ISLNK(status.st_mode):
        target = os.path.join(os.path.dirname(path), os.readlink(path))
        status = os.lstat(target)
    if stat.S_ISDIR(status.st_mode):
        return _judge_folder(path, target, status)
    return _judge_file(path, target, status)


def parse_step(name: str) -> Optional[int]:
    """The step in the name of a file or a folder, such as `checkpoint-500`; None if it has none."""
    matches = _STEP.findall(name) or _NUMBER.findall(name)
    return int(matches[-1]) if matches else None


def is_unfinished(name: str) -> bool:
    """Whether a name is one that programs give to what they are still writing, such as `model.pt.tmp`."""
    return bool(_UNFINISHED.search(name))


def is_checkpoint_file(name: str) -> bool:
    """Whether a file that is in no checkpoint's folder is a checkpoint by its name, finished or not."""
    return bool(_CHECKPOINT_FILE.search(name)) and name != "training_args.bin"


def has_checkpoint_name(name: str) -> bool:
    """Whether a folder is one checkpoint by its name, such as `checkpoint-500` or `epoch_3`."""
    return bool(_CHECKPOINT_FOLDER.search(name))


def is_checkpoint_folder(contents: Iterable[str]) -> bool:
    """Whether a folder is a checkpoint by the names in it."""
    return _choose_format("", contents) != ""


def list_folder(path: str) -> FolderListing:
    """List a checkpoint's files. A folder or a file that vanishes meanwhile is left out."""
    files: Dict[str, os.stat_result] = {}
    is_partial = False
    pending = [("", 0)]
    while pending:
        subfolder, depth = pending.pop()
        try:
            with os.scandir(os.path.join(path, subfolder)) as entries:
                for entry in entries:
                    relative_path = os.path.join(subfolder, entry.name)
                    try:
                        is_folder = entry.is_dir(follow_symlinks=False)
                        status = None if is_folder else _read_status(entry)
                    except OSError:
                        is_partial = True
                        continue
                    if status and stat.S_ISREG(status.st_mode):
                        files[relative_path] = status
                    elif is_folder and depth < _MAX_DEPTH:
                        pending.append((relative_path, depth + 1))
                    elif is_folder:
                        is_partial = True
        except FileNotFoundError:
            continue
        except OSError:
            is_partial = True
        if len(files) > _MAX_FILES:
            return FolderListing(files, is_partial=True)
    return FolderListing(files, is_partial)


def _read_status(entry: os.DirEntry[str]) -> Optional[os.stat_result]:
    """The status of a file or of what a link leads to; None if it does not exist, or the link leads to itself."""
    try:
        return entry.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _judge_file(path: str, target: str, status: os.stat_result) -> CheckpointState:
    """The state of the checkpoint `path`, which is the file `target`."""
    name = os.path.basename(target)
    step = parse_step(name)
    if step is None:
        step = parse_step(os.path.basename(os.path.dirname(os.path.abspath(target))))
    content = FileContent("")
    verdict = COMPLETE
    problem = None
    try:
        if is_unfinished(name):
            raise IncompleteError("%s is the name of an unfinished file" % name)
        if stat.S_ISLNK(status.st_mode):
            raise UnverifiedError("%s is a link to another link" % os.path.basename(path))
        content = checkpoint_files.read_file_content(target, needs_step=step is None)
    except IncompleteError as error:
        verdict = TORN
        problem = str(error)
    except UnverifiedError as error:
        verdict = UNVERIFIED
        problem = str(error)
    except OSError as error:
        verdict = UNVERIFIED
        problem = "%s cannot be read: %s" % (name, error.strerror)
    return CheckpointState(
        path=path,
        format=content.format,
        verdict=verdict,
        problem=problem,
        step=content.step if step is None else step,
        size_bytes=status.st_size,
        modified_at=status.st_mtime,
        first_written_at=status.st_mtime,
    )


def _judge_folder(path: str, target: str, status: os.stat_result) -> CheckpointState:
    """The state of the checkpoint `path`, which is the folder `target`."""
    name = os.path.basename(os.path.abspath(target))
    listing = list_folder(target)
    format_name = _choose_format(name, listing.files)
    verdict = COMPLETE
    problem = None
    try:
        doubts = list(_check_folder(target, name, format_name, listing))
        if doubts:
            verdict = UNVERIFIED
            problem = doubts[0]
    except MissingFileError as error:
        verdict = UNVERIFIED if listing.is_partial else TORN
        problem = str(error)
    except IncompleteError as error:
        verdict = TORN
        problem = str(error)
    times = [file.st_mtime for file in listing.files.values()] or [status.st_mtime]
    step = _read_trainer_step(target) if _TRAINER_STATE in listing.files else None
    return CheckpointState(
        path=path,
        format=format_name,
        verdict=verdict,
        problem=problem,
        step=parse_step(name) if step is None else step,
        size_bytes=sum(file.st_size for file in listing.files.values()),
        modified_at=max(times),
        first_written_at=min(times),
    )


def _choose_format(name: str, paths: Iterable[str]) -> str:
    """The format of a folder by its name and the paths in it; empty if it is unknown."""
    names = [path for path in paths if "/" not in path]
    for rule in _FORMATS:
        has_name = rule.name is None or rule.name.match(name)
        has_file = rule.file is None or any(rule.file.search(file_name) for file_name in names)
        if has_name and has_file:
            return rule.format
    return ""


def _is_dcp_file(name: str) -> bool:
    return name.startswith(".metadata") or name.endswith(".distcp")


# --- the checks of a folder: they raise MissingFileError or IncompleteError, and yield what they cannot show


def _check_folder(folder: str, name: str, format_name: str, listing: FolderListing) -> Iterator[str]:
    _check_names(name, listing)
    for subfolder in sorted({os.path.dirname(path) for path in listing.files if _is_dcp_file(os.path.basename(path))}):
        yield from _check_dcp(folder, subfolder, listing)
    if format_name == "transformers":
        yield from _check_last_file(_TRAINER_STATE, listing)
        yield from _check_peers(folder, name, listing)
    elif format_name == "accelerate":
        yield from _check_last_file(_RANDOM_STATE, listing)
        yield from _check_peers(folder, name, listing)
    elif format_name == "deepspeed":
        yield from _check_deepspeed(folder, listing)
    elif format_name == "sharded":
        yield from _check_shards(listing)
    elif not format_name:
        yield "%s has no known format: nothing shows that it has all of its files" % name
    if _DEEPSPEED_NAME.match(name) or _MEGATRON_NAME.match(name):
        yield from _check_latest_files(folder, name)
    yield from _check_files(folder, listing)
    if listing.is_partial:
        yield "%s has too many files or levels, or a folder that cannot be read" % name


def _check_names(name: str, listing: FolderListing) -> None:
    """There are files, none of them is an unfinished one, and none is missing among those that are numbered."""
    if is_unfinished(name):
        raise IncompleteError("%s is the name of an unfinished folder" % name)
    if not listing.files and not listing.is_partial:
        raise IncompleteError("%s is empty" % name)
    for path in sorted(listing.files):
        if is_unfinished(os.path.basename(path)):
            raise IncompleteError("%s is the name of an unfinished file" % path)
    _check_shard_names(listing)
    _check_rank_names(listing)


def _check_shard_names(listing: FolderListing) -> None:
    """Each shard names the number of all shards."""
    shards: Dict[Tuple[str, str, str], Set[str]] = {}
    for path in listing.files:
        match = _SHARD.match(path)
        if match:
            shards.setdefault((match[1], match[3], match[4]), set()).add(match[2])
    for (prefix, total, suffix), numbers in shards.items():
        if len(numbers) < int(total):
            raise MissingFileError("%s-*%s has %d of %d shards" % (prefix, suffix, len(numbers), int(total)))


def _check_rank_names(listing: FolderListing) -> None:
    """The files of the ranks have all numbers from 0 to the highest one."""
    ranks: Dict[Tuple[str, str], Set[int]] = {}
    for path in listing.files:
        folder, _, name = path.rpartition("/")
        for pattern in _RANK_FILES:
            match = pattern.match(name)
            if match:
                ranks.setdefault((os.path.join(folder, match[1]), match[3]), set()).add(int(match[2]))
    for (prefix, suffix), numbers in ranks.items():
        if len(numbers) <= max(numbers):
            raise MissingFileError("%s*%s has %d of %d files" % (prefix, suffix, len(numbers), max(numbers) + 1))


def _check_files(folder: str, listing: FolderListing) -> Iterator[str]:
    """Each file is complete by its own format, and has the shards that it names."""
    paths = [path for path in sorted(listing.files) if path.endswith(_READ_SUFFIXES)]
    if len(paths) > _MAX_READ_FILES:
        yield "more than %d files are not read" % _MAX_READ_FILES
    for path in paths[:_MAX_READ_FILES]:
        try:
            checkpoint_files.read_file_content(os.path.join(folder, path), needs_step=False)
            if path.endswith(".index.json"):
                _check_index(folder, path, listing)
        except UnverifiedError as error:
            yield str(error)
        except FileNotFoundError:
            raise IncompleteError("%s is missing" % path) from None
        except OSError as error:
            yield "%s cannot be read: %s" % (path, error.strerror)


def _check_index(folder: str, path: str, listing: FolderListing) -> None:
    index = checkpoint_files.read_json(os.path.join(folder, path))
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise UnverifiedError("%s is not an index of shards" % path)
    for shard in sorted(set(shards.values())):
        if os.path.join(os.path.dirname(path), shard) not in listing.files:
            raise MissingFileError("%s, which %s names, is missing" % (shard, path))


def _check_dcp(folder: str, subfolder: str, listing: FolderListing) -> Iterator[str]:
    """`.metadata` is written last, and names the files of all ranks."""
    metadata_path = os.path.join(subfolder, ".metadata")
    metadata = listing.files.get(metadata_path)
    if metadata is None and any(_RANK_METADATA.match(path[len(subfolder) :].lstrip("/")) for path in listing.files):
        yield "each rank has saved its own metadata, which does not show how many ranks there are"
        return
    if metadata is None:
        raise MissingFileError("%s is missing" % metadata_path)
    try:
        sizes = checkpoint_files.read_dcp_files(os.path.join(folder, metadata_path))
    except UnverifiedError as error:
        yield str(error)
        return
    except OSError as error:
        yield "%s cannot be read: %s" % (metadata_path, error.strerror)
        return
    for name, size in sorted(sizes.items()):
        file = listing.files.get(os.path.join(subfolder, name))
        if file is None:
            raise MissingFileError("%s, which .metadata names, is missing" % name)
        if file.st_size < size:
            raise IncompleteError("%s has %d of %d bytes" % (name, file.st_size, size))
        if file.st_mtime > metadata.st_mtime + _ORDER_TOLERANCE_S:
            yield "%s is newer than .metadata: a later save into the folder may be incomplete" % name


def _check_last_file(last_path: str, listing: FolderListing) -> Iterator[str]:
    """The file that is written last exists and is the newest, and there are weights."""
    last_file = listing.files.get(last_path)
    if last_file is None:
        raise MissingFileError("%s is missing" % last_path)
    has_weights = False
    for path, file in listing.files.items():
        name = os.path.basename(path)
        is_weights = path.endswith((*CHECKPOINT_SUFFIXES, ".distcp")) and not _NOT_WEIGHTS.match(name)
        has_weights = has_weights or is_weights
        is_earlier = is_weights or name.startswith(("optimizer", "scheduler"))
        if is_earlier and file.st_mtime > last_file.st_mtime + _ORDER_TOLERANCE_S:
            yield "%s is newer than %s: a later save into the folder may be incomplete" % (path, last_path)
    if not has_weights:
        raise MissingFileError("no file has the weights")
    has_scheduler = any(_SAVED_WITH_OPTIMIZER.match(os.path.basename(path)) for path in listing.files)
    if has_scheduler and not any(_OPTIMIZER.search(path) for path in listing.files):
        yield "no file has the state of the optimizer"


def _check_peers(folder: str, name: str, listing: FolderListing) -> Iterator[str]:
    """The folder has the files for the optimizer and the like that the checkpoints beside it have."""
    parent = os.path.dirname(os.path.abspath(folder))
    shape = re.sub(r"\d+", "0", name)
    try:
        peers = [peer for peer in os.listdir(parent) if peer != name and re.sub(r"\d+", "0", peer) == shape]
        for peer in sorted(peers, key=_get_sort_step)[-_MAX_PEERS:]:
            for path in os.listdir(os.path.join(parent, peer)):
                if _STATE_FILES.match(path) and path not in listing.files:
                    yield "%s is missing, and %s has it" % (path, peer)
    except OSError:
        return  # a peer has been removed, or is not a folder


def _get_sort_step(name: str) -> int:
    return parse_step(name) or 0


def _check_deepspeed(folder: str, listing: FolderListing) -> Iterator[str]:
    """The parts of the optimizer are as many as the ranks that the model's file names."""
    models = [path for path in sorted(listing.files) if path.endswith("mp_rank_00_model_states.pt")]
    if not models:
        raise MissingFileError("mp_rank_00_model_states.pt is missing")
    world = checkpoint_files.read_torch_fields(os.path.join(folder, models[0])).get("dp_world_size")
    ranks = {int(match[1]) for match in map(_DEEPSPEED_OPTIMIZER.search, listing.files) if match}
    if ranks and type(world) is int and len(ranks) < world:
        yield "the optimizer's states of %d of %d ranks are missing" % (world - len(ranks), world)


def _check_shards(listing: FolderListing) -> Iterator[str]:
    """The index is written after the shards."""
    if not any(path.endswith(".index.json") for path in listing.files):
        yield "an index of the shards is missing"


def _check_latest_files(folder: str, name: str) -> Iterator[str]:
    """The file beside the folder that is written after it names this step, or a later one."""
    parent = os.path.dirname(os.path.abspath(folder))
    step = parse_step(name)
    for latest_file in _LATEST_FILES:
        try:
            text = checkpoint_files.read_text(os.path.join(parent, latest_file), max_bytes=256).strip()
        except (OSError, UnverifiedError):
            continue
        tracked_step = int(text) if text.isdigit() and len(text) < 16 else parse_step(text)
        if tracked_step is not None and step is not None and tracked_step >= step:
            return
        yield "%s names %s, which is older" % (latest_file, text[:40])
        return
    yield "%s, which is written last, is missing" % " or ".join(_LATEST_FILES)


def _read_trainer_step(folder: str) -> Optional[int]:
    """The step in `trainer_state.json`; None if it cannot be read."""
    try:
        state = checkpoint_files.read_json(os.path.join(folder, _TRAINER_STATE))
    except (OSError, IncompleteError, UnverifiedError):
        return None
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if type(step) is int else None
