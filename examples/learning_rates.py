"""A search for the learning rate with Optuna: each trial is a run with its own report."""

import optuna
from prefect import flow

from torchyard.tasks import TrainingError, train_profile


@flow
def learning_rates(trials: int = 8, epochs: int = 3) -> dict[str, float]:
    """Return the best learning rate. A trial whose training fails does not end the search.

    A sampler with a seed suggests the same rates if the flow run is started again, which then finds the trainings that
    have ended.
    """

    def train(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        result = train_profile("digits-local", {"nodes": 1, "args": [f"--epochs={epochs}", f"--lr={rate}"]})
        return float(result.metrics["accuracy"] or 0)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(train, n_trials=trials, catch=TrainingError)
    return dict(study.best_params)


if __name__ == "__main__":
    print(learning_rates())
