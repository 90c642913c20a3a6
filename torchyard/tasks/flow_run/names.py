"""What a flow run is called and tagged in Prefect's lists."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from torchyard.model.profile import Profile
from torchyard.model.run import Report

# What Prefect's form proposes: `sigma4-adhil`, `mu4-kavis-void`, `omicron-hotta-reach`.
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|chi|"
    "psi|omega"
)
_FORM_NAME_PATTERN = re.compile(rf"({_GREEK})[0-9]*(-[a-z0-9]+){{1,2}}")
_END_PREFIX = "end: "  # of the tag that says how the run ended


def format_run_name(profile: Profile, run_id: str, current_name: str) -> str:
    """`yolov5-volcano 2x1 a1b2c3d4`; a name that Prefect did not make up stays."""
    if current_name and not _is_generated_name(current_name):
        return current_name
    return f"{profile.name} {profile.nodes}x{profile.processes} {run_id.replace('-', '')[-8:]}"


def _is_generated_name(name: str) -> bool:
    return bool(_FORM_NAME_PATTERN.fullmatch(name)) or set(name.split("-")) <= _list_slug_words()


@cache
def _list_slug_words() -> frozenset[str]:
    """The words of which Prefect's client and server make names: `strict-lemming`."""
    from coolname.data import config

    word_lists = cast(dict[str, dict[str, Any]], config)
    return frozenset(word for word_list in word_lists.values() for word in word_list.get("words", ()))


def build_tags(profile: Profile, current_tags: Iterable[str] | None) -> tuple[str, ...]:
    """The tags of a flow run that begins: those that it has, its launcher, its hardware and its fabric."""
    profile_tags = [profile.launcher, profile.hardware.name if profile.hardware else "", profile.fabric or ""]
    user_tags = [tag for tag in current_tags or () if not tag.startswith(_END_PREFIX)]
    return tuple(dict.fromkeys(tag for tag in (*user_tags, *profile_tags) if tag))


def format_end_tag(report: Report) -> str:
    """How a run ended: `end: succeeded`, or the cause of its failure, `end: oom-pod`."""
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    return _END_PREFIX + (failure.cause if failure else report.end)
