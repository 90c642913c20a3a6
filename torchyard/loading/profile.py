"""YAML -> Profile. All mistakes are reported at once, each with its file, line and key."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchyard.common.project_root import ROOT
from torchyard.launchers import registry
from torchyard.loading.local_files import read_local_files
from torchyard.loading.yaml_document import merge_mappings, merge_overrides, read_document, read_documents
from torchyard.loading.yaml_errors import NamedFileError, explain_error, format_location, shorten_value, suggest_name
from torchyard.model.errors import ProfileError
from torchyard.model.hardware import Hardware
from torchyard.model.profile import Profile
from torchyard.notify.targets import describe_invalid_address

_NAME_REFUSAL = "the name comes from the file's, {}.yaml: remove this key, or rename the file"


def resolve_file(name: str) -> Path:
    """The file of a profile, or of a shape of node with its name as `hardware/oke/bm-gpu-h100-8`.

    ProfileError if there is none.
    """
    folder, _, shape = name.partition("/")
    if folder != "hardware" or not shape:
        return _resolve_profile(name)
    if path := _find_named_file("hardware", shape):
        return path
    raise ProfileError(name, (_describe_unknown("there is no such hardware file", shape, _list_hardware()),))


def _list_profile_folders() -> list[Path]:
    """The folders searched for profiles: the user's own (TORCHYARD_PROFILES) before the project's."""
    user_folders = [
        Path(folder).expanduser() for folder in os.environ.get("TORCHYARD_PROFILES", "").split(os.pathsep) if folder
    ]
    return [*user_folders, ROOT / "profiles"]


def list_profiles() -> dict[str, Path]:
    """Every profile that can be named without a path."""
    profiles: dict[str, Path] = {}
    for folder in _list_profile_folders():
        for path in sorted(folder.glob("*.yaml")):
            profiles.setdefault(path.stem, path)
    return profiles


def load_profile(name: str, overrides: Mapping[str, Any] | None = None) -> Profile:
    """Read a profile by name or path. `overrides` are keys with dots (`deadlines.run`) or nested mappings.

    ProfileError names every unknown key, wrong value and missing file, each with its line.
    """
    path = _resolve_profile(name)
    name = path.stem
    document, root = read_document(path, name)
    raw = merge_overrides(document, overrides or {})
    try:
        _check_no_name_key(raw, name)
        raw = _apply_values(raw, path)
        profile = Profile.model_validate({**raw, **_load_named_files(raw, path), "name": name})
        launcher = registry.load_launcher(profile.launcher)
        launcher.Options.model_validate(profile.options)
        _check_notify_address(profile)
    except ValidationError as error:
        prefix: tuple[str, ...] = ("options",) if error.title == "Options" else ()
        model = Profile if error.title == "Profile" else registry.load_launcher(str(raw["launcher"])).Options
        findings = [explain_error(details, prefix, model) for details in error.errors()]
        raise ProfileError(
            name, tuple(format_location(path, root, loc, overrides) + text for loc, text in findings)
        ) from error
    except registry.UnknownLauncherError as error:
        raise ProfileError(name, (format_location(path, root, ("launcher",), overrides) + str(error),)) from error
    except NamedFileError as error:
        raise ProfileError(name, (format_location(path, root, error.loc, overrides) + str(error),)) from error
    if profile.program and launcher.PROGRAM_IS_A_FILE:
        return profile.model_copy(update={"program": str(_locate_file(profile.program, path.parent))})
    return profile


def _check_no_name_key(raw: Mapping[str, Any], stem: str) -> None:
    """NamedFileError if a profile, or an override of it, has the key `name`: the file's name counts."""
    if "name" in raw:
        raise NamedFileError("name", _NAME_REFUSAL.format(stem))


def _check_notify_address(profile: Profile) -> None:
    """NamedFileError if a message could not be sent to an address of `notify`."""
    problem = describe_invalid_address(profile.notify) if profile.notify else None
    if problem:
        raise NamedFileError("notify", problem, "to")


def _resolve_profile(name: str) -> Path:
    """The file of a profile: the path if `name` looks like one, else the file of that name in the profile folders."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(os.path.expanduser(name)).absolute()
        if not _is_file(path):
            raise ProfileError(name, (_describe_missing_file(path),))
        return path
    named_path = _find_named_file("", name)
    if named_path is None:
        raise ProfileError(name, (_describe_unknown("there is no such profile", name, list_profiles()),))
    return named_path


def _describe_unknown(problem: str, name: str, choices: Mapping[str, Path]) -> str:
    """What there is instead of a name, and where files of one's own are looked for."""
    hint = "" if os.environ.get("TORCHYARD_PROFILES") else " (TORCHYARD_PROFILES names no folder of your own)"
    return f"{problem}; {suggest_name(name, choices)}{hint}"


def _describe_missing_file(path: Path) -> str:
    """Why a path names no file that can be read."""
    if path.is_dir():
        return f"{path} is a folder: name a file in it"
    if os.path.islink(path):
        return f"{path} is a link that leads to no file: {os.readlink(path)}"
    if os.path.exists(path):
        return f"{path} is no regular file: name a YAML file"
    return f"there is no file {path}"


