"""The form of a run: its fields, and the parameters that Prefect's API refuses before a run exists."""

from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import validate

from torchyard.loading.form import build_form
from torchyard.loading.profile import list_profiles, load_profile


def list_refusals(parameters: dict[str, Any], profile: str | None = "yolov5-volcano") -> list[str]:
    """The errors of Prefect's server about parameters."""
    form = build_form(load_profile(profile) if profile else None)
    return [error.message for error in validate(parameters, form)]


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_form_of_every_profile_accepts_no_changes_and_its_own_values(name: str) -> None:
    """A run without changes is accepted, and a run with the profile's own values."""
    profile = load_profile(name)
    unchanged = {"nodes": profile.nodes.model_dump(), "processes": profile.processes, "attempts": profile.attempts}
    for changes in ({}, unchanged, {"args": list(profile.args), "deadlines": profile.deadlines.model_dump()}):
        assert list_refusals({"profile": name, "overrides": changes, "resume": "a-1", "dry_run": True}, name) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 2, "deadlines.run": "2h"},
        {"nodes": {"min": 2, "max": 4}, "deadlines": {"run": 7200}},
        {"args": ["--lr", 0.1], "env": {"A": "1"}, "pod": {"priority_class": None}},
        {"notify": ["$HOOK"], "metrics_to": ["tensorboard", {"mlflow": {"uri": "http://mlflow:5000"}}]},
        {"notify": {"to": ["$HOOK"], "events": ["failed"]}, "metrics_to": {"wandb": {}}},
        {"metrics": {"pattern": "loss=(?P<loss>[^ ,]+)"}, "on_nan": "fail"},
        {"fabric": "no-rdma", "trend": {"value": "map"}, "hardware": None},
    ],
)
def test_form_accepts_what_a_profile_accepts(changes: dict[str, Any]) -> None:
    """Keys with dots, ranges, numbers among the arguments and keys without a field are accepted."""
    assert list_refusals({"profile": "yolov5-volcano", "overrides": changes}) == []


@pytest.mark.parametrize(
    ("parameters", "message_start"),
    [
        ({"overrides": {"nodez": 2}}, "'nodez' does not match '^(about|"),
        ({"overrides": {"name": "other"}}, "'name' does not match '^(about|"),
        ({"overrides": {"attempts": 21}}, "21 is greater than the maximum of 20"),
        ({"overrides": {"fabric": "token-ring"}}, "'token-ring' is not one of ['host', 'vf', 'no-rdma']"),
        ({"overrides": {"nodes": 0}}, "0 is not valid under any of the given schemas"),
        ({"overrides": {"deadlines": {"run": "soon"}}}, "'soon' is not valid under any of the given schemas"),
        ({"overrides": {"avoid_failed": "maybe"}}, "'maybe' is not of type 'boolean', 'null'"),
        ({"overrides": {"on_hang": "maybe"}}, "'maybe' is not one of ['off', 'report', 'restart', 'fail']"),
        ({"nodes": 2}, "'nodes' is not one of ['profile', 'overrides', 'resume', 'dry_run']"),
        ({"resume": 3}, "3 is not valid under any of the given schemas"),
        ({"dry_run": "yes"}, "'yes' is not of type 'boolean'"),
    ],
)
def test_mistake_is_refused_before_a_run_exists(parameters: dict[str, Any], message_start: str) -> None:
    """The schema refuses an unknown key and a wrong value; the error contains the valid values."""
    (message,) = list_refusals({"profile": "yolov5-volcano"} | parameters)
    assert message.startswith(message_start)


def test_form_of_a_profile_does_not_ask_for_the_profile_and_shows_its_values() -> None:
    """Each field's help ends with its current value; a profile without an image or hardware has no field for it."""
    fields = build_form(load_profile("yolov5-volcano"))["properties"]
    assert list(fields) == ["overrides", "resume", "dry_run"]
    keys = fields["overrides"]["properties"]
    assert keys["nodes"]["description"].endswith("today: 2")
    assert keys["deadlines"]["properties"]["run"]["description"].endswith("today: 12h")
    assert (
        not {"image", "fabric"}
        & build_form(load_profile("digits-local"))["properties"]["overrides"]["properties"].keys()
    )


def test_form_for_any_profile_lists_them_and_takes_a_file() -> None:
    """A shipped profile or a YAML file is accepted, and any other text is refused."""
    for name in (*list_profiles(), "/home/me/mine.yaml"):
        assert list_refusals({"profile": name}, None) == []
    assert list_refusals({"profile": "digits-lokal"}, None) == [
        "'digits-lokal' is not valid under any of the given schemas"
    ]
    assert list_refusals({}, None) == ["'profile' is a required property"]
