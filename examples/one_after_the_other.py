"""Two trainings, one after the other: the second is longer, and starts only if the first has learned enough."""

from prefect import flow

from torchyard.tasks import RunResult, train_profile


@flow
def one_after_the_other(epochs: int = 10) -> RunResult:
    """Try one epoch, then train."""
    trial = train_profile("digits-local", {"args": ["--epochs=1"]})
    if float(trial.metrics["accuracy"] or 0) < 0.3:
        raise ValueError(f"one epoch reached {trial.metrics['accuracy']}: see {trial.report}")
    return train_profile("digits-local", {"args": [f"--epochs={epochs}"]})


if __name__ == "__main__":
    print(one_after_the_other())
