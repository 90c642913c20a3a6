"""The names and tags of flow runs in Prefect's lists."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from torchyard.model.profile import Profile
from torchyard.model.run import Report

# What Prefect's form proposes: `theta6`, `sigma4-adhil`, `mu4-kavis-void`, `xi2-canis-majoris-reach`.
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|chi|"
    "psi|omega"
)
_FORM_NAME_PATTERN = re.compile(rf"({_GREEK})[0-9]*(-[a-z]+){{0,3}}")
_END_PREFIX = "end: "  # of the tag that shows how the run ended


def format_run_name(profile: Profile, run_id: str, current_name: str) -> str:
    """`yolov5-volcano 2x1 a1b2c3d4`, or the current name if a user chose it."""
    if current_name and not _is_generated_name(current_name):
        return current_name
    return f"{profile.name} {profile.nodes}x{profile.processes} {run_id.replace('-', '')[-8:]}"


def _is_generated_name(name: str) -> bool:
    """Whether Prefect generated the name, in its form or in its client and server."""
    return bool(_FORM_NAME_PATTERN.fullmatch(name)) or set(name.split("-")) <= _list_slug_words()


@cache
def _list_slug_words() -> frozenset[str]:
    """The words from which Prefect's client and server generate names such as `strict-lemming`."""
    from coolname.data import config

    slug_words: set[str] = set()
    for word_list in cast(dict[str, dict[str, Any]], config).values():
        slug_words.update(word_list.get("words", ()))
    return frozenset(slug_words)


def build_tags(profile: Profile, current_tags: Iterable[str] | None) -> tuple[str, ...]:
    """The tags of a flow run that starts: its current ones, its launcher, its hardware and its fabric.

    The end tag of an earlier try of the run is removed.
    """
    tags = [tag for tag in current_tags or () if not tag.startswith(_END_PREFIX)]
    tags.append(profile.launcher)
    if profile.hardware:
        tags.append(profile.hardware.name)
    if profile.fabric:
        tags.append(profile.fabric)
    return tuple(dict.fromkeys(filter(None, tags)))


def format_end_tag(report: Report) -> str:
    """The tag that shows how a run ended: `end: succeeded`, or the cause of its failure, `end: oom-pod`."""
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    return _END_PREFIX + (failure.cause if failure else report.end)
