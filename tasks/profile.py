"""YAML -> Profile. Every mistake is told with its file, line and key, and all of them at once."""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tasks.errors import ProfileError
from tasks.launchers import registry
from tasks.spec import Profile

ROOT = Path(__file__).resolve().parent.parent
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        profile = Profile.model_validate({**raw, "name": path.stem})
        registry.launcher(profile.launcher).Options.model_validate(profile.options)
    except ValidationError as error:
        prefix: tuple[str, ...] = ("options",) if error.title == "Options" else ()
        model = Profile if error.title == "Profile" else registry.launcher(str(raw["launcher"])).Options
        findings = [explain(each, prefix, model) for each in error.errors()]
        raise ProfileError(name, tuple(place(path, root, loc, overrides) + text for loc, text in findings)) from error
    except registry.UnknownLauncherError as error:
        raise ProfileError(name, (place(path, root, ("launcher",), overrides) + str(error),)) from error
    return profile.model_copy(update={"program": str(locate(profile.program, path.parent))})


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


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean x? There are: …`, for a name that is not among the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]}? " if close else "") + "there are: " + ", ".join(names)


def read(path: Path, name: str) -> tuple[dict[str, Any], yaml.MappingNode]:
    """The document, and its nodes, which know their lines."""
    try:
        text = path.read_text()
        root = yaml.compose(text, Loader=Loader)
        document = yaml.load(text, Loader=Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(name, (f"{path} cannot be read: {error}",)) from error
    except yaml.YAMLError as error:
        raise ProfileError(name, (syntax(path, error),)) from error
    if not isinstance(root, yaml.MappingNode):
        raise ProfileError(name, (f"{path}:1: a profile is a mapping of keys to values",))
    twice = repeated(root)
    if twice:
        raise ProfileError(
            name, tuple(f"{path}:{line}: the key {key} stands here a second time" for key, line in twice)
        )
    return document, root


def syntax(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it is not YAML"
    return f"{path}:{mark.line + 1}: {problem} (column {mark.column + 1})" if mark else f"{path}: {problem}"


def repeated(node: yaml.Node) -> list[tuple[str, int]]:
    """Keys that stand twice in one mapping: YAML readers take the last one without a word."""
    if isinstance(node, yaml.SequenceNode):
        return [each for child in node.value for each in repeated(child)]
    if not isinstance(node, yaml.MappingNode):
        return []
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    here = [(key.value, key.start_mark.line + 1) for at, (key, _) in enumerate(node.value) if key.value in keys[:at]]
    return here + [each for _, child in node.value for each in repeated(child)]


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged key by key, everything else is replaced."""
    merged = dict(base)
    for dotted, value in changes.items():
        key, _, rest = dotted.partition(".")
        change = {rest: value} if rest else value
        old = merged.get(key)
        merged[key] = merge(old if isinstance(old, dict) else {}, change) if isinstance(change, dict) else change
    return merged


def explain(error: ErrorDetails, prefix: tuple[str, ...], model: type[BaseModel]) -> tuple[tuple[str | int, ...], str]:
    """Where a value is wrong, and one sentence about it."""
    loc = prefix + error["loc"]
    key = ".".join(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        return loc, f"unknown key {key}: " + nearest(str(loc[-1]), keys(model, error["loc"][:-1]))
    if error["type"] == "missing":
        return loc[:-1], f"the key {key} is missing"
    text = error["msg"].removeprefix("Value error, ")
    return loc, f"{key}: {text[:1].lower() + text[1:]}, not {error['input']!r}"


def keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that are allowed at a place of a profile."""
    for part in loc:
        annotation = model.model_fields[str(part)].annotation
        inner = [
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        model = inner[0] if inner else model
    return [name for name in model.model_fields if not (model is Profile and name == "name")]


def place(path: Path, root: yaml.Node, loc: Sequence[str | int], overrides: Mapping[str, Any] | None) -> str:
    """`file:line: ` of a key, or `override: ` where the value came from there."""
    if loc and any(dotted.split(".")[0] == loc[0] for dotted in overrides or {}):
        return "override: "
    line = root.start_mark.line
    for part in loc:
        children: list[tuple[Any, yaml.Node]] = []
        if isinstance(root, yaml.MappingNode):
            children = [(key.value, value) for key, value in root.value]
            line = next((key.start_mark.line for key, _ in root.value if key.value == part), line)
        elif isinstance(root, yaml.SequenceNode):
            children = list(enumerate(root.value))
        root = dict(children).get(part, root)
        line = root.start_mark.line if isinstance(part, int) else line
    return f"{path}:{line + 1}: "


def locate(program: str, folder: Path) -> Path:
    """A program beside its profile, else in the project; preflight tells when it is in neither."""
    return next((each for each in (folder / program, ROOT / program) if each.is_file()), folder / program)
