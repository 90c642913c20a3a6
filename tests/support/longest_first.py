"""The order in which modules begin: the longest first, so that no process is alone with one of them at the end."""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# The modules that take longest, by their measured durations (`--junit-xml`). The others follow.
LONGEST = (
    "cluster/test_all_profiles.py",
    "cluster/test_in_cluster.py",
    "cluster/test_profiles.py",
    "cluster/test_real.py",
    "cluster/test_lease.py",
    "cluster/test_faults.py",
    "cluster/test_retries.py",
    "cluster/test_manifests.py",
    "cluster/test_hang.py",
    "cluster/test_preflight.py",
    "cluster/test_rights.py",
    "cluster/test_objects.py",
    "cluster/test_credentials.py",
    "cluster/test_benchmark.py",
    "cluster/test_watch.py",
    "cluster/test_stuck.py",
    "local/test_examples.py",
    "local/ssh/test_flow_runs.py",
    "local/test_browser.py",
    "local/test_lost_launcher.py",
    "local/test_programs.py",
    "local/ssh/test_jobs.py",
    "local/test_two_checkouts.py",
    "local/test_reuse.py",
    "local/test_hang.py",
    "local/ssh/test_faults.py",
    "local/test_wheel.py",
    "local/test_allreduce.py",
    "local/test_fabric_check.py",
    "local/test_deployments.py",
    "local/test_images.py",
    "local/test_whole_runs.py",
    "local/test_shared_pool.py",
    "local/test_recovery.py",
    "local/test_archive.py",
    "local/test_lost_benchmark.py",
    "local/test_separate_ranks.py",
    "local/test_stop_examples.py",
)


def sort_tests(items: list[pytest.Item]) -> None:
    """Sort the tests by their module's index in `LONGEST`; those of the other modules keep their order."""
    indices = {TESTS / name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: indices.get(item.path, len(LONGEST)))
