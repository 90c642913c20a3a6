"""The rules of the project's layout."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT
from torchyard.launchers.registry import list_launchers, load_launcher
from torchyard.model.base import FrozenModel

CODE = ("torchyard", "tasks", "flows", "scripts")


def list_modules() -> list[Path]:
    """Every module of the code, relative to the project."""
    paths = [path.relative_to(ROOT) for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in paths if path.stem != "__init__")


def mirror(module: Path) -> Path:
    """The test file of a module: that of torchyard/kube/http.py is tests/unit/kube/test_http.py."""
    room = module.parent.relative_to("torchyard") if module.parts[0] == "torchyard" else module.parent
    return Path("tests", "unit", room, f"test_{module.name}")


def test_every_module_has_its_test_file() -> None:
    """Each module is tested in a file of its own, in the same place under tests/unit."""
    missing = [f"{module} has no {mirror(module)}" for module in list_modules() if not (ROOT / mirror(module)).exists()]
    assert not missing, "\n".join(missing)


def test_every_test_file_has_its_module() -> None:
    """A test file in a room of tests/unit has a module's name, and perhaps more; none lies directly in tests/."""
    rooms = [path for path in (ROOT / "tests" / "unit").rglob("test_*.py") if path.parent.name != "unit"]
    mirrors = [ROOT / mirror(module) for module in list_modules()]
    matching = {
        path
        for path in rooms
        for test_file in mirrors
        if path.parent == test_file.parent and _is_named(path, test_file)
    }
    strays = sorted({*rooms, *(ROOT / "tests").glob("test_*.py")} - matching)
    assert not strays, "\n".join(f"{path.relative_to(ROOT)} belongs to no module" for path in strays)


def _is_named(path: Path, module: Path) -> bool:
    return path == module or path.stem.startswith(f"{module.stem}_")


@pytest.mark.parametrize("folder", ["flows", "tasks"])
def test_packages_are_namespaces(folder: str) -> None:
    """Our `tasks` can be imported beside another project's only without an __init__.py."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("name", ["preflight", "rendezvous", "submit", "wait", "collect", "teardown", "train"])
def test_tasks_are_the_packages(name: str) -> None:
    """tasks/ has the names of torchyard.tasks, and no second copy of a task."""
    shim = importlib.import_module(f"tasks.{name}")
    package = importlib.import_module("torchyard.tasks")
    task = {"rendezvous": "ensure_rendezvous", "train": "train_profile"}.get(name, name)
    assert getattr(shim, task) is getattr(package, task)


@pytest.mark.parametrize("path", sorted((ROOT / "flows").glob("*.py")), ids=lambda path: path.stem)
def test_no_flow_shadows_a_library(path: Path) -> None:
    """Prefect puts flows/ first on sys.path, where a file named like a library would hide it."""
    spec = importlib.util.find_spec(path.stem)
    assert spec is None or str(spec.origin).startswith(str(ROOT))


def test_no_noun_passes_for_a_mapping() -> None:
    """No model has a field named `keys`: Prefect copies a step's arguments by `dict(model)`, which would call it."""
    for name in list_launchers():
        load_launcher(name)
    nouns = [FrozenModel]
    for model in nouns:
        nouns += model.__subclasses__()
    assert len(nouns) > 50
    assert [model for model in nouns if "keys" in model.model_fields] == []


def test_design_names_every_module() -> None:
    """docs/design.md names each module."""
    text = (ROOT / "docs" / "design.md").read_text()
    files = [path for folder in ("tasks", "torchyard", "flows", "scripts") for path in (ROOT / folder).rglob("*.py")]
    names = {path.name for path in files if path.stem != "__init__"}
    schedulers = {f"{name}.py" for name in list_launchers()}
    readers = {path.name for path in (ROOT / "torchyard/metrics").glob("*.py")}
    assert sorted(name for name in names - schedulers - readers - {"keep.py"} if name not in text) == []


def test_no_room_is_overfull() -> None:
    """No folder holds more than 16 modules, and no module's name begins with an underscore."""
    rooms = [path for path in (ROOT / "torchyard").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    names = {room: [path.stem for path in room.glob("*.py") if path.stem != "__init__"] for room in rooms}
    assert {room.name: len(modules) for room, modules in names.items() if len(modules) > 16} == {}
    assert [name for modules in names.values() for name in modules if name.startswith("_")] == []
