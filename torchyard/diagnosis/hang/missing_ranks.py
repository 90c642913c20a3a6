"""Why a rank does not come to a collective that others wait in, and from when that is a hang."""

import re
from typing import NamedTuple

from torchyard.model.hang import HangClass, RankRecord

FLOOR_S = 3.0  # of a rank that does nothing
STOPPED_FLOOR_S = 2.0
ENDED_FLOOR_S = 10.0  # torchrun itself needs some seconds to notice it and to end the others
LOADER_FLOOR_S = 4.0
BLOCKED_FLOOR_S = 8.0  # storage, and a C call that holds the GIL
FLUSH_FLOOR_S = 60.0  # an fsync of a large checkpoint writes nothing that the process's counters show
START_FLOOR_S = 20.0  # before the first collective is complete
ACTIVE_FLOOR_S = 300.0  # a rank that computes, compiles, evaluates or writes; or of which nothing is known
PAUSE_FACTOR = 3.0
ACTIVE_PAUSE_FACTOR = 20.0
MIN_BLIND_S = 3.0

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


class Fault(NamedTuple):
    """Why a rank is missing. `limit_s`: it is a hang after that; `is_certain`: whatever others do."""

    kind: HangClass
    limit_s: float
    is_certain: bool = False
    predicate: str = ""  # in place of `hangs`


HAS_ENDED = "has ended"
IS_SILENT = "has sent no record"


def diagnose_missing_rank(record: RankRecord | None, others_pause_s: float) -> Fault:
    """The fault of one rank; None: there is no record of it, or none for a long time."""
    typical_pause_s = max(others_pause_s, record.usual_s if record else 0.0)
    if record is None:
        return Fault("missing-rank", _get_active_limit(typical_pause_s), predicate=IS_SILENT)
    if record.kind == "end" or record.state in ("", "Z", "X"):
        return Fault("missing-rank", ENDED_FLOOR_S, is_certain=True, predicate=HAS_ENDED)
    if record.state in ("T", "t"):
        return Fault(
            "stopped", max(STOPPED_FLOOR_S, PAUSE_FACTOR * typical_pause_s), is_certain=True, predicate="is stopped"
        )
    has_started = record.usual_s > 0 or has_completed_collective(record)
    if record.full and has_started and (is_busy(record) or _is_in_storage(record)):
        return Fault(
            "storage",
            max(BLOCKED_FLOOR_S, PAUSE_FACTOR * typical_pause_s),
            True,
            f"is out of disk space at {record.full}",
        )
    kind, floor_s = _classify_fault(record)
    if is_busy(record) and kind != "gil":
        return Fault("compute" if kind == "missing-rank" else kind, _get_active_limit(typical_pause_s))
    floor_s = floor_s if has_started else max(floor_s, START_FLOOR_S)
    return Fault(kind, max(floor_s, PAUSE_FACTOR * typical_pause_s), is_certain=kind in ("gil", "storage"))


def is_busy(record: RankRecord) -> bool:
    """Whether something goes on in the rank, or in a process that it waits for."""
    return record.writes or record.is_active or any(_CHILD_CODE.search(frame.file) for frame in record.stack)


def has_completed_collective(record: RankRecord) -> bool:
    return any(progress.completed > 0 for progress in record.groups.values())


def _get_active_limit(typical_pause_s: float) -> float:
    return max(ACTIVE_FLOOR_S, ACTIVE_PAUSE_FACTOR * typical_pause_s)


def _classify_fault(record: RankRecord) -> tuple[HangClass, float]:
    """The class by the rank's facts, the strongest first, and the pause that is normal for it."""
    if record.blind_s > MIN_BLIND_S and record.state != "D" and not record.writes:
        return "gil", BLOCKED_FLOOR_S
    if _is_in_storage(record):
        return "storage", FLUSH_FLOOR_S if _is_flushing(record) else BLOCKED_FLOOR_S
    if any(_LOADER_CODE.search(frame.file) for frame in record.stack):
        return "data-loader", LOADER_FLOOR_S
    if _is_in_network(record):
        return "network", BLOCKED_FLOOR_S
    return "missing-rank", FLOOR_S


def _is_in_storage(record: RankRecord) -> bool:
    files = [frame.file for frame in record.stack]
    if record.state == "D" or _FILE_WCHAN.search(record.wchan) or any(map(_FILE_CODE.search, files)):
        return True
    return bool(_PIPE_WCHAN.search(record.wchan)) and not any(map(_PYTHON_PIPE_CODE.search, files))


def _is_flushing(record: RankRecord) -> bool:
    calls = [frame.function for frame in record.stack[:6]]
    return bool(_FLUSH_WCHAN.search(record.wchan)) or any(map(_FLUSH_CALL.search, calls))


def _is_in_network(record: RankRecord) -> bool:
    if _NETWORK_WCHAN.search(record.wchan):
        return True
    return any(_NETWORK_CODE.search(frame.file) or _STORE_CALL.search(frame.function) for frame in record.stack)
