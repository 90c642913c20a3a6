"""Prints the figures of the benchmarks, with the values that the project promises."""


def show(label: str, value: float, target: float | None, unit: str = "s") -> None:
    """Print a value and its target, the highest value that the project promises; None if it promises none."""
    verdict = ""
    if target is not None:
        verdict = f"  target <= {target:g} {unit}: {_format_verdict(is_met=value <= target)}"
    print(f"  {label:<66} {value:8.3f} {unit}{verdict}", flush=True)


def show_rate(label: str, rate: float, minimum: float | None, suffix: str) -> None:
    """Print megabytes per second and the promised minimum, None if there is none; `suffix` ends the line."""
    verdict = ""
    if minimum is not None:
        verdict = f"  target >= {minimum:g} MB/s: {_format_verdict(is_met=rate >= minimum)}"
    print(f"  {label:<66} {rate:8.1f} MB/s{verdict}{suffix}", flush=True)


def _format_verdict(*, is_met: bool) -> str:
    return "met" if is_met else "MISSED"
