#!/usr/bin/env python3
"""Sees the end of the process that carries a run, however it comes: the other end of a pipe closes.

Started as `python -I -S watchdog.py LOST COMMAND...`. LOST is `keep` or `stop`, as the profile has it.
The launcher tells `ending` when teardown has begun, and `done` when nothing is left to guard. At the end of the pipe
without `done`, COMMAND takes over: it is given `stop` where teardown had begun or the profile says so, else `keep`.
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
