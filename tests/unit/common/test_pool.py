"""The name of an installation: its work pool has this name, and its deployments contain it."""

import os
import re

import pytest
from prefect.types.names import WITHOUT_BANNED_CHARACTERS

from torchyard.common.pool import DEFAULT_POOL, format_deployment_name, read_pool
from torchyard.loading.profile import list_profiles
from torchyard.model.errors import SettingError


@pytest.mark.parametrize(("value", "pool"), [(None, "torchyard"), ("", "torchyard"), ("team-b", "team-b")])
def test_environment_names_the_pool(value: str | None, pool: str) -> None:
    """TORCHYARD_POOL names the installation; unset or empty, it is `torchyard`."""
    os.environ.pop("TORCHYARD_POOL", None)
    if value is not None:
        os.environ["TORCHYARD_POOL"] = value
    assert read_pool() == pool


@pytest.mark.parametrize("value", ["team b", "a/b", "@b", "-b", "x" * 64, "b\n"])
def test_name_that_cannot_be_used_is_refused(value: str) -> None:
    """A name that Prefect or a shell would refuse is an error that contains the variable and the valid names."""
    os.environ["TORCHYARD_POOL"] = value
    with pytest.raises(SettingError, match=r"^TORCHYARD_POOL: '.*' cannot be used: a name of letters"):
        read_pool()


def test_deployment_carries_its_pool() -> None:
    """A deployment's name ends with its pool, unless that is the default one."""
    names = [format_deployment_name("digits-local", pool) for pool in (DEFAULT_POOL, "team-b")]
    assert names == ["digits-local", "digits-local@team-b"]


def test_prefect_accepts_the_names() -> None:
    """Prefect allows the separator in names, and no profile's name contains it."""
    assert re.fullmatch(WITHOUT_BANNED_CHARACTERS, format_deployment_name("digits-local", "team-b"))
    assert not [name for name in list_profiles() if "@" in name]
