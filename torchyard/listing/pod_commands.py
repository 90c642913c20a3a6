"""What the command of a pod shows of a job whose plan is on another machine: pure functions."""

import json
import re
from collections.abc import Mapping
from typing import Any

from torchyard.diagnosis import pod_facts
from torchyard.pods.manifest_ranks import find_rank_source
from torchyard.steps.rank_output import RankLayout

_PROCESSES_PATTERN = re.compile(r"--nproc[_-]per[_-]node(?:=|\", \"| )(\d{1,5})\b")


def find_process_count(pod: Mapping[str, Any]) -> int | None:
    """The processes per node that the pod's command asks torchrun for; None if it does not name a number."""
    match = _PROCESSES_PATTERN.search(_format_containers(pod))
    return int(match[1]) if match else None


def find_rank_layout(pod: Mapping[str, Any]) -> RankLayout:
    """How to find the lines of a rank in the log of such a pod."""
    return RankLayout(find_rank_source(pod), find_process_count(pod))


def _format_containers(pod: Mapping[str, Any]) -> str:
    """The commands of the containers as text: anyone may have written a pod, so their form is not relied on."""
    commands: list[Any] = []
    for container in pod_facts.get_mappings(pod, "spec", "containers"):
        commands += [container.get("command"), container.get("args")]
    return json.dumps(commands)
