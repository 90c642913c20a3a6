"""torchyard/tasks/recovery.py, where watchdogs of earlier versions look for it. Needed until their runs have ended."""

import sys

from torchyard.tasks.recovery import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
