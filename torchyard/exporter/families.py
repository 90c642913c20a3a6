"""All runs and their histories as metric families of Prometheus.

All of them are gauges, also those that count: run folders may be removed, and Prometheus takes a counter that decreases
for one that was reset.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from torchyard.listing.run_summaries import AllRuns, RunSummary
from torchyard.trend.records import History, Record

_BYTES_PER_GB = 1e9
_BUSBW = "busbw"  # GB/s, of nccl-tests and programs/allreduce.py
_JOB_ENDS = ("succeeded", "failed", "gave-up", "swept")  # an end by a person is not a fact about the job


def build_families(all_runs: AllRuns, histories: Sequence[History]) -> Iterator[Metric]:
    """All metric families, also those without a sample."""
    yield from _build_run_families(all_runs)
    yield from _build_job_families(all_runs.runs)
    yield from _build_history_families(histories)


def _build_run_families(all_runs: AllRuns) -> Iterator[Metric]:
    runs = all_runs.runs
    states = _create_family("torchyard_runs", "Runs whose folder is on this machine.", ("profile", "launcher", "state"))
    for labels, count in sorted(Counter((run.profile, run.launcher, run.state) for run in runs).items()):
        states.add_metric(labels, count)
    yield states
    unreadable = _create_family(
        "torchyard_unreadable_folders", "Run folders that cannot be read: their runs are not counted.", ()
    )
    unreadable.add_metric((), len(all_runs.unreadable))
    yield unreadable
    yield _build_sum_family("torchyard_attempts", "Attempts of these runs.", runs, lambda run: run.attempts)
    help_text = "How often a process resumed a run that had lost its process."
    yield _build_sum_family("torchyard_recoveries", help_text, runs, lambda run: run.recoveries)


def _build_job_families(runs: Sequence[RunSummary]) -> Iterator[Metric]:
    help_text = "GPUs of the jobs that have started and may still exist."
    yield _build_sum_family("torchyard_gpus_held", help_text, [run for run in runs if run.gpus], lambda run: run.gpus)
    labels = ("run", "profile", "launcher")
    waiting_times = _create_family(
        "torchyard_run_waiting_seconds", "How long a submitted job has not started yet.", labels
    )
    for run in runs:
        if run.state == "waiting":
            waiting_times.add_metric((run.run, run.profile, run.launcher), run.waiting_s)
    yield waiting_times
    delays = _create_family(
        "torchyard_run_start_delay_seconds", "From the submit to the start, of an open run's job.", labels
    )
    for run in runs:
        if run.is_open and run.start_delay_s is not None:
            delays.add_metric((run.run, run.profile, run.launcher), run.start_delay_s)
    yield delays


def _build_history_families(histories: Sequence[History]) -> Iterator[Metric]:
    records: list[Record] = []
    for history in histories:
        records += history.records
    records.sort(key=lambda record: record.at)
    ended = [record for record in records if record.end in _JOB_ENDS]
    last = {record.key.profile: record for record in ended}
    succeeded = {record.key.profile: record for record in ended if record.end == "succeeded"}
    help_text = "When the last run of a profile succeeded."
    yield _build_profile_family(
        "torchyard_last_success_timestamp_seconds", help_text, succeeded, lambda record: record.at
    )
    help_text = "When the last run of a profile ended, other than by a person."
    yield _build_profile_family("torchyard_last_end_timestamp_seconds", help_text, last, lambda record: record.at)
    help_text = "Whether that run succeeded."
    yield _build_profile_family(
        "torchyard_last_run_succeeded", help_text, last, lambda record: float(record.end == "succeeded")
    )
    help_text = "How long that run took, including the time that it waited."
    yield _build_profile_family("torchyard_last_run_duration_seconds", help_text, last, lambda record: record.seconds)
    yield _count_verdicts(ended)
    yield _build_bandwidth_family(ended)
    lines = _create_family("torchyard_unreadable_history_lines", "Lines of the histories that cannot be read.", ())
    lines.add_metric((), sum(history.skipped for history in histories))
    yield lines


def _count_verdicts(records: Iterable[Record]) -> Metric:
    family = _create_family(
        "torchyard_fabric_verdicts", "Runs of the histories by the network used.", ("profile", "verdict")
    )
    counts = Counter((record.key.profile, record.fabric) for record in records if record.fabric)
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _build_bandwidth_family(records: Iterable[Record]) -> Metric:
    help_text = "Bus bandwidth of the largest message, in the last run that measured it."
    family = _create_family("torchyard_busbw_bytes_per_second", help_text, ("profile", "hardware", "fabric", "nodes"))
    busbw_by_labels: dict[tuple[str, ...], float] = {}
    for record in records:  # the oldest first; runs of several images have the same labels
        key = record.key
        if _BUSBW in record.numbers:
            busbw_by_labels[key.profile, key.hardware, key.fabric, key.nodes] = record.numbers[_BUSBW]
    for labels, busbw in busbw_by_labels.items():
        family.add_metric(labels, busbw * _BYTES_PER_GB)
    return family


def _build_profile_family(
    name: str, help_text: str, records: dict[str, Record], get_value: Callable[[Record], float]
) -> Metric:
    family = _create_family(name, help_text, ("profile",))
    for profile, record in sorted(records.items()):
        family.add_metric((profile,), get_value(record))
    return family


def _build_sum_family(
    name: str, help_text: str, runs: Iterable[RunSummary], get_value: Callable[[RunSummary], int]
) -> Metric:
    """A sum over the runs of each profile and launcher."""
    sums: Counter[tuple[str, str]] = Counter()
    for run in runs:
        sums[run.profile, run.launcher] += get_value(run)
    family = _create_family(name, help_text, ("profile", "launcher"))
    for labels, total in sorted(sums.items()):
        family.add_metric(labels, total)
    return family


def _create_family(name: str, help_text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=list(labels))
