"""The metrics by name, as Prometheus parses them."""

from prometheus_client.core import Metric

from tests.builders.histories import build_records
from torchyard.exporter.families import build_families
from torchyard.listing.run_summaries import AllRuns, RunSummary, UnreadableFolder
from torchyard.trend.records import History

RUNS = (
    RunSummary("a-1", "a", "volcano", "running", attempts=2, recoveries=1, gpus=16, start_delay_s=40.0, is_open=True),
    RunSummary("a-2", "a", "volcano", "waiting", attempts=1, recoveries=0, waiting_s=90.0, is_open=True),
    RunSummary("a-3", "a", "volcano", "failed", attempts=3, recoveries=0),
    RunSummary("b-1", "b", "baremetal", "running", attempts=1, recoveries=2, is_open=True),
)


def sampled(all_runs: AllRuns, *histories: History) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """The samples of each family: the values of their labels, and the value."""
    families: list[Metric] = list(build_families(all_runs, histories))
    return {
        family.name: [(tuple(sample.labels.values()), sample.value) for sample in family.samples] for family in families
    }


def test_runs_are_counted_by_profile_launcher_and_state() -> None:
    """Each state of each profile has its count; attempts, recoveries and GPUs are sums; folders without a run count."""
    samples = sampled(AllRuns(RUNS, (UnreadableFolder("torn-1", "no line"),)))
    assert samples["torchyard_runs"] == [
        (("a", "volcano", "failed"), 1),
        (("a", "volcano", "running"), 1),
        (("a", "volcano", "waiting"), 1),
        (("b", "baremetal", "running"), 1),
    ]
    assert samples["torchyard_attempts"] == [(("a", "volcano"), 6), (("b", "baremetal"), 1)]
    assert samples["torchyard_recoveries"] == [(("a", "volcano"), 1), (("b", "baremetal"), 2)]
    assert samples["torchyard_gpus_held"] == [(("a", "volcano"), 16)]
    assert samples["torchyard_run_waiting_seconds"] == [(("a-2", "a", "volcano"), 90)]
    assert samples["torchyard_run_start_delay_seconds"] == [(("a-1", "a", "volcano"), 40)]
    assert samples["torchyard_unreadable_folders"] == [((), 1)]


def test_last_success_and_last_end_of_a_profile() -> None:
    """The last success is older than the last end if a run failed since; a cancelled run is neither."""
    succeeded, failed, cancelled = build_records([200.0, 150.0, 1.0])
    failed = failed.model_copy(update={"end": "failed"})
    cancelled = cancelled.model_copy(update={"end": "cancelled"})
    samples = sampled(AllRuns((), ()), History((succeeded, failed, cancelled), 2))
    profile = (succeeded.key.profile,)
    assert samples["torchyard_last_success_timestamp_seconds"] == [(profile, succeeded.at)]
    assert samples["torchyard_last_end_timestamp_seconds"] == [(profile, failed.at)]
    assert samples["torchyard_last_run_succeeded"] == [(profile, 0)]
    assert samples["torchyard_unreadable_history_lines"] == [((), 2)]


def test_bandwidth_is_in_bytes_and_the_network_is_counted() -> None:
    """GB/s become bytes per second, per fabric; verdicts are counted per profile."""
    first, second = build_records([200.0, 180.0])
    second = second.model_copy(update={"fabric": "as-promised"})
    samples = sampled(AllRuns((), ()), History((first, second)))
    key = second.key
    assert samples["torchyard_busbw_bytes_per_second"] == [((key.profile, key.hardware, key.fabric, key.nodes), 180e9)]
    assert samples["torchyard_fabric_verdicts"] == [((key.profile, "as-promised"), 1)]


def test_bandwidth_is_that_of_the_last_image() -> None:
    """Runs of several images have one sample, because the image is not a label: that of the last run."""
    first, second = build_records([200.0, 90.0])
    second = second.model_copy(update={"key": second.key.model_copy(update={"image": "train:2"})})
    samples = sampled(AllRuns((), ()), History((first, second)))
    assert [value for _, value in samples["torchyard_busbw_bytes_per_second"]] == [90e9]
