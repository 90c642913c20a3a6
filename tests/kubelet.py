"""The kubelet's part in a pod's command."""

import re


def kubelet(text: str, env: dict[str, str]) -> str:
    """An argument of a command, as the kubelet expands it (kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\(([^)]*)\))", lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)
