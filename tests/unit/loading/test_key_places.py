"""Where a key belongs that is written in the wrong place of a profile."""

from pydantic import BaseModel

from torchyard.loading.key_places import list_key_places, suggest_place


class _Options(BaseModel):
    queue: str = ""


def test_places_are_those_that_a_user_can_write() -> None:
    """A key is named with its mapping; not what a file or the user's own names contain, nor what is computed."""
    places = list_key_places(_Options)
    assert places["queue"] == ["options.queue"]
    assert places["labels"] == ["pod.labels", "job.labels"]
    assert places["image"] == ["image"]
    assert places["exclude"] == ["code.exclude"]
    assert not places.keys() & {"name", "gpu_peer", "sub_path", "claims", "archive", "syntax_error"}
    assert "queue" not in list_key_places(None)


def test_key_without_a_place_has_no_suggestion() -> None:
    """Only a key that exists elsewhere gets a place, in the spelling of Kubernetes too."""
    places = {"node_selector": ["pod.node_selector"]}
    assert suggest_place("nodeSelector", places) == "write it as pod.node_selector"
    assert suggest_place("nodeselector", places) is None
