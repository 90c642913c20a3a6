"""The parts of a plan of pods that tests look at."""

from typing import Any

from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE
from torchyard.model.plan import ManifestPlan


def get_pod_spec(plan: ManifestPlan) -> dict[str, Any]:
    pod_spec: dict[str, Any] = plan.pod["spec"]
    return pod_spec


def get_container(plan: ManifestPlan) -> dict[str, Any]:
    main_container: dict[str, Any] = get_pod_spec(plan)["containers"][0]
    return main_container


def get_env(plan: ManifestPlan) -> dict[str, Any]:
    """The value of each variable, or where it comes from."""
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in get_container(plan)["env"]
    }


def get_mounts(plan: ManifestPlan) -> dict[str, Any]:
    """The volume at each path, without its name."""
    sources = {volume["name"]: {**volume} for volume in get_pod_spec(plan)["volumes"]}
    for name, source in sources.items():
        assert source.pop("name") == name
    return {mount["mountPath"]: sources[mount["name"]] for mount in get_container(plan)["volumeMounts"]}


def list_requirements(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [requirement for requirement in plan.requires if isinstance(requirement, kind)]


def get_command(plan: ManifestPlan) -> list[str]:
    argv: list[str] = plan.pod["spec"]["containers"][0]["command"]
    return argv


def get_torchrun_option(plan: ManifestPlan, option: str) -> str:
    """An option of torchrun in the pods' command."""
    argv = plan.pod["spec"]["containers"][0]["command"]
    return next((arg.partition("=")[2] for arg in argv if arg.startswith(f"--{option}=")), "")


def get_local_address(plan: ManifestPlan) -> str:
    """The address that a pod's agent is given as its own."""
    variables: list[dict[str, Any]] = plan.pod["spec"]["containers"][0]["env"]
    return next((str(variable["value"]) for variable in variables if variable["name"] == LOCAL_ADDR_VARIABLE), "")
