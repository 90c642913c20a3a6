"""A training without torch, for the chaos matrix: a line every tenth of a second, and a record of the printed lines.

Every rank appends each line to TRUTH/<attempt>-<rank>-<pid> right after printing it: every line there must be in the
run's log. Rank 0 saves its position, and a later attempt continues from it. With --stubborn it ignores SIGTERM.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--truth", type=Path, required=True)
parser.add_argument("--ticks", type=int, default=60)
parser.add_argument("--stubborn", action="store_true")
asked = parser.parse_args()

if asked.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank, attempt = os.environ["RANK"], os.environ["TORCHYARD_ATTEMPT"]
place = Path(os.environ["TORCHYARD_CHECKPOINTS"], "tick")
place.parent.mkdir(parents=True, exist_ok=True)
first = int(place.read_text()) if place.exists() else 0
truth = (asked.truth / f"{attempt}-{rank}-{os.getpid()}").open("a", buffering=1)
for tick in range(first, asked.ticks):
    line = json.dumps({"step": tick + 1, "steps": asked.ticks, "rank": int(rank), "attempt": int(attempt)})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    truth.write(line + "\n")
    if rank == "0":
        place.with_suffix(".part").write_text(str(tick + 1))
        place.with_suffix(".part").replace(place)
    time.sleep(0.1)
