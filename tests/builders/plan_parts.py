"""The parts of a plan of pods that tests check."""

from typing import Any

from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE
from torchyard.model.plan import ManifestPlan

# The keys of a profile for each launcher that creates pods, in each of its forms.
POD_LAUNCHERS: list[dict[str, Any]] = [
    {"launcher": "volcano"},
    {"launcher": "pytorchjob"},
    {"launcher": "pytorchjob", "rendezvous": "static", "nodes": 2},
    {"launcher": "appwrapper"},
    {"launcher": "appwrapper", "options": {"api": "mcad.ibm.com/v1beta1"}},
    {"launcher": "jobset"},
    {"launcher": "job"},
    {"launcher": "runai", "options": {"project": "mlo", "through": "kubernetes"}},
]


def get_pod_spec(plan: ManifestPlan) -> dict[str, Any]:
    pod_spec: dict[str, Any] = plan.pod["spec"]
    return pod_spec


def get_container(plan: ManifestPlan) -> dict[str, Any]:
    main_container: dict[str, Any] = get_pod_spec(plan)["containers"][0]
    return main_container


def get_env(plan: ManifestPlan) -> dict[str, Any]:
    """The value of each variable, or its source (`valueFrom`)."""
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in get_container(plan)["env"]
    }


def get_mounts(plan: ManifestPlan) -> dict[str, Any]:
    """The volume at each mount path, without its name."""
    sources = {volume["name"]: dict(volume) for volume in get_pod_spec(plan)["volumes"]}
    for name, source in sources.items():
        assert source.pop("name") == name
    return {mount["mountPath"]: sources[mount["name"]] for mount in get_container(plan)["volumeMounts"]}


def list_requirements(plan: ManifestPlan, kind: type[Any]) -> list[Any]:
    return [requirement for requirement in plan.requires if isinstance(requirement, kind)]


def get_command(plan: ManifestPlan) -> list[str]:
    argv: list[str] = plan.pod["spec"]["containers"][0]["command"]
    return argv


def get_torchrun_option(plan: ManifestPlan, option: str) -> str:
    """The value of a torchrun option in the pods' command; empty if the command lacks it."""
    argv = plan.pod["spec"]["containers"][0]["command"]
    for arg in argv:
        if arg.startswith(f"--{option}="):
            return str(arg.partition("=")[2])
    return ""


def get_local_address(plan: ManifestPlan) -> str:
    """The local address that a pod's agent gets; empty if the agent must find its own."""
    return str(get_env(plan).get(LOCAL_ADDR_VARIABLE, ""))
