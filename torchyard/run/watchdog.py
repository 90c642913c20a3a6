#!/usr/bin/env python3
"""Notices when the process that owns a run ends, for whatever reason: the other end of a pipe closes.

Started as `python -I -S watchdog.py LOST COMMAND...`. LOST is `keep` or `stop`, as the profile says.
The launcher writes `ending` when teardown starts, and `done` when nothing is left to watch. If the pipe closes without
`done`, COMMAND takes over, with `stop` if teardown had started or the profile says so, else with `keep`.
"""

import os
import sys


def main() -> None:
    lost, *command = sys.argv[1:]
    for word in sys.stdin:
        if word.strip() == "done":
            return
        lost = "stop" if word.strip() == "ending" else lost
    os.execv(command[0], [lost if word == "LOST" else word for word in command])


if __name__ == "__main__":
    main()
