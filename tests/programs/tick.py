"""A training without torch, for the chaos matrix: a line every tenth of a second, and a record of the printed lines.

Every rank appends each line to TRUTH/<attempt>-<rank>-<pid> right after printing it: every line there must be in the
run's log. Rank 0 saves its position, and a later attempt continues from it. With --stubborn it ignores SIGTERM. With
--until it also ends as soon as that file exists.
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
parser.add_argument("--until", type=Path)
parser.add_argument("--stubborn", action="store_true")
args = parser.parse_args()

if args.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = os.environ["RANK"]
attempt = os.environ["TORCHYARD_ATTEMPT"]
checkpoint = Path(os.environ["TORCHYARD_CHECKPOINTS"], "tick")
checkpoint.parent.mkdir(parents=True, exist_ok=True)
first_tick = int(checkpoint.read_text()) if checkpoint.exists() else 0
truth_file = (args.truth / f"{attempt}-{rank}-{os.getpid()}").open("a", buffering=1)
for tick in range(first_tick, args.ticks):
    if args.until and args.until.exists():
        break
    line = json.dumps({"step": tick + 1, "steps": args.ticks, "rank": int(rank), "attempt": int(attempt)})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    truth_file.write(line + "\n")
    if rank == "0":
        temp_path = checkpoint.with_suffix(".part")
        temp_path.write_text(str(tick + 1))
        temp_path.replace(checkpoint)  # atomic: a kill in between leaves the previous checkpoint
    time.sleep(0.1)
