"""Why a rank has not called a collective that others wait in, and after how long that is a hang."""

import re
from typing import NamedTuple

from torchyard.diagnosis.hang.classes import get_fault_facts
from torchyard.diagnosis.hang.pending_collectives import is_stopped
from torchyard.model.hang import FaultClass, RankRecord

# Seconds without progress after which a missing rank hangs, at least; a slow job gets a multiple of its usual pause.
FLOOR_S = 3.0  # of a rank that does nothing
STOPPED_FLOOR_S = 2.0
ENDED_FLOOR_S = 10.0  # torchrun itself needs some seconds to notice it and to end the others
LOADER_FLOOR_S = 4.0
BLOCKED_FLOOR_S = 8.0  # storage, and a C call that holds the GIL
FLUSH_FLOOR_S = 60.0  # an fsync of a large checkpoint writes nothing that the process's counters show
START_FLOOR_S = 20.0  # before the first collective is complete
ACTIVE_FLOOR_S = 300.0  # a rank that computes, compiles, evaluates or writes; or of which nothing is known
PAUSE_FACTOR = 3.0  # times the longest pause so far
ACTIVE_PAUSE_FACTOR = 20.0
MIN_FROZEN_S = 3.0  # without a run of the recorder's thread: shorter gaps are normal on a loaded machine

_FILE_CODE = re.compile(
    r"/torch/serialization\.py$|/torch/distributed/checkpoint/|/(?:shutil|pathlib|zipfile|tarfile|gzip|bz2|lzma)\.py$"
    r"|/numpy/lib/(?:_?npyio|_?format)|/safetensors/|/h5py/"
)
_FILE_WCHAN = re.compile(
    r"nfs_|nfs4_|rpc_wait|folio_wait|wait_on_page|ext4|xfs_|btrfs|fuse|ceph|gpfs|^ll_|^cl_|jbd2|io_schedule|blk_"
    r"|wait_for_partner|fifo_open|fsync|writeback|wb_wait"
)
_FLUSH_WCHAN = re.compile(r"fsync|writeback|wb_wait|jbd2|sync_file|commit|balance_dirty")
_FLUSH_CALL = re.compile(r"save|fsync|flush|write|dump|^_?close$|__exit__|copy", re.I)
_PIPE_WCHAN = re.compile(r"pipe_read|pipe_wait")
_PYTHON_PIPE_CODE = re.compile(r"/multiprocessing/|/subprocess\.py$|/selectors\.py$")
_CHILD_CODE = re.compile(r"/subprocess\.py$")
_LOADER_CODE = re.compile(r"/torch/utils/data/|/multiprocessing/queues\.py$")
_NETWORK_CODE = re.compile(
    r"/(?:socket|ssl|ftplib|smtplib)\.py$|/urllib/|/urllib3/|/requests/|/http/client\.py$|/httpx/|/httpcore/|/aiohttp/"
    r"|/botocore/|/paramiko/"
)
_STORE_CALL = re.compile(r"TCPStore|PrefixStore|store_wait|_store_get")
_NETWORK_WCHAN = re.compile(r"sk_wait_data|inet_csk_accept|inet_stream_connect|wait_woken|(?:^|_)tcp_")


HAS_ENDED = "has ended"
IS_SILENT = "has sent no record"


class Fault(NamedTuple):
    """Why a rank is missing.

    limit_s: seconds without progress after which it is a hang.
    is_certain: it is a hang even if another missing rank may still call the collective.
    predicate: of the sentence (`is stopped`); empty: `hangs`, or as the kind requires.
    """

    kind: FaultClass
    limit_s: float
    is_certain: bool = False
    predicate: str = ""


def diagnose_missing_rank(record: RankRecord | None, others_pause_s: float) -> Fault:
    """Return the fault of one rank. `record` is None if the rank has sent none, or none for a long time.

    `others_pause_s`: the longest normal pause of the ranks that wait for it, in seconds.
    """
    if record is None:
        return Fault("missing-rank", _get_active_limit(others_pause_s), predicate=IS_SILENT)
    typical_pause_s = max(others_pause_s, record.typical_pause_s)
    slow_job_limit_s = PAUSE_FACTOR * typical_pause_s
    if record.kind == "end" or record.state in ("", "Z", "X"):
        return Fault("missing-rank", ENDED_FLOOR_S, is_certain=True, predicate=HAS_ENDED)
    if is_stopped(record):
        return Fault("stopped", max(STOPPED_FLOOR_S, slow_job_limit_s), is_certain=True, predicate="is stopped")
    has_started = record.typical_pause_s > 0 or has_completed_collective(record)
    if record.full_mount and has_started and (is_busy(record) or _is_in_storage(record)):
        predicate = f"is out of disk space at {record.full_mount}"
        return Fault("storage", max(BLOCKED_FLOOR_S, slow_job_limit_s), is_certain=True, predicate=predicate)
    kind, floor_s = _classify_fault(record)
    facts = get_fault_facts(kind)
    if is_busy(record) and not facts.is_frozen:
        return Fault("compute" if kind == "missing-rank" else kind, _get_active_limit(typical_pause_s))
    if not has_started:
        floor_s = max(floor_s, START_FLOOR_S)
    return Fault(kind, max(floor_s, slow_job_limit_s), is_certain=facts.is_certain)


def is_busy(record: RankRecord) -> bool:
    """Whether the rank, or a child process that it waits for, may be doing work."""
    return record.uses_files or record.is_active or any(_CHILD_CODE.search(frame.file) for frame in record.stack)


def has_completed_collective(record: RankRecord) -> bool:
    """Whether a collective of the rank is complete, in any of its groups."""
    return any(progress.completed > 0 for progress in record.groups.values())


def _get_active_limit(typical_pause_s: float) -> float:
    return max(ACTIVE_FLOOR_S, ACTIVE_PAUSE_FACTOR * typical_pause_s)


def _classify_fault(record: RankRecord) -> tuple[FaultClass, float]:
    """The class of a rank that does nothing, by the strongest evidence, and its limit in seconds."""
    if record.frozen_s > MIN_FROZEN_S and record.state != "D" and not record.uses_files:
        return "gil", BLOCKED_FLOOR_S
    if _is_in_storage(record):
        floor_s = FLUSH_FLOOR_S if _is_flushing(record) else BLOCKED_FLOOR_S
        return "storage", floor_s
    if any(_LOADER_CODE.search(frame.file) for frame in record.stack):
        return "data-loader", LOADER_FLOOR_S
    if _is_in_network(record):
        return "network", BLOCKED_FLOOR_S
    return "missing-rank", FLOOR_S


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
