"""A separate project that uses torchyard as a library: `python flows.py`, or a deployment of `nightly`."""

from pathlib import Path

from prefect import flow

from tasks import note_best
from torchyard.tasks import RunResult, train_profile

HERE = Path(__file__).resolve().parent


@flow
def nightly(rates: tuple[float, ...] = (0.05, 0.2)) -> RunResult:
    """Train at each rate, one after the other, and write the best to best.json."""
    profile = str(HERE / "profiles" / "line.yaml")
    results = [train_profile(profile, {"args": ["--steps=60", f"--lr={rate}"]}) for rate in rates]
    return note_best(results, HERE / "best.json")


if __name__ == "__main__":
    print(nightly().sentence)
