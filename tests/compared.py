"""What tests/compare.py has measured, as a table, as docs/compare.md's table, and as a picture."""

import json
import sys
from typing import Any

from torchyard.common.project_root import ROOT

RESULT = ROOT / "docs" / "pictures" / "compare.json"
PICTURE = RESULT.with_suffix(".svg")
PAGE = ROOT / "docs" / "compare.md"
BEGIN, END = "<!-- made by make compare -->", "<!-- end -->"
OURS, THEIRS, TEXT = "#2a6f97", "#b0b0b0", "#222222"
Row = dict[str, Any]


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULT.read_text())
    return found


def told(row: Row, limit: int) -> str:
    """When the terminal said that the job failed."""
    if why := row.get("not_measured"):
        return f"not measured: {why}"
    death = row["death"]
    return f"{death['told_s']:.1f} s" if death["told_s"] is not None else f"not within {limit} s"


def named(row: Row) -> str:
    """What the terminal showed of the rank and of the cause."""
    death = row.get("death") or {}
    seen = [what for what in ("rank", "cause") if death.get(f"{what}_named")]
    if not death:
        return "-"
    if not seen:
        return "neither"
    sign = death["first_sign_s"]
    first = f", first seen after {sign:.1f} s" if sign is not None else ""
    return f"{' and '.join(seen)}{first}"


def left(row: Row) -> str:
    """What was in the namespace after Ctrl-C."""
    found = row.get("left")
    if found is None:
        return "-"
    return ", ".join(f"{count} {kind}" for kind, count in found.items()) or "nothing"


def table(result: dict[str, Any]) -> str:
    """The table in Markdown."""
    limit = result["limit_s"]
    lines = ["| launcher | job said to have failed after | names on the terminal | left after Ctrl-C |"]
    lines.append("|---|---|---|---|")
    for row in result["rows"]:
        lines.append(f"| {row['launcher']} | {told(row, limit)} | {named(row)} | {left(row)} |")
    return "\n".join(lines)


def page(text: str, result: dict[str, Any]) -> str:
    """The page's text with this table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"Measured on {result['date']}: {', '.join(f'{k} {v}' for k, v in result['versions'].items())}."
    return f"{before}{BEGIN}\n{made}\n\n{table(result)}\n{END}{after}"


def draw(result: dict[str, Any]) -> None:
    """Write the picture: seconds until the terminal says it, and objects left, side by side."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "torchyard", "svg.fonttype": "path", "font.size": 12})
    from matplotlib import pyplot

    limit = result["limit_s"]
    rows = [row for row in result["rows"] if not row.get("not_measured")][::-1]
    counted = [row for row in rows if row.get("left") is not None]
    figure, (first, second) = pyplot.subplots(
        2, 1, figsize=(9.6, 7.2), height_ratios=[len(rows), len(counted)], layout="constrained"
    )
    figure.patch.set_facecolor("white")
    times = [row["death"]["told_s"] for row in rows]
    words = [told(row, limit) for row in rows]
    _bars(first, rows, [limit if time is None else time for time in times], words)
    for patch, time in zip(first.patches, times, strict=True):
        if time is None:
            patch.set_hatch("///")
            patch.set_edgecolor("white")
    first.set_title("A rank is killed: seconds until the terminal says that the job failed", loc="left", fontsize=13)
    first.set_xlim(0, limit * 1.3)
    _bars(
        second,
        counted,
        [sum(row["left"].values()) for row in counted],
        [left(row).replace("1 ", "") for row in counted],
    )
    second.set_title("Ctrl-C while the job trains: objects left in the cluster 20 s later", loc="left", fontsize=13)
    most = max([1, *(sum(row["left"].values()) for row in counted)])
    second.set_xlim(0, most * 4.6)
    figure.savefig(PICTURE, metadata={"Date": None})
    PICTURE.write_text("\n".join(line.rstrip() for line in PICTURE.read_text().splitlines()) + "\n")
    pyplot.close(figure)


def _bars(axes: Any, rows: list[Row], values: list[float], words: list[str]) -> None:
    colours = [OURS if row["launcher"].startswith("torchyard") else THEIRS for row in rows]
    axes.barh(range(len(rows)), values, color=colours, height=0.62)
    axes.set_yticks(range(len(rows)), [row["launcher"] for row in rows])
    axes.bar_label(axes.containers[0], words, padding=5, color=TEXT, fontsize=11)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    print(table(result))
    print("\nnot compared:")
    for name, why in result["not_compared"].items():
        print(f"  {name}: {why}")


def write(result: dict[str, Any]) -> None:
    """Store the result, the picture and the page's table."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    RESULT.write_text(text.replace(f"{sys.prefix}/bin/", ""))  # torchrun prints where its interpreter is
    draw(result)
    if PAGE.exists():
        PAGE.write_text(page(PAGE.read_text(), result))
