"""Your own step between two of torchyard: each step of a run is a Prefect task that can be used alone."""

from prefect import flow, task

from torchyard.tasks import collect, ensure_rendezvous, load_profile, plan, preflight, submit, teardown, wait


@task
def bring_data(nodes: tuple[str, ...]) -> None:
    """A placeholder for your own step, such as copying the data to the path that the job reads."""
    print(f"data for {', '.join(nodes)}")


@flow
def own_step(epochs: int = 10) -> float:
    """Return the accuracy. The teardown runs in every case, so that nothing remains."""
    profile = load_profile("digits-local", {"args": [f"--epochs={epochs}"]})
    job = plan(profile)
    preflight(job)
    bring_data(tuple(job.nodes))
    try:
        ensure_rendezvous(job)
        outcome = wait(submit(job, profile.deadlines))
        collected = collect(job, outcome)
    finally:
        leftovers = teardown(job)
    if collected.failure:
        raise RuntimeError(collected.failure.sentence)
    if leftovers:
        raise RuntimeError(f"left behind: {', '.join(leftovers)}")
    return float(collected.metrics.rows[-1]["accuracy"] or 0)


if __name__ == "__main__":
    print(own_step())
