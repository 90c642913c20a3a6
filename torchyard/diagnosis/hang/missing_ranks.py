"""Why a rank has not called a collective that others wait in, and after how long that is a hang."""

import re
from typing import NamedTuple

from torchyard.diagnosis.hang.classes import get_fault_facts
from torchyard.diagnosis.hang.pending_collectives import is_frozen, is_stopped
from torchyard.model.hang import FaultClass, RankRecord

# Seconds for which a missing rank must have been idle to hang, at least; a slow phase gets a multiple of its pauses.
FLOOR_S = 3.0
STOPPED_FLOOR_S = 2.0
ENDED_FLOOR_S = 10.0  # torchrun itself needs some seconds to notice it and to end the others
LOADER_FLOOR_S = 4.0
BLOCKED_FLOOR_S = 8.0  # storage, a C call that holds the GIL, and another machine
START_FLOOR_S = 12.0  # before the first collective is complete
POLLING_FLOOR_S = 12.0  # of a loop that polls: what it waits for may be work on another machine
FLUSH_FLOOR_S = 60.0  # an fsync of a large checkpoint writes nothing that the process's counters show
ACTIVE_FLOOR_S = 300.0  # of a rank that computes, compiles, evaluates or writes, without progress
SILENT_FLOOR_S = 75.0  # of a rank whose last record is old
PAUSE_FACTOR = 3.0  # times the longest usual pause at this line
IDLE_FACTOR = 3.0  # times the longest idle time of this stall after which the rank was active again
ACTIVE_PAUSE_FACTOR = 20.0
MIN_FROZEN_S = 3.0  # without a run of the recorder's thread: shorter gaps are normal on a loaded machine

_FILE_CODE = re.compile(
    r"/torch/serialization\.py$|/torch/distributed/checkpoint/|/(?:shutil|pathlib|zipfile|tarfile|gzip|bz2|lzma)\.py$"
    r"|/numpy/lib/(?:_?npyio|_?format)|/safetensors/|/h5py/"
)
_FILE_WCHAN = re.compile(
    r"nfs_|nfs4_|rpc_wait|folio_wait|wait_on_page|ext4|xfs_|btrfs|fuse|request_wait_answer|ceph|gpfs|^ll_|^cl_|jbd2"
    r"|io_schedule|blk_"
    r"|wait_for_partner|fifo_open|fsync|writeback|wb_wait"
)
_FLUSH_WCHAN = re.compile(r"fsync|writeback|wb_wait|jbd2|sync_file|commit|balance_dirty")
_FLUSH_CALL = re.compile(r"save|fsync|flush|write|dump|^_?close$|__exit__|copy", re.I)
_PIPE_WCHAN = re.compile(r"pipe_read|pipe_wait")
_PYTHON_PIPE_CODE = re.compile(r"/multiprocessing/|/subprocess\.py$|/selectors\.py$")
_LOADER_CODE = re.compile(r"/torch/utils/data/|/multiprocessing/queues\.py$")
_NETWORK_CODE = re.compile(
    r"/(?:socket|ssl|ftplib|smtplib)\.py$|/urllib/|/urllib3/|/requests/|/http/client\.py$|/httpx/|/httpcore/|/aiohttp/"
    r"|/botocore/|/paramiko/"
)
_STORE_CALL = re.compile(r"TCPStore|PrefixStore|store_wait|_store_get")
_NETWORK_WCHAN = re.compile(r"sk_wait_data|inet_csk_accept|inet_stream_connect|wait_woken|(?:^|_)tcp_")


HAS_ENDED = "has ended"
NEVER_REPORTED = "has sent no record"  # it may still import, or runs without the recorder
IS_SILENT = "has sent no record for more than a minute"
IS_EXITING = "has ended, and waits for a thread"


class Fault(NamedTuple):
    """Why a rank is missing.

    limit_s: seconds after which it is a hang.
    lasted_s: seconds that count: for which it was idle or, if it works, without progress.
    is_certain: it is a hang even if another missing rank may still call the collective.
    predicate: of the sentence (`is stopped`); empty: `hangs`, or as the kind requires.
    """

    kind: FaultClass
    limit_s: float
    lasted_s: float
    is_certain: bool = False
    predicate: str = ""


class IdleClass(NamedTuple):
    """The class of a rank that does nothing, and for how many seconds it must do nothing to hang, at least."""

    kind: FaultClass
    floor_s: float


def diagnose_missing_rank(record: RankRecord | None, others_pause_s: float, waited_s: float) -> Fault:
    """Return the fault of one rank. `record` is None if the rank has sent none.

    `others_pause_s`: the longest usual pause of the ranks that wait for it, in seconds; `waited_s`: how long they have
    waited.
    """
    if record is None:
        return Fault("missing-rank", get_active_limit(others_pause_s), waited_s, predicate=NEVER_REPORTED)
    if record.kind == "silent":
        limit_s = max(SILENT_FLOOR_S, PAUSE_FACTOR * others_pause_s)
        return Fault("missing-rank", limit_s, waited_s, predicate=IS_SILENT)
    if has_ended(record):
        return Fault("missing-rank", ENDED_FLOOR_S, waited_s, is_certain=True, predicate=HAS_ENDED)
    return _diagnose_running_rank(record, max(others_pause_s, record.typical_pause_s))


