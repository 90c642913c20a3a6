"""The parts of a plan of pods that tests look at."""

from typing import Any

from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE
from torchyard.model.plan import ManifestPlan


def spec(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = plan.pod["spec"]
    return found


def container(plan: ManifestPlan) -> dict[str, Any]:
    found: dict[str, Any] = spec(plan)["containers"][0]
    return found


def env(plan: ManifestPlan) -> dict[str, Any]:
    """The value of each variable, or where it comes from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(plan)["env"]}


def mounted(plan: ManifestPlan) -> dict[str, Any]:
    """The volume at each path, without its name."""
    sources = {each["name"]: {**each} for each in spec(plan)["volumes"]}
    for name, source in sources.items():
        assert source.pop("name") == name
    return {each["mountPath"]: sources[each["name"]] for each in container(plan)["volumeMounts"]}


def needs(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [each for each in plan.requires if isinstance(each, kind)]


def command(plan: ManifestPlan) -> list[str]:
    found: list[str] = plan.pod["spec"]["containers"][0]["command"]
    return found


def said(plan: ManifestPlan, option: str) -> str:
    """An option of torchrun in the pods' command."""
    command = plan.pod["spec"]["containers"][0]["command"]
    return next((word.partition("=")[2] for word in command if word.startswith(f"--{option}=")), "")


def own_address(plan: ManifestPlan) -> str:
    """The address that a pod's agent is given as its own."""
    env: list[dict[str, Any]] = plan.pod["spec"]["containers"][0]["env"]
    return next((str(each["value"]) for each in env if each["name"] == LOCAL_ADDR_VARIABLE), "")
