"""Checks that a tag may be released: `python .ci/release.py v1.2.3`. Standard library only, Python 3.11 or newer.

The version stands in pyproject.toml and nowhere else; CHANGELOG.md has a dated heading for it, and below that an entry.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def find_fault(tag: str, root: Path = ROOT) -> str | None:
    """What keeps the tag from being released; None if nothing does."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if tag != f"v{version}":
        return f"the tag is {tag}, and pyproject.toml has {version}: the tag should be v{version}"
    parts = re.split(r"^## ", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    part = next(
        (each for each in parts if re.match(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d$", each.split("\n")[0])), ""
    )
    if not part:
        return f"CHANGELOG.md has no heading `## {version} - YYYY-MM-DD`"
    return None if re.search(r"^- ", part, re.MULTILINE) else f"CHANGELOG.md says nothing under {version}"


if __name__ == "__main__":
    if fault := find_fault(*sys.argv[1:]):
        sys.exit(fault)
