"""Proof that a launcher of the run wrote something on its Lease: an HMAC with the run's own key.

Anyone who may change Leases in the namespace can write anything there. The key is stored where only users of Prefect
can read it (torchyard/tasks/flow_run/ownership.py), and comes from there: this module does not import Prefect.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Callable


def _find_no_key(_run_id: str) -> str:
    return ""


# From a flow run's id to its key; empty if the run has none. tasks/flow_run sets it: without Prefect no run has a key.
key_source: Callable[[str], str] = _find_no_key


@functools.cache
def get_run_key(run_id: str) -> str:
    """The run's key, looked up once per process; empty if there is none or it cannot be read."""
    return key_source(run_id)


def make_seal(secret: str, *values: object) -> str:
    """The seal of some values, which must be JSON; empty without a key."""
    if not secret:
        return ""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_valid_seal(secret: str, candidate: object, *values: object) -> bool:
    """Whether `candidate`, which anyone may have written, is the seal of these values. Without a key none is."""
    if not secret or not isinstance(candidate, str):
        return False
    # A comparison in constant time: its duration must not reveal how much of a forged seal is right.
    return hmac.compare_digest(candidate.encode(errors="replace"), make_seal(secret, *values).encode())
