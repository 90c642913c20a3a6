"""The metrics by name, as Prometheus parses them."""

from prometheus_client.core import Metric

from tests.histories import recorded
from torchyard.exporter.facts import AllRuns, RunFacts
from torchyard.exporter.families import build_families
from torchyard.trend.records import History

RUNS = (
    RunFacts("a-1", "a", "volcano", "running", attempts=2, recoveries=1, gpus=16, start_delay_s=40.0, is_open=True),
    RunFacts("a-2", "a", "volcano", "waiting", attempts=1, recoveries=0, waiting_s=90.0, is_open=True),
    RunFacts("a-3", "a", "volcano", "failed", attempts=3, recoveries=0),
    RunFacts("b-1", "b", "baremetal", "running", attempts=1, recoveries=2, is_open=True),
)


def sampled(found: AllRuns, *histories: History) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """The samples of each family: the values of their labels, and the value."""
    families: list[Metric] = list(build_families(found, histories))
    return {each.name: [(tuple(s.labels.values()), s.value) for s in each.samples] for each in families}


def test_runs_are_counted_by_profile_launcher_and_state() -> None:
    """Each state of each profile has its count; attempts, recoveries and GPUs are sums; folders without a run count."""
    found = sampled(AllRuns(RUNS, ("torn-1",)))
    assert found["torchyard_runs"] == [
        (("a", "volcano", "failed"), 1),
        (("a", "volcano", "running"), 1),
        (("a", "volcano", "waiting"), 1),
        (("b", "baremetal", "running"), 1),
    ]
    assert found["torchyard_attempts"] == [(("a", "volcano"), 6), (("b", "baremetal"), 1)]
    assert found["torchyard_recoveries"] == [(("a", "volcano"), 1), (("b", "baremetal"), 2)]
    assert found["torchyard_gpus_held"] == [(("a", "volcano"), 16)]
    assert found["torchyard_run_waiting_seconds"] == [(("a-2", "a", "volcano"), 90)]
    assert found["torchyard_run_start_delay_seconds"] == [(("a-1", "a", "volcano"), 40)]
    assert found["torchyard_unreadable_folders"] == [((), 1)]


def test_histories_say_when_a_profile_last_succeeded() -> None:
    """The last success is older than the last end if a run failed since; a cancelled run is neither."""
    good, bad, gone = recorded([200.0, 150.0, 1.0])
    bad, gone = bad.model_copy(update={"end": "failed"}), gone.model_copy(update={"end": "cancelled"})
    found = sampled(AllRuns((), ()), History((good, bad, gone), 2))
    profile = (good.key.profile,)
    assert found["torchyard_last_success_timestamp_seconds"] == [(profile, good.at)]
    assert found["torchyard_last_end_timestamp_seconds"] == [(profile, bad.at)]
    assert found["torchyard_last_run_succeeded"] == [(profile, 0)]
    assert found["torchyard_unreadable_history_lines"] == [((), 2)]


def test_bandwidth_is_in_bytes_and_the_network_is_counted() -> None:
    """GB/s become bytes per second, per fabric; verdicts are counted per profile."""
    first, second = recorded([200.0, 180.0])
    second = second.model_copy(update={"fabric": "as-promised"})
    found = sampled(AllRuns((), ()), History((first, second)))
    key = second.key
    assert found["torchyard_busbw_bytes_per_second"] == [((key.profile, key.hardware, key.fabric, key.nodes), 180e9)]
    assert found["torchyard_fabric_verdicts"] == [((key.profile, "as-promised"), 1)]
