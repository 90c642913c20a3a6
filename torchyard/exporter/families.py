"""All runs and their histories as families of Prometheus' metrics.

They are gauges, also where they count: run folders may be removed, and a counter that goes down would be taken for one
that has begun again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from torchyard.exporter.facts import AllRuns, RunFacts
from torchyard.trend.records import History, Record

_BYTES_PER_GB = 1e9
_BUSBW = "busbw"  # GB/s, of nccl-tests and programs/allreduce.py
_JUDGED_ENDS = ("succeeded", "failed", "gave-up", "swept")  # what a person has ended says nothing about the job


def build_families(found: AllRuns, histories: Sequence[History]) -> Iterator[Metric]:
    """Every family of metrics, also those without a sample."""
    yield from _count_runs(found)
    yield from _describe_jobs(found.runs)
    yield from _describe_history(histories)


def _count_runs(found: AllRuns) -> Iterator[Metric]:
    states = _family("torchyard_runs", "Runs whose folder is on this machine.", ("profile", "launcher", "state"))
    for names, count in sorted(Counter((each.profile, each.launcher, each.state) for each in found.runs).items()):
        states.add_metric(names, count)
    yield states
    unread = _family("torchyard_unreadable_folders", "Run folders that cannot be read: their runs are not counted.", ())
    unread.add_metric((), len(found.unreadable))
    yield unread
    yield _sum_up("torchyard_attempts", "Attempts of these runs.", found.runs, lambda each: each.attempts)
    about = "How often a process went on with a run that had lost its process."
    yield _sum_up("torchyard_recoveries", about, found.runs, lambda each: each.recoveries)


def _describe_jobs(runs: Sequence[RunFacts]) -> Iterator[Metric]:
    about = "GPUs of the jobs that have started and may still be there."
    yield _sum_up("torchyard_gpus_held", about, [each for each in runs if each.gpus], lambda each: each.gpus)
    names = ("run", "profile", "launcher")
    waits = _family("torchyard_run_waiting_seconds", "How long a submitted job has not started yet.", names)
    for each in runs:
        if each.state == "waiting":
            waits.add_metric((each.run, each.profile, each.launcher), each.waiting_s)
    yield waits
    delays = _family("torchyard_run_start_delay_seconds", "From the submit to the start, of an open run's job.", names)
    for each in runs:
        if each.is_open and each.start_delay_s is not None:
            delays.add_metric((each.run, each.profile, each.launcher), each.start_delay_s)
    yield delays


def _describe_history(histories: Sequence[History]) -> Iterator[Metric]:
    records = sorted((each for history in histories for each in history.records), key=lambda each: each.at)
    ended = [each for each in records if each.end in _JUDGED_ENDS]
    last = {each.key.profile: each for each in ended}
    good = {each.key.profile: each for each in ended if each.end == "succeeded"}
    about = "When the last run of a profile succeeded."
    yield _by_profile("torchyard_last_success_timestamp_seconds", about, good, lambda each: each.at)
    about = "When the last run of a profile ended, other than by a person."
    yield _by_profile("torchyard_last_end_timestamp_seconds", about, last, lambda each: each.at)
    about = "Whether that run succeeded."
    yield _by_profile("torchyard_last_run_succeeded", about, last, lambda each: float(each.end == "succeeded"))
    about = "How long that run took, with the time that it waited."
    yield _by_profile("torchyard_last_run_duration_seconds", about, last, lambda each: each.seconds)
    yield _count_verdicts(ended)
    yield _describe_bandwidth(ended)
    lines = _family("torchyard_unreadable_history_lines", "Lines of the histories that cannot be read.", ())
    lines.add_metric((), sum(history.skipped for history in histories))
    yield lines


def _count_verdicts(records: Iterable[Record]) -> Metric:
    family = _family("torchyard_fabric_verdicts", "Runs of the histories by the network used.", ("profile", "verdict"))
    for names, count in sorted(Counter((each.key.profile, each.fabric) for each in records if each.fabric).items()):
        family.add_metric(names, count)
    return family


def _describe_bandwidth(records: Iterable[Record]) -> Metric:
    about = "Bus bandwidth of the largest message, in the last run that measured it."
    family = _family("torchyard_busbw_bytes_per_second", about, ("profile", "hardware", "fabric", "nodes"))
    keys = {each.key: each.numbers[_BUSBW] for each in records if _BUSBW in each.numbers}
    for key, value in keys.items():
        family.add_metric((key.profile, key.hardware, key.fabric, key.nodes), value * _BYTES_PER_GB)
    return family


def _by_profile(name: str, about: str, found: dict[str, Record], value: Callable[[Record], float]) -> Metric:
    family = _family(name, about, ("profile",))
    for profile, record in sorted(found.items()):
        family.add_metric((profile,), value(record))
    return family


def _sum_up(name: str, about: str, runs: Iterable[RunFacts], value: Callable[[RunFacts], int]) -> Metric:
    """A sum over the runs of each profile and launcher."""
    sums: Counter[tuple[str, str]] = Counter()
    for each in runs:
        sums[each.profile, each.launcher] += value(each)
    family = _family(name, about, ("profile", "launcher"))
    for names, total in sorted(sums.items()):
        family.add_metric(names, total)
    return family


def _family(name: str, about: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=list(labels))
