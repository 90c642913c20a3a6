"""What a pod with several containers requests."""

from typing import Any

import pytest

from torchyard.lint.pod_requests import sum_pod_requests


def build_container(restart_policy: str | None = None, **requests: str) -> dict[str, Any]:
    container: dict[str, Any] = {"resources": {"requests": requests}}
    if restart_policy:
        container["restartPolicy"] = restart_policy
    return container


def test_containers_run_together() -> None:
    """The requests of containers are added, in any notation; those of one alone stay as they are written."""
    containers = [build_container(cpu="500m", memory="1.5Gi"), build_container(cpu="2", memory="512Mi", tpu="4")]
    assert sum_pod_requests({"containers": containers}) == {"cpu": "2500m", "memory": "2Gi", "tpu": "4"}
    assert sum_pod_requests({"containers": [build_container(cpu="0.50", memory="1G")]}) == {
        "cpu": "0.50",
        "memory": "1G",
    }
    limited = {"resources": {"limits": {"google.com/tpu": 2}}}
    assert sum_pod_requests({"containers": [limited, limited]}) == {"google.com/tpu": "4"}


def test_init_container_runs_alone_unless_it_is_a_sidecar() -> None:
    """An init container counts only beyond what the containers request; a sidecar runs beside all later ones."""
    containers = [build_container(cpu="4")]
    setup = build_container(cpu="6")
    sidecar = build_container("Always", cpu="3")
    assert sum_pod_requests({"containers": containers, "initContainers": [setup]}) == {"cpu": "6"}
    assert sum_pod_requests({"containers": containers, "initContainers": [build_container(cpu="1")]}) == {"cpu": "4"}
    assert sum_pod_requests({"containers": containers, "initContainers": [sidecar]}) == {"cpu": "7"}
    assert sum_pod_requests({"containers": containers, "initContainers": [sidecar, setup]}) == {"cpu": "9"}
    assert sum_pod_requests({"containers": containers, "initContainers": [setup, sidecar]}) == {"cpu": "7"}


def test_requests_of_the_pod_replace_those_of_its_containers() -> None:
    """A pod may request an amount for all of its containers."""
    pod = {"containers": [build_container(cpu="4", gpu="8")], "resources": {"requests": {"cpu": "2"}}}
    assert sum_pod_requests(pod) == {"cpu": "2", "gpu": "8"}


@pytest.mark.parametrize("amount", ["many", "", "1Xi", "1e", "."])
def test_text_that_is_no_amount_cannot_be_added(amount: str) -> None:
    """Such an amount is refused where it must be added; alone it is left to the API server."""
    with pytest.raises(ValueError, match="not an amount"):
        sum_pod_requests({"containers": [build_container(cpu=amount), build_container(cpu="1")]})
    assert sum_pod_requests({"containers": [build_container(cpu=amount)]}) == {"cpu": amount}
