"""Planted records of ranks, for the tests of the black box's verdicts."""

from torchyard.model.hang import Collective, Frame, GroupProgress, RankRecord

TRAIN = "/home/me/train.py"
TORCH = "/venv/lib/python3.11/site-packages/torch"
STEP = (
    Frame(function="all_reduce", file=f"{TORCH}/distributed/distributed_c10d.py", line=3252),
    Frame(function="wrapper", file=f"{TORCH}/distributed/c10d_logger.py", line=83),
    Frame(function="step", file=TRAIN, line=40),
)
LOAD = (Frame(function="load", file=TRAIN, line=88),)
LOADER = (*LOAD, Frame(function="__next__", file=f"{TORCH}/utils/data/dataloader.py", line=741))


def build_record(rank: int, **fields: object) -> RankRecord:
    """A rank of four that has been idle outside of any collective since its stall, after five in the default group."""
    base = {
        "kind": "stall",
        "timestamp": 1000.0,
        "node": f"node-{rank // 2}",
        "rank": rank,
        "world": 4,
        "pid": 100 + rank,
        "stalled_s": 12.0,
        "typical_pause_s": 0.5,
        "groups": {"0": GroupProgress(ranks=(0, 1, 2, 3), enqueued=5, completed=5)},
        "stack": LOAD,
        "state": "S",
        "idle_s": fields.get("stalled_s", 12.0),
    }
    return RankRecord.model_validate(base | fields)


def build_waiting_record(rank: int, **fields: object) -> RankRecord:
    """A rank that waits in the sixth collective of the default group."""
    base: dict[str, object] = {
        "groups": {"0": GroupProgress(ranks=(0, 1, 2, 3), enqueued=6, completed=5)},
        "pending": build_collective(),
        "stack": STEP,
    }
    return build_record(rank, **base | fields)


def build_collective(
    operation: str = "all_reduce", sequence: int = 6, size: int = 1000, group: str = "0"
) -> Collective:
    return Collective(group=group, sequence=sequence, operation=operation, sizes=((size,),), dtypes=("Float",))


def index_by_rank(*records: RankRecord) -> dict[int, RankRecord]:
    return {record.rank: record for record in records}


def build_missing_rank_records(**fields: object) -> dict[int, RankRecord]:
    """Ranks 0 to 2 wait; rank 3 has these facts."""
    return index_by_rank(*map(build_waiting_record, range(3)), build_record(3, **fields))
