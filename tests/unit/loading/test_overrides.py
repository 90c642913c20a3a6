"""Keys of a profile that a command line changes."""

import pytest

from tests.conftest import Write
from torchyard.loading.overrides import read_overrides
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ProfileError


def test_values_are_yaml() -> None:
    """Each pair is a key and a YAML value, which may contain an equals sign; the last value of a key applies."""
    pairs = ["nodes=2", "env.A=b=c", "args=[--lr, 0.1]", "nodes=3"]
    assert read_overrides(pairs) == {"nodes": 3, "env.A": "b=c", "args": ["--lr", 0.1]}


@pytest.mark.parametrize("value", ["1.10", "010", "12:30:45", "2024-01-01", "2024-13-45", "="])
def test_value_is_that_of_a_file(write: Write, value: str) -> None:
    """A command line reads the value as the profile's file does: where text is expected, it is kept as it is."""
    path = write(program="x.py")
    (path.parent / "x.py").touch()
    assert load_profile(str(path), read_overrides([f"env.A={value}"])).env["A"] == value


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("nodes", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("args=[", "the value is not YAML"),
        ("args=!!int abc", "the value is not YAML: 'abc' cannot be read as int"),
        ("args=" + "[" * 3000, "the value is not YAML: more than 100 levels"),
        ("nodes=" + "9" * 5000, "the value is not YAML: a number of 5000 digits"),
    ],
)
def test_malformed_pair_is_an_error(pair: str, message: str) -> None:
    """A pair without a key or with a value that is not YAML is a ProfileError, which quotes it."""
    with pytest.raises(ProfileError, match=message) as error:
        read_overrides([pair])
    assert repr(pair)[:60] in str(error.value)