def _find_named_file(subfolder: str, name: str) -> Path | None:
    """The file of a name in the profile folders, the user's before the project's; None if it is in none of them."""
    paths = (folder / subfolder / f"{name}.yaml" for folder in _list_profile_folders())
    return None if ".." in name else next((path for path in paths if _is_file(path)), None)


def _apply_values(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The profile's keys merged over those of its `values` files. NamedFileError if one of these does not exist."""
    names = raw.get("values")
    if not names:
        return dict(raw)
    from torchyard.loading.helm_files import read_values  # takes a twentieth of `torchyard plan`; few need it

    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NamedFileError("values", f"it is a list of files, not {shorten_value(repr(names))}")
    if raw.get("manifest"):
        raise NamedFileError("values", "a manifest is a whole job, which values do not change: name one of the two")
    paths = [_resolve_relative_path(path, name) for name in names]
    for missing in (candidate for candidate in paths if not _is_file(candidate)):
        raise NamedFileError("values", f"there is no file {missing}")
    return merge_mappings(read_values(paths, path.stem, raw), raw)


def _resolve_relative_path(profile: Path, name: str) -> Path:
    """The path of a file that a profile names, relative to the profile's folder unless it begins with / or ~."""
    return Path(os.path.expanduser(name)) if name.startswith(("/", "~")) else profile.parent / name


def _is_file(path: Path) -> bool:
    """Whether a file exists; False also for a name that no file can have."""
    return os.path.isfile(path)


def _load_named_files(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Load the files that the profile names: hardware, manifest, files. NamedFileError if one does not exist."""
    loaded: dict[str, Any] = {key: raw[key] for key in ("hardware", "manifest") if raw.get(key) is not None}
    for key, value in loaded.items():
        if not isinstance(value, str):
            raise NamedFileError(key, f"it is the name of a file, not {shorten_value(repr(value))}")
        loaded[key] = _load_hardware(value) if key == "hardware" else _load_manifest(value, path)
    if raw.get("files") is not None:
        loaded["files"] = read_local_files(raw["files"], lambda name: _locate_file(name, path.parent))
    return loaded


def _list_hardware() -> dict[str, Path]:
    """Every hardware file, by the name that a profile gives it: oke/bm-gpu-b4-8."""
    hardware_paths: dict[str, Path] = {}
    for folder in _list_profile_folders():
        for path in sorted((folder / "hardware").rglob("*.yaml")):
            hardware_paths.setdefault(path.relative_to(folder / "hardware").with_suffix("").as_posix(), path)
    return hardware_paths


def _load_hardware(name: str) -> Hardware:
    """Load the node shape of this name. ProfileError if its file is wrong, NamedFileError if there is none."""
    path = _find_named_file("hardware", name)
    if path is None:
        problem = f"there is no {shorten_value(name)}"
        raise NamedFileError("hardware", _describe_unknown(problem, name, _list_hardware()))
    document, root = read_document(path, f"hardware/{name}", "a hardware file")
    if "name" in document:
        location = format_location(path, root, ("name",), {})
        raise ProfileError(f"hardware/{name}", (f"{location}name: {_NAME_REFUSAL.format(path.stem)}",))
    try:
        return Hardware.model_validate({**document, "name": name})
    except ValidationError as error:
        findings = [explain_error(details, (), Hardware) for details in error.errors()]
        located = tuple(format_location(path, root, loc, {}) + text for loc, text in findings)
        raise ProfileError(f"hardware/{name}", located) from error


def _load_manifest(name: str, profile: Path) -> tuple[dict[str, Any], ...]:
    """Load the documents of a manifest, beside the profile or at a path. ProfileError if it is not a manifest."""
    path = _resolve_relative_path(profile, name)
    if not _is_file(path):
        raise NamedFileError("manifest", f"there is no file {path}")
    try:  # as JSON, which is what an API server reads: there a key is always a string
        contents = [
            json.loads(json.dumps(content, allow_nan=False)) for content, _ in read_documents(path, profile.stem)
        ]
    except (TypeError, ValueError) as error:
        raise ProfileError(profile.stem, (f"{path}: an object may hold only what JSON can: {error}",)) from error
    documents = tuple(content for content in contents if content is not None)
    invalid_numbers = [number for number, document in enumerate(documents, 1) if not _is_kubernetes_object(document)]
    if invalid_numbers or not documents:
        numbers_text = ", ".join(map(str, invalid_numbers)) or "there is none"
        raise ProfileError(
            profile.stem, (f"{path}: each document is an object with apiVersion, kind and metadata: {numbers_text}",)
        )
    return documents


def _is_kubernetes_object(document: object) -> bool:
    """Whether it has the fields that every object has, each of the right type."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not metadata or not isinstance(metadata, dict):
        return False
    texts = [document.get("apiVersion"), document.get("kind")]
    texts += [metadata[key] for key in ("name", "namespace") if metadata.get(key) is not None]
    maps = [metadata[key] for key in ("labels", "annotations") if metadata.get(key) is not None]
    return all(text and isinstance(text, str) for text in texts) and all(isinstance(mapping, dict) for mapping in maps)


def _locate_file(name: str, folder: Path) -> Path:
    """A program, or a file for pods: beside its profile, else in the project; the former path if it is in neither."""
    return next((candidate for candidate in (folder / name, ROOT / name) if _is_file(candidate)), folder / name)
