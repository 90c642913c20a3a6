"""The expansion of variables in a pod's command by the kubelet."""

import re


def expand_variables(text: str, env: dict[str, str]) -> str:
    """An argument of a command, as the kubelet expands it (kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)
