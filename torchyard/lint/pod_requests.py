"""What a pod requests: the sum of what its containers do, as the scheduler counts it."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from torchyard.lint.workload import ManifestContainer, YamlNode, yaml_entries, yaml_value

_AMOUNT = re.compile(r"(?P<number>[+-]?\d{0,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?)(?P<suffix>[numkMGTPE]|[KMGTPE]i|)")
_POWERS_OF_10 = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def sum_pod_requests(pod: YamlNode) -> dict[str, str]:
    """The amounts that a pod requests, by resource. `pod`: its spec.

    The containers run together, and so do the init containers that restart (sidecars). Each other init container runs
    alone beside the sidecars before it, and may request more than all of them. Requests of the pod itself replace those
    of its containers.

    Raises ValueError if amounts that must be added are not amounts of Kubernetes.
    """
    sidecars: list[dict[str, str]] = []
    peaks: list[dict[str, str]] = []  # what is requested at a time
    for _, spec in yaml_entries("", pod.get("initContainers")):
        requests = ManifestContainer("", spec).requests
        peaks.append(_add_requests([*sidecars, requests]))
        if spec.get("restartPolicy") == "Always":
            sidecars.append(requests)
    containers = [ManifestContainer("", spec).requests for _, spec in yaml_entries("", pod.get("containers"))]
    peaks.append(_add_requests([*containers, *sidecars]))
    own_requests = ManifestContainer("", {"resources": yaml_value(pod, "resources")}).requests
    return _find_largest_requests(peaks) | own_requests


def _add_requests(requests: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The sum of several containers' requests; an amount of one alone stays as it is written."""
    total: dict[str, str] = {}
    for amounts in requests:
        for name, amount in amounts.items():
            total[name] = (
                _format_amount(_parse_amount(total[name]) + _parse_amount(amount)) if name in total else amount
            )
    return total


def _find_largest_requests(peaks: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The largest amount of each resource. Of two equal ones that of the last, the containers, stays as written."""
    largest: dict[str, str] = {}
    for amounts in peaks:
        for name, amount in amounts.items():
            if name not in largest or _parse_amount(amount) >= _parse_amount(largest[name]):
                largest[name] = amount
    return largest


def _parse_amount(amount: str) -> Decimal:
    """The value of an amount, such as `500m`, `1.5Gi` or `8`. ValueError for another text."""
    match = _AMOUNT.fullmatch(amount.strip())
    if match is None or not any(character.isdigit() for character in match["number"]):
        raise ValueError(f"{amount!r} is not an amount of Kubernetes")
    value = Decimal(match["number"])
    if match["suffix"] in _BINARY_SUFFIXES:
        return value * Decimal(1024 ** (_BINARY_SUFFIXES.index(match["suffix"]) + 1))
    return value.scaleb(_POWERS_OF_10[match["suffix"]])


def _format_amount(value: Decimal) -> str:
    """The amount with the largest binary suffix that divides it, or in thousandths if it is not whole."""
    if value != value.to_integral_value():
        return f"{(value * 1000).to_integral_value(rounding='ROUND_CEILING')}m"
    number = int(value)
    suffix = ""
    for next_suffix in _BINARY_SUFFIXES:
        if number == 0 or number % 1024:
            break
        number //= 1024
        suffix = next_suffix
    return f"{number}{suffix}"
