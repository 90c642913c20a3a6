"""Compares the HCAs that each pod of a job is meant to use with the networks and RDMA resources that it gets.

A resource of a shared device plugin gives a pod all HCAs of its node, so an amount of 1 counts nothing unless its name
shows that each unit is one device. Over RoCE a pod can use only the HCAs on which it has an address, one for each
network that is attached; InfiniBand needs no such address.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from torchyard.common.json_text import parse_json
from torchyard.lint.workload import Workload, YamlNode, yaml_mapping, yaml_text, yaml_value
from torchyard.model.finding import Finding

NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
HCA_VARIABLE = "NCCL_IB_HCA"
_ROCE_VARIABLES = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
_NUMBERED_DEVICE_PATTERN = re.compile(r"\w+_\d+(?::\d+)?")  # mlx5_0, mlx5_0:1; not the prefix mlx5
_RDMA_PATTERN = re.compile(
    r"rdma|roce|infiniband|sriov|hostdev|mlnx|connectx|rail|hca|(?<![a-z])(?:ib|nics?|vfs?)(?![a-z])", re.IGNORECASE
)
# Of plugins whose units are single devices.
_DEVICE_PATTERN = re.compile(r"sriov|hostdev|mlnxnics|(?<![a-z])vfs?(?![a-z])", re.IGNORECASE)
# A MultiNicNetwork attaches several interfaces by one name.
_MULTI_NETWORK_PATTERN = re.compile(r"multi-?nic", re.IGNORECASE)
_AMOUNT_PATTERN = re.compile(r"[0-9]{1,9}")
_MAX_ANNOTATION_CHARS = 100_000


class ExpectedHcas(NamedTuple):
    """The HCAs that each pod is meant to use.

    hca_count: their number.
    source: a clause for a message: `fabric roce promises 8 HCAs (expect.hcas)`.
    is_roce: whether they certainly use RoCE.
    """

    hca_count: int
    source: str
    is_roce: bool


class HcaShortage(NamedTuple):
    """Which of the pod's settings gives it fewer HCAs than expected, how, and what to write instead."""

    setting: Literal["networks", "resources"]
    problem: str
    fix: str


def count_listed_hcas(rule: str) -> int | None:
    """The number of HCAs that a value of NCCL_IB_HCA lists; None if it is a prefix or an exclusion, without a number.

    Names without `=` before them are prefixes for NCCL; those that end in a number are meant as single devices.
    """
    names = {name for name in rule.removeprefix("=").split(",") if name}
    is_list = rule.startswith("=") or all(_NUMBERED_DEVICE_PATTERN.fullmatch(name) for name in names)
    return len(names) if names and is_list else None


def list_hca_shortages(template: YamlNode, resources: Mapping[str, str], expected: ExpectedHcas) -> list[HcaShortage]:
    """The settings of a pod that certainly give it fewer HCAs than expected.

    `template`: of the pod. `resources`: what its main container requests, by the full names.
    """
    spec = yaml_mapping(yaml_value(template, "spec"))
    # The node's own network has all HCAs, and a claim (DRA) any number of them.
    if spec.get("hostNetwork") is True or spec.get("resourceClaims"):
        return []
    shortages: list[HcaShortage] = []
    network_count = _count_networks(yaml_value(template, "metadata", "annotations", NETWORKS_ANNOTATION))
    if expected.is_roce and network_count and network_count < expected.hca_count:
        is_or_are = "network is" if network_count == 1 else "networks are"
        problem = (
            f"{network_count} {is_or_are} attached, but {expected.source}: over RoCE a pod can use only the HCAs on "
            "which it has an address"
        )
        fix = f"name the network of each of the {expected.hca_count} HCAs"
        shortages.append(HcaShortage("networks", problem, fix))
    amounts = _list_device_amounts(resources)
    device_count = sum(amounts.values())
    if 0 < device_count < expected.hca_count:
        amounts_text = " and ".join(f"{name}: {amount}" for name, amount in amounts.items())
        problem = f"the pod requests {amounts_text}, and each unit is one HCA, but {expected.source}"
        shortages.append(HcaShortage("resources", problem, f"request {expected.hca_count}"))
    return shortages


def _count_networks(annotation: object) -> int | None:
    """The number of interfaces that the annotation attaches; None if it is missing, not readable, or does not show."""
    text = yaml_text(annotation)
    if not text or len(text) > _MAX_ANNOTATION_CHARS or _MULTI_NETWORK_PATTERN.search(text):
        return None
    if not text.lstrip().startswith(("[", "{")):
        return len([name for name in text.split(",") if name.strip()])
    try:
        networks = parse_json(text)
    except ValueError:
        return None
    return len(networks) if isinstance(networks, list) else None


def _list_device_amounts(resources: Mapping[str, str]) -> dict[str, int]:
    """The RDMA resources whose amount is a number of HCAs; empty if one of them may give the pod all HCAs."""
    amounts: dict[str, int] = {}
    for name, amount_text in resources.items():
        if "/" not in name or not _RDMA_PATTERN.search(name):
            continue
        amount = int(amount_text) if _AMOUNT_PATTERN.fullmatch(amount_text) else 0
        is_single_device = amount > 1 or _DEVICE_PATTERN.search(name)
        if "shared" in name.lower() or not is_single_device:
            return {}
        amounts[name] = amount
    return amounts


def find_missing_hcas(job: Workload) -> Iterator[Finding]:
    """Yield the settings of a manifest's pods that give them fewer HCAs than their NCCL_IB_HCA lists."""
    if not job.is_job or job.pod_count < 2:
        return
    for group in job.groups:
        key_paths = {"networks": f"{group.key_path}.template.metadata.annotations, {NETWORKS_ANNOTATION}"}
        for container in group.containers:
            env = {name: yaml_text(yaml_value(variable, "value")) for name, variable in container.env.items()}
            count = count_listed_hcas(env.get(HCA_VARIABLE, ""))
            if not count or count < 2 or env.get("NCCL_IB_DISABLE") == "1":
                continue
            is_roce = any(name in container.env or name in container.script for name in _ROCE_VARIABLES)
            expected = ExpectedHcas(count, f"{HCA_VARIABLE} lists {count} HCAs", is_roce)
            key_paths["resources"] = f"{container.key_path}.resources"
            template = yaml_mapping(group.spec.get("template"))
            for shortage in list_hca_shortages(template, container.requests, expected):
                yield Finding(key_paths[shortage.setting], shortage.problem, shortage.fix)
