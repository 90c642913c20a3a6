"""The packages that only some features need.

The engine needs pydantic, pyyaml and tenacity (docs/index.md, "A small installation"). A folder or a function that
imports another package calls `need` first: what is missing is then one sentence, not a traceback.
"""

import sys
from importlib.util import find_spec

from torchyard.model.errors import MissingPackageError

# As pip names them, where that differs from the name of the module.
_PACKAGES = {"mlflow": "mlflow-skinny", "prometheus_client": "prometheus-client", "sklearn": "scikit-learn"}
# The package of each protocol of an object store; fsspec itself names those of others.
_STORE_MODULES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}


def need(feature: str, *modules: str, protocol: str = "", remedy: str = "") -> None:
    """Raise MissingPackageError if a package that a feature needs is not installed. Nothing is imported.

    feature: the subject of the message, such as `torchyard metrics`.
    modules: one of each package, by the name that imports use.
    protocol: of an object store, such as s3, which needs the package of its client.
    remedy: the commands that install them; by default pip's. An extra of torchyard is not named, because it would
        install all that torchyard depends on where only the engine is wanted.
    """
    if protocol in _STORE_MODULES:
        modules = (*modules, _STORE_MODULES[protocol])
    missing = [_PACKAGES.get(module, module) for module in modules if find_spec(module) is None]
    if not missing:
        return
    verb = "are" if len(missing) > 1 else "is"
    problem = f"{feature} needs {', '.join(missing)}, which {verb} not installed in {sys.executable}"
    raise MissingPackageError(problem, remedy or f"{sys.executable} -m pip install {' '.join(missing)}")
