"""Keys of a profile that a command line changes: `--set KEY=VALUE`."""

from collections.abc import Iterable
from typing import Any

import yaml

from torchyard.loading.yaml_document import read_value
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding

OVERRIDES_HELP = "change one key of the profile"


def read_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """`deadlines.run=2h` as `{"deadlines.run": "2h"}`; values are read as YAML. ProfileError if a pair is malformed."""
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            overrides[key] = read_value(value)
        except yaml.YAMLError as error:
            message = f"{pair!r}: the value is not YAML: {getattr(error, 'problem', error)}"
            raise ProfileError("--set", (Finding("", message),)) from error
        if not (key and equals):
            raise ProfileError(
                "--set", (Finding("", f"{pair!r} is not KEY=VALUE, such as nodes=4 or deadlines.run=2h"),)
            )
    return overrides
