"""Proof that a launcher of the run wrote something on its Lease: an HMAC with the run's own key.

Whoever may change Leases in the namespace can write anything there. The key is kept where only the users of Prefect can
read it (tasks/flow_runs.py), and is handed in from there: here nothing is known of Prefect.
"""

import functools
import hashlib
import hmac
import json
from collections.abc import Callable

key_source: Callable[[str], str] = lambda _: ""  # noqa: E731  the key of a flow run's id; empty where there is none


@functools.cache
def get_run_key(run_id: str) -> str:
    """The run's key, asked for once a process; empty where there is none or it cannot be had."""
    return key_source(run_id)


def make_seal(secret: str, *facts: object) -> str:
    """The seal of some facts, which must be JSON; empty without a key."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest() if secret else ""


def is_valid_seal(secret: str, given: object, *facts: object) -> bool:
    """Whether a seal is the one of these facts. Without a key none is."""
    if not secret or not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode(errors="replace"), make_seal(secret, *facts).encode())
