"""The one rule for absence: which answer of an API server counts as "there is no such object".

A proxy, a load balancer and a server that is starting answer 404 as well, and a list may be empty for many reasons. An
object is absent only if a Kubernetes Status of reason NotFound names it, twice, `CONFIRMATION_DELAY_S` apart, and the
server was ready in between (`Client.get`). There is no such Status for a kind that is not served: the discovery of a
ready server must lack it, twice as well. Any other 404 is an outage, which is retried.
"""

import json
import re
from typing import Any, NamedTuple

CONFIRMATION_DELAY_S = 3.0  # seconds between the two readings that prove an absence
_RESOURCE_PATH = re.compile(
    r"/(?P<root>api|apis)/(?P<version>v1|[^/?]+/[^/?]+)"
    r"(?:/namespaces/[^/?]+(?=/))?/(?P<plural>[^/?]+)(?:/(?P<name>[^/?]+))?"
)


class ResourcePath(NamedTuple):
    """The parts of a path: `/apis`, `batch/v1`, `jobs`, and the object's name; "" in the path of all objects."""

    root: str
    version: str
    plural: str
    name: str


def parse_resource_path(path: str) -> ResourcePath | None:
    """The parts of the path of an object, of its subresource or of all objects of a kind; None for any other path."""
    match = _RESOURCE_PATH.match(path)
    return ResourcePath(f"/{match['root']}", match["version"], match["plural"], match["name"] or "") if match else None


def parse_status(text: str) -> dict[str, Any]:
    """The Kubernetes Status that is the body of an error; empty if the body is something else."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    is_status = isinstance(body, dict) and body.get("kind") == "Status" and body.get("apiVersion") == "v1"
    return body if is_status else {}


def is_reported_absent(status: dict[str, Any], method: str, path: str) -> bool:
    """Whether a Status of a request reports that its object does not exist or, for a POST, the object's namespace.

    The Status must name the object: another one in its place, such as a namespace that a proxy hides, does not count.
    """
    if status.get("reason") != "NotFound":
        return False
    if method == "POST":
        return True
    resource = parse_resource_path(path)
    details = status.get("details")
    if resource is None or not resource.name or not isinstance(details, dict):
        return False
    plural, _, _ = str(details.get("kind")).partition("/")  # a kubelet's is `pods/log`
    return plural == resource.plural and details.get("name") == resource.name
