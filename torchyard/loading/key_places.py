"""Where each key of a profile belongs, for a key that is written in another place."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from torchyard.model.pod import PLAIN_RESOURCES
from torchyard.model.profile import CodeFolder, Profile

_MODELS: dict[str, type[BaseModel] | None] = {
    "hardware": None,  # a user writes the name of a file
    "code": CodeFolder,  # the fields of Code are computed
}
_CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


def list_key_places(options: type[BaseModel] | None) -> dict[str, list[str]]:
    """The paths at which a profile may have a key, such as `pod.tolerations`, by the last segment of the path.

    options: the model of the launcher's options; None if the launcher is unknown.
    """
    places: dict[str, list[str]] = defaultdict(list)
    models = _MODELS | {"options": options}
    for key, field in Profile.model_fields.items():
        if key != "name":
            places[key].append(key)
        model = models[key] if key in models else _find_mapping_model(field.annotation)
        for nested_key in model.model_fields if model else ():
            places[nested_key].append(f"{key}.{nested_key}")
    for name in PLAIN_RESOURCES:
        places[name].append(f"resources.{name}")
    return dict(places)


def suggest_place(key: str, places: Mapping[str, Sequence[str]]) -> str | None:
    """`write it as pod.tolerations`, for a key that belongs elsewhere; None if no place has such a key.

    The key may be spelled as in Kubernetes: `nodeSelector` is `node_selector`.
    """
    paths = places.get(_CAPITAL.sub(lambda match: f"_{match[0].lower()}", key))
    if not paths:
        return None
    descriptions = [path if "." in path else f"{path}, at the top level" for path in paths]
    return f"write it as {' or '.join(descriptions)}"


def _find_mapping_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a key whose value may be one mapping with fixed keys; None for another key."""
    if get_origin(annotation) is dict:
        return None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
