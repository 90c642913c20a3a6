"""The keys of a profile for messages and trackers, in their short and their long forms."""

from typing import Any

import pytest

from tests.conftest import Write, load
from torchyard.model.errors import ProfileError
from torchyard.model.observe import Mlflow, Notify, TensorBoard, Trackers
from torchyard.model.profile import Profile


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("json://host", Notify(to=("json://host",))),
        (["json://a", "json://b"], Notify(to=("json://a", "json://b"))),
        ({"to": "json://a", "events": ["failed"]}, Notify(to=("json://a",), events=("failed",))),
        ({"to": ["json://a"], "waiting": "10m"}, Notify(to=("json://a",), waiting=600.0)),
    ],
)
def test_short_and_long_forms_of_notify(write: Write, written: object, read: Notify) -> None:
    """An address, a list of them and a mapping are equal, and by default all events but a plain success are sent."""
    profile = load(write(notify=written))
    assert profile.notify == read
    assert "succeeded" not in Notify(to=("x",)).events
    assert Profile.model_validate_json(profile.model_dump_json(exclude_unset=True)) == profile


@pytest.mark.parametrize(
    "written", [["tensorboard", {"mlflow": {"uri": "http://x"}}], {"tensorboard": {}, "mlflow": {"uri": "http://x"}}]
)
def test_short_and_long_forms_of_metrics_to(write: Write, written: object) -> None:
    """Trackers are names, or names with options."""
    trackers = load(write(metrics_to=written)).metrics_to
    assert (trackers.tensorboard, trackers.mlflow, trackers.wandb) == (TensorBoard(), Mlflow(uri="http://x"), None)
    assert (bool(trackers), bool(load(write()).metrics_to)) == (True, False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"notify": 5},
            "notify: must be a list of addresses, or {to: [slack://…], events: [failed], waiting: 30m}, not 5",
        ),
        ({"notify": {"to": []}}, "notify.to: must have at least 1 item"),
        (
            {"notify": {"to": ["json://a"], "events": ["late"]}},
            "notify.events.0: must be 'failed', 'regressed'",
        ),
        ({"notify": {"to": ["json://a"], "waiting": "long"}}, "notify.waiting: a duration is a number with a unit"),
        ({"metrics_to": ["excel"]}, "metrics_to: unknown tracker excel; use tensorboard, mlflow, wandb, or install"),
        ({"metrics_to": ["wandb", {"wandb": {}}]}, "metrics_to: wandb is named twice"),
        ({"metrics_to": [{"mlflow": {"url": "x"}}]}, "unknown key metrics_to.mlflow.url: did you mean uri?"),
        ({"metrics_to": [["mlflow"]]}, "metrics_to: unknown tracker ['mlflow']; use"),
    ],
)
def test_wrong_value_is_an_error_with_its_line(write: Write, keys: dict[str, Any], message: str) -> None:
    """A wrong value is an error with the file, the line, the key and the valid values."""
    path = write(**keys)
    with pytest.raises(ProfileError) as error:
        load(path)
    (finding,) = error.value.findings
    assert (finding.file, finding.line is not None) == (str(path), True)
    assert message in str(finding)


def test_package_trackers_that_are_no_mapping_are_refused(write: Write) -> None:
    """`metrics_to.package_trackers` of another type is an error of the profile with its line."""
    path = write(metrics_to={"package_trackers": 5})
    with pytest.raises(ProfileError, match=f"{path}:.*metrics_to.package_trackers"):
        load(path)


def test_tracker_of_another_package_keeps_its_options() -> None:
    """A tracker that is not torchyard's is stored with its options, which the journal preserves."""
    keys = {"name": "a", "about": "a test", "launcher": "baremetal"}
    metrics_to = ["mlflow", {"aim": {"repo": "x"}}, "neptune"]
    trackers = Profile.model_validate(keys | {"metrics_to": metrics_to}).metrics_to
    assert trackers.package_trackers == {"aim": {"repo": "x"}, "neptune": {}}
    assert trackers.mlflow is not None
    assert Trackers.model_validate_json(trackers.model_dump_json(exclude_unset=True)) == trackers
    assert Trackers(package_trackers={"aim": {}})
