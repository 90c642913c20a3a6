"""Keys of a profile that a command line changes."""

import pytest

from torchyard.loading.overrides import read_overrides
from torchyard.model.errors import ProfileError


def test_values_are_yaml() -> None:
    """Each pair is a key and a YAML value, which may contain an equals sign; the last value of a key applies."""
    pairs = ["nodes=2", "env.A=b=c", "args=[--lr, 0.1]", "nodes=3"]
    assert read_overrides(pairs) == {"nodes": 3, "env.A": "b=c", "args": ["--lr", 0.1]}


@pytest.mark.parametrize(
    ("pair", "message"),
    [("nodes", "is not KEY=VALUE"), ("=3", "is not KEY=VALUE"), ("args=[", "the value is not YAML")],
)
def test_malformed_pair_is_an_error(pair: str, message: str) -> None:
    """A pair without a key or with a value that is not YAML is a ProfileError, which quotes it."""
    with pytest.raises(ProfileError, match=message) as error:
        read_overrides([pair])
    assert repr(pair) in str(error.value)