def _diagnose_running_rank(record: RankRecord, typical_pause_s: float) -> Fault:
    """The fault of a rank whose process exists. `typical_pause_s`: the longest of this rank and those that wait."""
    slow_phase_limit_s = max(PAUSE_FACTOR * typical_pause_s, IDLE_FACTOR * record.longest_idle_s)
    if is_stopped(record):
        limit_s = max(STOPPED_FLOOR_S, slow_phase_limit_s)
        lasted_s = max(record.frozen_s, record.idle_s)
        return Fault("stopped", limit_s, lasted_s, is_certain=True, predicate=_describe_stop(record))
    has_started = record.typical_pause_s > 0 or has_completed_collective(record)
    # Also a file system of another job may be full: only a rank that writes can wait for space.
    if record.full_mount and has_started and (record.writes_files or _is_flushing(record)):
        predicate = f"is out of disk space at {record.full_mount}"
        limit_s = max(BLOCKED_FLOOR_S, slow_phase_limit_s)
        return Fault("storage", limit_s, record.stalled_s, is_certain=True, predicate=predicate)
    idle_fault = _diagnose_idle_rank(record, slow_phase_limit_s, has_started=has_started)
    active_limit_s = get_active_limit(typical_pause_s)
    is_over_limit = idle_fault.lasted_s >= idle_fault.limit_s
    if is_over_limit or (is_idle(record) and record.stalled_s < active_limit_s):
        return idle_fault
    kind: FaultClass = "compute" if idle_fault.kind in ("missing-rank", "gil") else idle_fault.kind
    return Fault(kind, active_limit_s, record.stalled_s)


def _diagnose_idle_rank(record: RankRecord, slow_phase_limit_s: float, *, has_started: bool) -> Fault:
    """The fault of a rank that runs and is idle, now or since a while."""
    kind, floor_s = classify_fault(record)
    if not has_started:
        floor_s = max(floor_s, START_FLOOR_S)
    if is_polling_elsewhere(record):
        floor_s = max(floor_s, POLLING_FLOOR_S)
    predicate = IS_EXITING if record.is_exiting else ""
    is_certain = get_fault_facts(kind).is_certain
    return Fault(kind, max(floor_s, slow_phase_limit_s), record.idle_s, is_certain, predicate)


def is_idle(record: RankRecord) -> bool:
    """Whether measurements prove that the rank, and its children, do nothing now."""
    return record.idle_s > 0


def is_polling_elsewhere(record: RankRecord) -> bool:
    """Whether a loop of the rank may wait for work elsewhere. A data loader's own loop only checks its processes."""
    return record.is_polling and classify_fault(record).kind != "data-loader"


def has_ended(record: RankRecord) -> bool:
    """Whether the rank's process has ended, as its node's recorder found."""
    return record.kind == "end" or (record.kind == "stall" and record.state in ("", "Z", "X"))


def has_completed_collective(record: RankRecord) -> bool:
    """Whether a collective of the rank is complete, in any of its groups."""
    return any(progress.completed > 0 for progress in record.groups.values())


def get_active_limit(typical_pause_s: float) -> float:
    """For how many seconds a rank that works may make no progress."""
    return max(ACTIVE_FLOOR_S, ACTIVE_PAUSE_FACTOR * typical_pause_s)


def _describe_stop(record: RankRecord) -> str:
    return "is frozen by its control group" if is_frozen(record) else "is stopped"


def classify_fault(record: RankRecord) -> IdleClass:
    """The class of a rank that does nothing, by the strongest evidence."""
    if record.frozen_s > MIN_FROZEN_S and record.state != "D" and not record.uses_files:
        return IdleClass("gil", BLOCKED_FLOOR_S)
    if _is_in_storage(record):
        floor_s = FLUSH_FLOOR_S if _is_flushing(record) else BLOCKED_FLOOR_S
        return IdleClass("storage", floor_s)
    if any(_LOADER_CODE.search(frame.file) for frame in record.stack):
        return IdleClass("data-loader", LOADER_FLOOR_S)
    if _is_in_network(record):
        return IdleClass("network", BLOCKED_FLOOR_S)
    return IdleClass("missing-rank", FLOOR_S)


def list_wait_kinds(record: RankRecord) -> set[FaultClass]:
    """The classes of all that an idle rank may wait for: also of the files and machines of its other threads."""
    kinds = {classify_fault(record).kind}
    for wait in record.kernel_waits:
        state, _, wchan = wait.partition(" ")
        if state == "D" or _FILE_WCHAN.search(wchan):
            kinds.add("storage")
        elif _NETWORK_WCHAN.search(wchan):
            kinds.add("network")
    return kinds


def _is_in_storage(record: RankRecord) -> bool:
    """Whether the main thread reads or writes files, by the process's state, its kernel function or its stack."""
    files = [frame.file for frame in record.stack]
    if record.state == "D" or _FILE_WCHAN.search(record.wchan) or any(map(_FILE_CODE.search, files)):
        return True
    return bool(_PIPE_WCHAN.search(record.wchan)) and not any(map(_PYTHON_PIPE_CODE.search, files))


def _is_flushing(record: RankRecord) -> bool:
    """Whether it waits for data to reach the disk, which for a large checkpoint takes long."""
    calls = [frame.function for frame in record.stack[:6]]
    return bool(_FLUSH_WCHAN.search(record.wchan)) or any(map(_FLUSH_CALL.search, calls))


def _is_in_network(record: RankRecord) -> bool:
    """Whether the main thread waits for another machine outside of torch.distributed."""
    if _NETWORK_WCHAN.search(record.wchan):
        return True
    return any(_NETWORK_CODE.search(frame.file) or _STORE_CALL.search(frame.function) for frame in record.stack)
