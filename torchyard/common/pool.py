"""The name of an installation on a Prefect server: its work pool has this name, and its deployments end with it.

Several installations can share a server if each has a different name: `make up POOL=team-b` sets TORCHYARD_POOL.
"""

import os
import re

from torchyard.model.errors import SettingError

DEFAULT_POOL = "torchyard"
_VARIABLE = "TORCHYARD_POOL"
_SEPARATOR = "@"  # Prefect allows it in names, and no profile's name contains it
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ALLOWED = "a name of letters, digits, dots, hyphens and underscores, at most 63, such as team-b"


def read_pool() -> str:
    """The installation of this process. SettingError if TORCHYARD_POOL is not a valid name."""
    pool = os.environ.get(_VARIABLE) or DEFAULT_POOL
    if not _NAME_PATTERN.fullmatch(pool):
        raise SettingError(_VARIABLE, pool, _ALLOWED)
    return pool


def format_deployment_name(name: str, pool: str) -> str:
    """The name of an installation's deployment, `digits-local@team-b`; the default installation adds no suffix."""
    return name if pool == DEFAULT_POOL else f"{name}{_SEPARATOR}{pool}"
