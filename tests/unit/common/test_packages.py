"""What only some features need is optional, and one sentence if it is missing."""

import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchyard.common.packages import need
from torchyard.common.project_root import ROOT
from torchyard.model.errors import MissingPackageError, TorchyardError

# The modules of the packages that the engine needs.
ENGINE = {"pydantic", "pydantic_core", "yaml", "tenacity"}
# Folders that only run inside Prefect, or on a host beside the job's own packages.
OTHER_ENVIRONMENTS = ("torchyard/tasks/", "torchyard/host/")
# Only what takes a run to its cluster, and what serves its metrics, imports more.
MORE = (
    "torchyard/kube/",
    "torchyard/cluster/",
    "torchyard/exporter/",
    "torchyard/cli/leased_run.py",
    "torchyard/cli/metrics.py",
    "torchyard/cli/pod_logs.py",
)
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_installed_packages_are_no_error() -> None:
    """Nothing happens if every package is there, and none of them is imported."""
    need("a test", "pytest", "yaml")


def test_missing_packages_are_one_error() -> None:
    """The message names the feature, all missing packages as pip names them, the interpreter, and the command."""
    with pytest.raises(MissingPackageError) as error:
        need("a test", "pytest", "no_such_module", "prometheus_client_", "nothing")
    expected = (
        f"a test needs no_such_module, prometheus_client_, nothing, which are not installed in {sys.executable}: "
        f"{sys.executable} -m pip install no_such_module prometheus_client_ nothing"
    )
    assert str(error.value) == expected


def test_message_has_the_name_that_pip_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose module has another name is named as pip names it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    with pytest.raises(MissingPackageError, match=r"needs prometheus-client, .* -m pip install prometheus-client$"):
        need("torchyard metrics", "prometheus_client")


def test_error_is_an_import_error_of_torchyard() -> None:
    """`except ImportError` catches it, the command prints it without a traceback, and it passes between processes."""
    error = MissingPackageError("a needs b", "pip install b")
    assert isinstance(error, ImportError)
    assert isinstance(error, TorchyardError)
    assert str(pickle.loads(pickle.dumps(error))) == "a needs b: pip install b"


def list_modules() -> list[Path]:
    """The modules of the engine, relative to the project."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "torchyard").rglob("*.py"))]
    return [path for path in paths if not str(path).startswith(OTHER_ENVIRONMENTS)]


def list_imports(tree: ast.Module) -> Iterator[str]:
    """The first names of all imports of a module, in its functions too, that are neither torchyard's nor Python's."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            root = name.partition(".")[0]
            if root != "torchyard" and root not in sys.stdlib_module_names:
                yield root


def has_need(text: str) -> bool:
    """Whether a module calls `need`."""
    return "import need\n" in text


def test_every_other_package_is_named_where_it_is_needed() -> None:
    """A folder that imports a package which the engine does not need calls `need`, and names the package."""
    texts: dict[Path, str] = {path: (ROOT / path).read_text() for path in list_modules()}
    unnamed: list[str] = []
    for path, text in texts.items():
        for name in set(list_imports(ast.parse(text))) - ENGINE:
            callers = [other for other in texts if other.parent == path.parent and has_need(texts[other])]
            if not any(f'"{name}"' in texts[caller] for caller in callers):
                unnamed.append(f"{path} imports {name}")
    assert unnamed == []


def test_engine_imports_no_other_package() -> None:
    """Without a cluster and `torchyard metrics`, no module imports a package that the engine does not need."""
    paths = [path for path in list_modules() if path.name != "__init__.py" and not str(path).startswith(MORE)]
    names = [".".join(path.with_suffix("").parts) for path in paths]
    completed = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert completed.returncode == 0, completed.stderr
    others = {name for path in list_modules() for name in list_imports(ast.parse((ROOT / path).read_text()))} - ENGINE
    assert {"kubernetes", "prometheus_client", "apprise"} <= others
    assert others.isdisjoint(completed.stdout.split())
