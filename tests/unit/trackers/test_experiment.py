"""The data of a run for a tracker."""

from tests.builders.reports import short_report
from tests.conftest import Write, load
from torchyard.metrics.text import ROW_KEYS
from torchyard.model.run import Row
from torchyard.trackers.experiment import FINEST_FIRST, RowSteps, describe_end, describe_experiment


def read_rows(*rows: Row) -> list[tuple[int, dict[str, float]]]:
    steps = RowSteps()
    points = [steps.convert(row) for row in rows]
    return [(point.step, dict(point.numbers)) for point in points if point]


def test_profile_is_the_parameters(write: Write) -> None:
    """Every key that the profile sets is a parameter, nested ones with dots; secrets are masked, addresses left out."""
    keys = {"args": ["--lr", 0.1], "nodes": 2, "env": {"HF_TOKEN": "abc12345"}, "deadlines": {"run": "2h"}}
    profile = load(write(**keys, notify=["json://127.0.0.1/x"], metrics_to=["tensorboard"]))
    experiment = describe_experiment(profile, "sample-1", "an-id", "/runs/sample-1", "http://prefect/1")
    assert (experiment.run, experiment.run_id, experiment.profile) == ("sample-1", "an-id", "sample")
    assert experiment.parameters["args"] == "--lr 0.1"
    assert (experiment.parameters["nodes.min"], experiment.parameters["deadlines.run"]) == ("2", "7200.0")
    assert experiment.parameters["env.HF_TOKEN"] == "****"
    assert not [key for key in experiment.parameters if key.startswith(("notify", "metrics_to", "name"))]
    assert experiment.tags["torchyard.link"] == "http://prefect/1"


def test_row_is_a_point_at_its_step() -> None:
    """The finest key is the step, totals and texts are left out; a row without a key has the previous step."""
    assert read_rows(
        {"epoch": 1, "epochs": 3, "step": 20, "loss": 0.5, "checkpoint": "a.pt", "ok": True},
        {"accuracy": 0.9, "nan": None, "huge": 10**400},
        {"epoch": 2, "last_epoch": 9, "loss": 0.25},
        {"checkpoint": "b.pt"},
    ) == [(20, {"epoch": 1.0, "loss": 0.5}), (20, {"accuracy": 0.9}), (2, {"loss": 0.25})]
    assert sorted(FINEST_FIRST) == sorted(ROW_KEYS)


def test_rows_of_one_epoch_are_several_points() -> None:
    """Rows with fractions of an epoch have steps of their own, in thousandths, and keep the epoch as a number."""
    rows: list[Row] = [{"epoch": epoch, "loss": 0.5} for epoch in (0.25, 0.5, 1.0)]
    assert [step for step, _ in read_rows(*rows)] == [250, 500, 1000]
    assert read_rows(*rows)[2][1] == {"epoch": 1.0, "loss": 0.5}
    assert [step for step, _ in read_rows({"epoch": 1.0, "loss": 0.5}, {"epoch": 2.0, "loss": 0.4})] == [1, 2]


def test_end_of_a_run_has_its_cause() -> None:
    """The end, the cause and the number of attempts are tags of the run."""
    end = describe_end(short_report("failed"))
    assert (end.end, end.tags["torchyard.cause"], end.tags["torchyard.attempts"]) == ("failed", "program-error", "1")
    assert end.tags["torchyard.sentence"] == "a sentence"
