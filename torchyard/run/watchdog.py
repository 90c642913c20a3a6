#!/usr/bin/env python3
"""Takes over from the process that owns a run when that process ends: the other end of a pipe closes.

Started as `python -I -S watchdog.py LOST COMMAND...`. LOST is `keep` or `stop`, as the profile says.
The launcher writes `ending` when teardown starts, and `done` when nothing is left to watch. If the pipe closes without
`done`, COMMAND takes over, with `stop` if teardown had started or the profile says so, else with `keep`.
"""

import os
import sys


def main() -> None:
    verb, *command = sys.argv[1:]
    for line in sys.stdin:
        if line.strip() == "done":
            return
        if line.strip() == "ending":
            verb = "stop"
    os.execv(command[0], [verb if arg == "LOST" else arg for arg in command])


if __name__ == "__main__":
    main()
