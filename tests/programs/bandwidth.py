"""Print bandwidths as programs/allreduce.py does: those of a fabric whose speed, in GB/s, is the variable SPEED.

Fails if the file that BROKEN names exists.
"""

import json
import os
import sys

if os.path.exists(os.environ["BROKEN"]):
    sys.exit("it is broken")
for size in (1 << 20, 1 << 21):
    speed = float(os.environ["SPEED"]) * size / (1 << 20)
    print(json.dumps({"size": size, "algbw": speed, "busbw": speed, "wrong": 0}), flush=True)
print(json.dumps({"world_size": 2}), flush=True)
