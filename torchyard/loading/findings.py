"""Collects what is wrong with a profile: all of it is reported at once, each finding with its file, line and key."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from torchyard.common.escaping import shorten_text
from torchyard.loading.manifest_file import ManifestFile
from torchyard.loading.yaml_errors import Loc, ProfileKeyError, explain_error, find_position, shorten_message
from torchyard.model.errors import ProfileError
from torchyard.model.finding import FilePosition, Finding
from torchyard.model.plan import Plan
from torchyard.model.requirements import get_manifest_location
from torchyard.model.rules import get_first_key

_MAX_WHERE_CHARS = 300  # of the key of a finding, which may be a name of any length in a manifest


class Findings:
    """The findings about one profile so far.

    listed: each with its position in the file, or `override`.
    wrong_keys: the top-level keys with a finding; what follows from a wrong value is not reported as well.
    code_names: the files of the profile's code, relative to its folder.
    key_places: the paths of the profile's keys by name; empty until `list_key_places` is needed.
    manifest: the file of the profile's manifest, whose lines findings about its objects get; None if it has none.
    """

    def __init__(self, path: Path, root: yaml.Node, overrides: Mapping[str, Any]) -> None:
        """`path`, `root`: the profile's file and its YAML node, which has line numbers."""
        self.listed: list[Finding] = []
        self.wrong_keys: set[str] = set()
        self.code_names: frozenset[str] = frozenset()
        self.key_places: Mapping[str, Sequence[str]] = {}
        self.manifest: ManifestFile | None = None
        self._path = path
        self._root = root
        self._overrides = overrides

    def add(self, finding: Finding, loc: Loc | None = None) -> None:
        """Add a finding about a key of the profile, or about an object of its manifest.

        `loc`: the location of the key, if that is not `where` split at dots.
        """
        manifest_position = self.manifest.locate(finding.where) if self.manifest else None
        if manifest_position:
            self._list(finding, manifest_position)
            self.wrong_keys.add("manifest")
            return
        if loc is None:
            loc = tuple(map(_read_segment, finding.where.split("."))) if finding.where else ()
        self._list(finding, self.locate(loc))
        if loc:
            self.wrong_keys.add(_name_wrong_key(loc))

    def _list(self, finding: Finding, position: FilePosition) -> None:
        """Add a finding at its position. Its texts may quote keys and values of any length."""
        location = shorten_text(finding.where, _MAX_WHERE_CHARS)
        self.listed.append(replace(finding, where=location, what=shorten_message(finding.what)).at(position))

    def locate(self, loc: Loc) -> FilePosition:
        """The line of a key of the profile, or `override`."""
        return find_position(self._path, self._root, loc, self._overrides)

    def list_manifest_positions(self, plan: Plan) -> dict[str, FilePosition]:
        """The line of each of the plan's requirements about the manifest, by location; empty without a manifest."""
        positions: dict[str, FilePosition] = {}
        if self.manifest is None:
            return positions
        for requirement in plan.requires:
            location = get_manifest_location(requirement)
            position = self.manifest.locate(location)
            if position:
                positions[location] = position
        return positions

    def add_file_error(self, message: str) -> None:
        """Add a finding about the profile's file itself, which no line of it shows."""
        self.listed.append(Finding(str(self._path), message))

    def add_plan_error(self, error: ProfileError) -> None:
        """Add the findings of a plan, except those about keys that have one already."""
        known_keys = frozenset(self.wrong_keys)
        for finding in error.findings:
            if not {get_first_key(finding), finding.where} & known_keys:
                self.add(finding)

    def add_error(self, key: str, error: ProfileError | ProfileKeyError) -> None:
        """Add the mistakes in a file that the profile names at `key`: those of the file have locations of their own."""
        if isinstance(error, ProfileError):
            self.listed += error.findings
        else:
            self.add(error.finding, error.loc)
        self.wrong_keys.add(key)

    def add_validation_error(
        self, error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()
    ) -> set[str]:
        """Add the errors of a model, whose location in the profile is `prefix`; return the model's wrong keys."""
        wrong_keys: set[str] = set()
        for details in error.errors():
            loc, finding = explain_error(details, prefix, model, self.key_places)
            self.add(finding, loc)
            wrong_keys.update(map(str, details["loc"][:1]))  # a missing key has the location of its mapping
        return wrong_keys


def _read_segment(segment: str) -> str | int:
    """A segment of a key path: digits are the index of an item."""
    return int(segment) if segment.isdecimal() else segment


def _name_wrong_key(loc: Loc) -> str:
    """The top-level key of a location; of an option its path, because the other options can still be checked."""
    return ".".join(map(str, loc[:2])) if loc[0] == "options" else str(loc[0])
