"""Start the black box in a process of a job: Python imports this module first, because its folder is on PYTHONPATH.

Whatever fails here costs the black box, never the program.
"""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_torchyard_black_box"  # a name of its own: the program may import another torchyard


def _start_black_box() -> None:
    folder = os.path.dirname(_HERE)
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec
    assert spec.loader
    sys.modules[_PACKAGE] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    importlib.import_module(_PACKAGE + ".start").start_recorders()


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
        print("torchyard: no black box in this process: %s" % error, file=sys.stderr)
_import_hidden_module()
