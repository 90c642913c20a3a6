"""The logs of pods: followed while they grow, written to disk, and read from another machine."""
