"""A hang and a straggler of a job, and the records of its ranks."""

from typing import Any

from tests.builders.rank_records import build_record
from torchyard.model.hang import RECORD_PREFIX, Collective, Frame, GroupProgress, Hang, RankGroup, RankRecord, Straggler

LOADING_STACK = (
    Frame(function="read_shard", file="/code/train.py", line=12),
    Frame(function="main", file="t.py", line=40),
)
WAITING_STACK = (Frame(function="all_reduce", file="/torch/distributed.py", line=99), LOADING_STACK[1])
ALL_REDUCE = Collective(group="0", sequence=7, operation="all_reduce", sizes=((4,),), dtypes=("float32",))
HANG = Hang(
    kind="storage",
    ranks=(2,),
    nodes=("node-1",),
    sentence="rank 2 on node-1 has read a file for 4 min in read_shard (train.py:12); 3 ranks wait for it",
    location="read_shard (train.py:12)",
    collective=ALL_REDUCE,
    waiting=(0, 1, 3),
    stalled_s=240,
    rank_groups=(
        RankGroup(ranks=(0, 1, 3), location="all_reduce (distributed.py:99)"),
        RankGroup(ranks=(2,), location="read_shard (train.py:12)"),
    ),
    evidence=("rank 2 has called 6 collectives, the others 7", "rank 2 sleeps in the kernel, in nfs_wait"),
)
STRAGGLER = Straggler(rank=3, node="node-1", lost_percent=21.7, lost_s=65, window_s=300)


def build_job_record(rank: int, **changes: Any) -> RankRecord:
    """The record of a rank that waits in an all-reduce, which rank 2 has not called; two ranks per node."""
    is_missing = rank == 2
    progress = GroupProgress(enqueued=6 if is_missing else 7, completed=6)
    fields: dict[str, object] = {"stalled_s": 240.0, "typical_pause_s": 2.0, "groups": {"0": progress}}
    if is_missing:
        fields |= {"pending": None, "stack": LOADING_STACK, "state": "D"}
    else:
        fields |= {"pending": ALL_REDUCE, "stack": WAITING_STACK, "state": "S"}
    return build_record(rank, **fields | changes)


RECORDS = {rank: build_job_record(rank) for rank in range(4)}


def format_record_line(rank_record: RankRecord) -> str:
    """The text of a log line that holds a record."""
    return f"{RECORD_PREFIX}{rank_record.model_dump_json(exclude={'node'})}"
