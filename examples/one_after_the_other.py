"""Two trainings, one after the other: the second continues the first, and starts only if that has learned enough."""

from prefect import flow

from torchyard.tasks import RunResult, train_profile


@flow
def one_after_the_other(epochs: int = 10) -> RunResult:
    """Try one epoch, then train the others from its last checkpoint."""
    trial = train_profile("digits-local", {"args": ["--epochs=1"]})
    if float(trial.metrics["accuracy"] or 0) < 0.3:
        raise ValueError(f"one epoch reached {trial.metrics['accuracy']}: see {trial.report}")
    # `trial.resume` is the path of the checkpoint; by the run's name, torchyard also copies it to hosts that need it.
    return train_profile("digits-local", {"args": [f"--epochs={epochs}"]}, resume=trial.run)


if __name__ == "__main__":
    print(one_after_the_other())
