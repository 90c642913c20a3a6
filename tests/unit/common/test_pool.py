"""The name of an installation, which its work pool and its deployments carry."""

import os
import re

import pytest
from prefect.types.names import WITHOUT_BANNED_CHARACTERS

from torchyard.common.pool import DEFAULT_POOL, name_deployment, read_deployment_pool, read_pool
from torchyard.loading.profile import list_profiles
from torchyard.model.errors import SettingError


@pytest.mark.parametrize(("said", "pool"), [(None, "torchyard"), ("", "torchyard"), ("team-b", "team-b")])
def test_environment_names_the_pool(said: str | None, pool: str) -> None:
    """TORCHYARD_POOL names the installation; unset or empty, it is `torchyard`."""
    os.environ.pop("TORCHYARD_POOL", None)
    os.environ |= {"TORCHYARD_POOL": said} if said is not None else {}
    assert read_pool() == pool


@pytest.mark.parametrize("said", ["team b", "a/b", "@b", "-b", "x" * 64, "b\n"])
def test_name_that_cannot_be_used_is_refused(said: str) -> None:
    """A name that Prefect or a shell would refuse is an error that names the variable and what is allowed."""
    os.environ["TORCHYARD_POOL"] = said
    with pytest.raises(SettingError, match=r"^TORCHYARD_POOL: '.*' cannot be used: a name of letters"):
        read_pool()


def test_deployment_carries_its_pool() -> None:
    """A pool's deployment has its name, the default one's are plain, and the name says which pool it is."""
    names = [name_deployment("digits-local", pool) for pool in (DEFAULT_POOL, "team-b")]
    assert names == ["digits-local", "digits-local@team-b"]
    assert [read_deployment_pool(name) for name in names] == [DEFAULT_POOL, "team-b"]


def test_prefect_accepts_the_names() -> None:
    """The separator is none of the characters that Prefect forbids, and no profile has it in its name."""
    assert re.fullmatch(WITHOUT_BANNED_CHARACTERS, name_deployment("digits-local", "team-b"))
    assert not [name for name in list_profiles() if "@" in name]
