"""The rules of the project's layout."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT
from torchyard.launchers.registry import list_launchers, load_launcher
from torchyard.model.base import FrozenModel

CODE = ("torchyard", "tasks", "flows", "scripts")
# The folders of tests/ with the code that several test files share, and with the tools.
SHARED = ("bench", "builders", "contracts", "doubles", "inputs", "processes", "support", "tools")


def list_modules() -> list[Path]:
    """Every module of the code, relative to the project."""
    paths = [path.relative_to(ROOT) for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in paths if path.stem != "__init__")


def get_test_file(module: Path) -> Path:
    """The test file of a module: that of torchyard/kube/http.py is tests/unit/kube/test_http.py."""
    folder = module.parent.relative_to("torchyard") if module.parts[0] == "torchyard" else module.parent
    return Path("tests", "unit", folder, f"test_{module.name}")


def test_every_module_has_its_test_file() -> None:
    """Each module has its own test file, in the same folder under tests/unit."""
    test_files = {module: get_test_file(module) for module in list_modules()}
    missing = [f"{module} has no {path}" for module, path in test_files.items() if not (ROOT / path).exists()]
    assert not missing, "\n".join(missing)


def test_every_test_file_has_its_module() -> None:
    """A test file in a folder of tests/unit starts with a module's name."""
    paths = [path for path in (ROOT / "tests" / "unit").rglob("test_*.py") if path.parent.name != "unit"]
    test_files = [ROOT / get_test_file(module) for module in list_modules()]
    strays = [path for path in paths if not _has_module(path, test_files)]
    assert not strays, "\n".join(f"{path.relative_to(ROOT)} belongs to no module" for path in sorted(strays))


def test_only_fixtures_are_at_the_root_of_the_tests() -> None:
    """tests/ contains conftest.py and folders: helpers and tools have folders by their kind."""
    assert [path.name for path in (ROOT / "tests").glob("*.*")] == ["conftest.py"]


def _has_module(path: Path, test_files: list[Path]) -> bool:
    """Whether a path is one of the modules' test files, or has the name of one and a suffix."""
    for test_file in test_files:
        has_name = path.stem == test_file.stem or path.stem.startswith(f"{test_file.stem}_")
        if path.parent == test_file.parent and has_name:
            return True
    return False


@pytest.mark.parametrize("folder", ["flows", "tasks"])
def test_packages_are_namespaces(folder: str) -> None:
    """Without an __init__.py, our `tasks` can be imported beside another project's package of that name."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("steps", ["preflight", "ensure_rendezvous", "submit", "wait", "collect", "teardown"]),
        ("train", ["train_profile"]),
    ],
)
def test_tasks_are_the_packages(module: str, names: list[str]) -> None:
    """tasks/ exports the tasks of torchyard.tasks, and no second copy of one."""
    exporting = importlib.import_module(f"tasks.{module}")
    package = importlib.import_module("torchyard.tasks")
    for name in names:
        assert getattr(exporting, name) is getattr(package, name)


@pytest.mark.parametrize("path", sorted((ROOT / "flows").glob("*.py")), ids=lambda path: path.stem)
def test_no_flow_shadows_a_library(path: Path) -> None:
    """Prefect puts flows/ first on sys.path, where a file named like a library would hide it."""
    spec = importlib.util.find_spec(path.stem)
    assert spec is None or str(spec.origin).startswith(str(ROOT))


def test_no_model_is_a_mapping_for_dict() -> None:
    """No model has a field named `keys`: Prefect copies a step's arguments by `dict(model)`, which would call it."""
    for name in list_launchers():
        load_launcher(name)
    models = [FrozenModel]
    for model in models:
        models += model.__subclasses__()
    assert len(models) > 50
    assert [model for model in models if "keys" in model.model_fields] == []


def test_design_lists_every_folder() -> None:
    """The table of docs/design.md has a row for each folder with modules, and each of its rows is a folder."""
    text = (ROOT / "docs" / "design.md").read_text()
    rows = set(re.findall(r"^\| `([a-z0-9_/]+)/` \|", text, re.MULTILINE))
    assert [str(module) for module in list_modules() if str(module.parent) not in rows] == []
    assert [row for row in sorted(rows) if not (ROOT / row).is_dir()] == []


@pytest.mark.parametrize("folder", [*CODE, "programs"])
def test_every_module_has_a_docstring(folder: str) -> None:
    """Each module states in its docstring what it contains."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    assert [str(path) for path in paths if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_no_folder_has_too_many_modules() -> None:
    """A folder contains at most 18 modules, and no module's name starts with an underscore."""
    folders = [path for path in (ROOT / "torchyard").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    folders += [ROOT / "tests" / name for name in SHARED]
    for folder in folders:
        modules = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        assert len(modules) <= 18, folder
        assert [module for module in modules if module.startswith("_")] == []
