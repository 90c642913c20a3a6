"""YAML -> Profile. Every mistake is told with its file, line and key, and all of them at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tasks.document import Loader, explain, merge, nearest, place, read, syntax
from tasks.errors import ProfileError
from tasks.launchers import registry
from tasks.spec import Hardware, Profile

ROOT = Path(__file__).resolve().parent.parent


class NamedFileError(Exception):
    """A key of the profile names a file that is not there."""

    def __init__(self, key: str, said: str) -> None:
        super().__init__(key, said)
        self.key, self.said = key, said

    def __str__(self) -> str:
        return f"{self.key}: {self.said}"


def folders() -> list[Path]:
    """Where profiles are looked for: the user's own folders (TORCHYARD_PROFILES) before the project's."""
    own = [Path(each).expanduser() for each in os.environ.get("TORCHYARD_PROFILES", "").split(os.pathsep) if each]
    return [*own, ROOT / "profiles"]


def profiles() -> dict[str, Path]:
    """Every profile that can be named without a path."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def load_profile(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """Read a profile by name or path. `overrides` are keys with dots (`deadlines.run`) or nested mappings.

    ProfileError names every unknown key, wrong value and missing file, with the line where it stands.
    """
    path = find(name)
    name = path.stem
    document, root = read(path, name)
    raw = merge(document, overrides or {})
    try:
        profile = Profile.model_validate({**raw, **named_files(raw, path), "name": name})
        launcher = registry.launcher(profile.launcher)
        launcher.Options.model_validate(profile.options)
    except ValidationError as error:
        prefix: tuple[str, ...] = ("options",) if error.title == "Options" else ()
        model = Profile if error.title == "Profile" else registry.launcher(str(raw["launcher"])).Options
        findings = [explain(each, prefix, model) for each in error.errors()]
        raise ProfileError(name, tuple(place(path, root, loc, overrides) + text for loc, text in findings)) from error
    except registry.UnknownLauncherError as error:
        raise ProfileError(name, (place(path, root, ("launcher",), overrides) + str(error),)) from error
    except NamedFileError as error:
        raise ProfileError(name, (place(path, root, (error.key,), overrides) + str(error),)) from error
    if profile.program and getattr(launcher, "PROGRAM_IS_A_FILE", False):
        return profile.model_copy(update={"program": str(locate(profile.program, path.parent))})
    return profile


def find(name: str) -> Path:
    """The file of a profile: a path where it looks like one, else a name in `folders()`."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise ProfileError(name, (f"there is no file {path}",))
        return path
    known = profiles()
    if name not in known:
        raise ProfileError(name, ("there is no such profile; " + nearest(name, known),))
    return known[name]


def named_files(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What the profile names by file, read: its hardware and its manifest. NamedFileError where there is none."""
    found: dict[str, Any] = {key: raw[key] for key in ("hardware", "manifest") if raw.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, str):
            raise NamedFileError(key, f"it is the name of a file, not {value!r}")
        found[key] = load_hardware(value) if key == "hardware" else load_manifest(value, path)
    return found


def hardware() -> dict[str, Path]:
    """Every hardware file, by the name that a profile gives it: oke/bm-gpu-b4-8."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted((folder / "hardware").rglob("*.yaml")):
            found.setdefault(path.relative_to(folder / "hardware").with_suffix("").as_posix(), path)
    return found


def load_hardware(name: str) -> Hardware:
    """The shape of a name. ProfileError where its file is wrong, NamedFileError where there is none."""
    known = hardware()
    if name not in known:
        raise NamedFileError("hardware", f"there is no {name}; {nearest(name, known)}")
    document, root = read(known[name], f"hardware/{name}")
    try:
        return Hardware.model_validate(document)
    except ValidationError as error:
        findings = [explain(each, (), Hardware) for each in error.errors()]
        told = tuple(place(known[name], root, loc, {}) + text for loc, text in findings)
        raise ProfileError(f"hardware/{name}", told) from error


def load_manifest(name: str, beside: Path) -> tuple[dict[str, Any], ...]:
    """The documents of a manifest beside the profile, or at a path. ProfileError where it is not one."""
    path = Path(name).expanduser() if name.startswith(("/", "~")) else beside.parent / name
    if not path.is_file():
        raise NamedFileError("manifest", f"there is no file {path}")
    try:
        documents = tuple(each for each in yaml.load_all(path.read_text(), Loader=Loader) if each is not None)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(beside.stem, (f"{path} cannot be read: {error}",)) from error
    except yaml.YAMLError as error:
        raise ProfileError(beside.stem, (syntax(path, error),)) from error
    bad = [number for number, each in enumerate(documents, 1) if not is_object(each)]
    if bad or not documents:
        which = ", ".join(map(str, bad)) or "there is none"
        raise ProfileError(
            beside.stem, (f"{path}: each document is an object with apiVersion, kind and metadata: {which}",)
        )
    return documents


def is_object(document: object) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        return False
    return all(document.get(key) for key in ("apiVersion", "kind", "metadata"))


def locate(program: str, folder: Path) -> Path:
    """A program beside its profile, else in the project; preflight tells when it is in neither."""
    return next((each for each in (folder / program, ROOT / program) if each.is_file()), folder / program)
