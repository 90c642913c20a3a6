"""The memory of a benchmark's process."""

from pathlib import Path


def read_memory_mib(field: str) -> float:
    """MiB of this process's memory: now (VmRSS), or the peak so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {field}")
