#!/usr/bin/env python3
"""Query a rendezvous store from a host: `PYTHON rendezvous.py URL`. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any

Json = Any


def query_store(url: str) -> Json:
    """The HTTP status (`code`) of a store's response, requested directly and not through a proxy; or the `error`.

    The code is 200 for every success.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5):
            return {"code": 200}
    except urllib.error.HTTPError as error:
        return {"code": error.code}
    except (OSError, http.client.HTTPException, ValueError) as error:  # another service, or an address that is none
        return {"error": "%s: %s" % (type(error).__name__, str(error).strip())}


if __name__ == "__main__":
    print(json.dumps(query_store(sys.argv[1])))
