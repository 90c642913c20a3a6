"""Three trainings in parallel; one may fail without ending the others."""

from prefect import flow

from torchyard.tasks import RunResult, TrainingError, train_profile


@flow
def in_parallel(epochs: int = 10, seeds: tuple[int, ...] = (0, 1, 2)) -> list[RunResult]:
    """Return the result of each seed, including failed trainings."""
    started = [
        train_profile.submit("digits-local", {"nodes": 1, "args": [f"--epochs={epochs}", f"--seed={seed}"]})
        for seed in seeds
    ]
    results: list[RunResult] = []
    for future in started:
        try:
            results.append(future.result())
        except TrainingError as error:
            results.append(error.result)
    return results


if __name__ == "__main__":
    for result in in_parallel():
        print(result.end, result.metrics.get("accuracy"), result.report)
