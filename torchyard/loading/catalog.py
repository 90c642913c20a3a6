"""The list of profiles, as the table of docs/profiles.md and as the deployments of prefect.yaml; tests compare both."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import yaml

from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.profile import Profile

_COLUMNS = ("profile", "launcher", "rendezvous", "nodes x processes", "hardware", "what")


class CatalogEntry(NamedTuple):
    """A profile, and the names of its hardware and fabric as one text, which is empty without hardware."""

    profile: Profile
    hardware_name: str


def load_catalog() -> list[CatalogEntry]:
    """Every profile in the profile folders, sorted by name. ProfileError if one is wrong."""
    entries: list[CatalogEntry] = []
    for _, path in sorted(list_profiles().items()):
        hardware_name = _parse_hardware_name(path.read_text(encoding="utf-8"))
        entries.append(CatalogEntry(load_profile(str(path)), hardware_name))
    return entries


def _parse_hardware_name(text: str) -> str:
    """`oke/bm-gpu-b4-8, host` from a profile's file: a loaded profile has the content of its hardware file instead."""
    document = yaml.safe_load(text)
    if not document.get("hardware"):
        return ""
    return f"{document['hardware']}, {document['fabric']}"


def format_catalog_table(catalog: Iterable[CatalogEntry]) -> Iterator[str]:
    """The lines of a Markdown table, one row per profile."""
    yield _format_row(_COLUMNS)
    yield _format_row("---" for _ in _COLUMNS)
    for profile, hardware_name in catalog:
        size = f"{profile.nodes} x {profile.processes}"
        name = f"`{profile.name}`"
        yield _format_row((name, profile.launcher, profile.rendezvous, size, hardware_name, profile.about))


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def format_deployments(catalog: Iterable[CatalogEntry]) -> Iterator[str]:
    """The lines of prefect.yaml that deploy `train` once for each profile."""
    for profile, _ in catalog:
        tags = (profile.name.partition("-")[0], profile.launcher, profile.rendezvous)
        yield "  - <<: *train"
        yield f"    name: {profile.name}"
        yield f"    {yaml.safe_dump({'description': profile.about}, width=1000).strip()}"
        yield f"    tags: [{', '.join(tags)}]"
        yield f"    parameters: {{profile: {profile.name}}}"
        yield ""
