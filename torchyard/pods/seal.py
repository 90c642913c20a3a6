"""Proof that a launcher of the run wrote something on its Lease: an HMAC with the run's own key.

Anyone who may change Leases in the namespace can write anything there. The key is stored where only users of Prefect
can read it (torchyard/tasks/flow_run/ownership.py), and is passed in from there: this module does not know Prefect.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Callable

key_source: Callable[[str], str] = lambda _: ""  # noqa: E731  from a flow run's id to its key; empty if it has none


@functools.cache
def get_run_key(run_id: str) -> str:
    """The run's key, looked up once per process; empty if there is none or it cannot be read."""
    return key_source(run_id)


def make_seal(secret: str, *values: object) -> str:
    """The seal of some facts, which must be JSON; empty without a key."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest() if secret else ""


def is_valid_seal(secret: str, candidate: object, *values: object) -> bool:
    """Whether a seal matches these facts. Without a key none does."""
    if not secret or not isinstance(candidate, str):
        return False
    return hmac.compare_digest(candidate.encode(errors="replace"), make_seal(secret, *values).encode())
