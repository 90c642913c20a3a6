"""The flow `benchmark`: one profile over several fabrics, one after the other, and their comparison."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from torchyard.tasks.benchmark import benchmark_profile


@flow(name="benchmark")
def benchmark(profile: str, fabrics: list[str] | None = None, overrides: dict[str, Any] | None = None) -> State[Any]:
    """Run the training that a profile describes over each fabric and compare the bandwidths.

    Args:
        profile: A name from `torchyard profiles` that has a deployment and prints bandwidths.
        fabrics: Fabrics of the profile's hardware file; by default the profile's own and TCP.
        overrides: Keys of the profile to change for all runs, such as {"nodes": 4}.
    """
    return benchmark_profile(profile, fabrics or [], overrides or {})
