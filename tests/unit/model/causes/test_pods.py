"""Rules of pods: what a reason in a pod's status means."""

from torchyard.launchers.runai import read_status
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.pods import POD_RULES, PULL_RULES, RUNAI_RULES
from torchyard.model.run import Observation


def test_only_an_unreachable_registry_is_worth_another_attempt() -> None:
    """All failures of an image have one cause, and only a registry that does not respond may respond later."""
    rules = [rule for rule in POD_RULES.values() if rule.cause is PlatformCause.IMAGE_PULL]
    assert [rule.description for rule in rules if rule.retry] == [POD_RULES["RegistryUnavailable"].description]
    assert {rule.cause for _, rule in PULL_RULES} == {PlatformCause.IMAGE_PULL}


def test_failed_image_does_not_point_at_its_node() -> None:
    """An image that cannot be pulled fails on every node; a lost device or container does not."""
    node_reasons = {reason for reason, rule in POD_RULES.items() if rule.cause.points_at_node}
    assert {"UnexpectedAdmissionError", "ContainerStatusUnknown", "Evicted"} <= node_reasons
    assert not node_reasons & {"ErrImagePull", "InvalidImageName", "Preempting"}


def test_states_of_runai_have_rules() -> None:
    """Run:ai's own states are in lower case, as its launcher looks them up."""
    assert [state for state in RUNAI_RULES if state != state.lower()] == []
    state = {"phase": "exited", "exit": 1, "status": "Preempted"}
    failure = read_status(Observation({"node-0": state}, frozenset())).failure
    assert failure
    assert failure.cause is PlatformCause.PREEMPTED
