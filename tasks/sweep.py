"""Where version 0.1 had what the watchdogs of its runs call. Needed until those runs have ended."""

import sys

from tasks.recovery import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
