#!/usr/bin/env python3
"""Sees the end of the process that carries a run, however it comes: the other end of a pipe closes.

Started as `python -I -S guard.py LOST FOLDER COMMAND...`. LOST is what the profile says of a lost launcher, `keep` or
`stop`. The launcher tells `ending` when teardown has begun, and `done` when nothing is left to guard. At the end of
the pipe, without `done`: where teardown had begun, or the profile says `stop`, COMMAND takes over and finishes it.
"""

import os
import sys


def main() -> None:
    lost, *command = sys.argv[1:]
    for word in sys.stdin:
        if word.strip() == "done":
            return
        lost = "stop" if word.strip() == "ending" else lost
    if lost == "stop":
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
