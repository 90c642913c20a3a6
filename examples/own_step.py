"""A step of one's own between two of ours: each step of a run is a Prefect task that can be used alone."""

from prefect import flow, task

from torchyard.tasks import collect, ensure_rendezvous, load_profile, plan, preflight, submit, teardown, wait


@task
def bring_data(nodes: tuple[str, ...]) -> None:
    """Stands for a step of your own, such as copying the data to where the job reads it."""
    print(f"data for {', '.join(nodes)}")


@flow
def own_step(epochs: int = 10) -> float:
    """The accuracy; from preflight to teardown, nothing is left behind, whatever happens."""
    profile = load_profile("digits-local", {"args": [f"--epochs={epochs}"]})
    job = plan(profile)
    preflight(job)
    bring_data(tuple(job.nodes))
    try:
        ensure_rendezvous(job)
        outcome = wait(submit(job, profile.deadlines))
        found = collect(job, outcome, profile.metrics)
    finally:
        left = teardown(job)
    if found.failure or left:
        raise RuntimeError(found.failure.sentence if found.failure else f"left behind: {', '.join(left)}")
    return float(found.metrics.rows[-1]["accuracy"] or 0)


if __name__ == "__main__":
    print(own_step())
