"""Start the black box in a process of a job: Python imports this module first, because its folder is on PYTHONPATH.

Whatever fails here costs the black box, never the program, and is reported in one line for each node. This module runs
under every Python 3 of an image; the others need the version that it checks.
"""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_torchyard_black_box"  # a name of its own: the program may import another torchyard
_MIN_PYTHON = (3, 8)


def _start_black_box() -> None:
    if sys.version_info < _MIN_PYTHON:
        raise ImportError("Python %d.%d is older than %d.%d" % (sys.version_info[:2] + _MIN_PYTHON))
    folder = os.path.dirname(_HERE)
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec
    assert spec.loader
    sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    importlib.import_module(_PACKAGE + ".start").start_recorders()


def _report_once(error: BaseException) -> None:
    """Print the error, unless another process of this node has reported one."""
    folder = os.environ["TORCHYARD_BLACK_BOX"]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(os.path.join(folder, "reported"), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError:
        pass  # the folder cannot be written: each process reports its error
    print("torchyard: hangs are not detected on this node: %s" % error, file=sys.stderr)


def _import_hidden_module() -> None:
    """Import the sitecustomize that this one hides, such as the distribution's own."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    this_module = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this_module:
            sys.modules["sitecustomize"] = this_module


if os.environ.get("TORCHYARD_BLACK_BOX"):
    try:
        _start_black_box()
    except Exception as error:
        _report_once(error)
_import_hidden_module()
