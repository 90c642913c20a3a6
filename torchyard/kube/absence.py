"""The one rule for absence: which answer of an API server counts as "there is no such object".

A proxy, a load balancer and a server that is starting answer 404 as well, and a list may be empty for many reasons. An
object is absent only if a Kubernetes Status of reason NotFound names it, twice, `CONFIRMATION_DELAY_S` apart, and the
server was ready in between (`Client.get`). There is no such Status for a kind that is not served: the discovery of a
ready server must lack it, twice as well. Any other 404 is an outage, which is retried, and so is a response that no API
server gives: a redirect, an empty one, or one that is not a JSON object with its kind (`read_json` of kube/http.py).
"""

import re
from collections.abc import Mapping
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


def is_reported_absent(body: Mapping[str, Any], method: str, path: str) -> bool:
    """Whether the body of a 404 is a Status which reports that the object does not exist or, for a POST, its namespace.

    The Status must name the object: another one in its place, such as a namespace that a proxy hides, does not count.
    """
    if (body.get("kind"), body.get("apiVersion"), body.get("reason")) != ("Status", "v1", "NotFound"):
        return False
    if method == "POST":
        return True
    resource = parse_resource_path(path)
    details = body.get("details")
    if resource is None or not resource.name or not isinstance(details, dict):
        return False
    plural, _, _ = str(details.get("kind")).partition("/")  # a kubelet's is `pods/log`
    return plural == resource.plural and details.get("name") == resource.name
