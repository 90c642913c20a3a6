"""The list of profiles, as the table of docs/profiles.md and as the deployments of prefect.yaml; tests compare both."""

from collections.abc import Iterable, Iterator

import yaml

from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.profile import Profile

_COLUMNS = ("profile", "launcher", "rendezvous", "nodes x processes", "hardware", "what")


def load_catalog() -> list[tuple[Profile, str]]:
    """Every profile that can be named, with the name of its hardware and fabric. ProfileError if one is wrong."""
    named_paths = sorted(list_profiles().items())
    return [(load_profile(str(path)), _read_hardware_name(path.read_text(encoding="utf-8"))) for _, path in named_paths]


def _read_hardware_name(text: str) -> str:
    """The names as the file gives them: a loaded profile holds the content of its hardware file, not its name."""
    document = yaml.safe_load(text)
    return f"{document['hardware']}, {document['fabric']}" if document.get("hardware") else ""


def format_catalog_table(catalog: Iterable[tuple[Profile, str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield _format_row(_COLUMNS)
    yield _format_row("---" for _ in _COLUMNS)
    for profile, hardware_name in catalog:
        size = f"{profile.nodes} x {profile.processes}"
        yield _format_row(
            (f"`{profile.name}`", profile.launcher, profile.rendezvous, size, hardware_name, profile.about)
        )


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def format_deployments(catalog: Iterable[tuple[Profile, str]]) -> Iterator[str]:
    """The lines of prefect.yaml that deploy `train` once for each profile."""
    for profile, _ in catalog:
        tags = (profile.name.partition("-")[0], profile.launcher, profile.rendezvous)
        yield "  - <<: *train"
        yield f"    name: {profile.name}"
        yield f"    {yaml.safe_dump({'description': profile.about}, width=1000).strip()}"
        yield f"    tags: [{', '.join(tags)}]"
        yield f"    parameters: {{profile: {profile.name}}}"
        yield ""
