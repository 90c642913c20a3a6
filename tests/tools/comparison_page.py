"""The measurements of tests/tools/compare.py as a printed table, as docs/compare.md's table, and as a picture."""

import json
import sys
from typing import Any

from torchyard.charts.svg import GRAY, PALETTE
from torchyard.common.project_root import ROOT

RESULT = ROOT / "docs" / "pictures" / "compare.json"
PICTURE = RESULT.with_suffix(".svg")
PAGE = ROOT / "docs" / "compare.md"
BEGIN = "<!-- made by make compare -->"
END = "<!-- end -->"
TORCHYARD_COLOUR = PALETTE[0]
PEER_COLOUR = GRAY
TEXT_COLOUR = GRAY
Row = dict[str, Any]


def load_result() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RESULT.read_text())
    return result


def format_failure_time(row: Row, limit: int) -> str:
    """The seconds until the terminal reported the failure, or why there are none."""
    reason = row.get("not_measured")
    if reason:
        return f"not measured: {reason}"
    death = row["death"]
    return f"{death['told_s']:.1f} s" if death["told_s"] is not None else f"not within {limit} s"


def describe_diagnosis(row: Row) -> str:
    """Whether the terminal named the rank and the cause, and after how many seconds the cause."""
    death = row.get("death") or {}
    named_facts = [fact for fact in ("rank", "cause") if death.get(f"{fact}_named")]
    if not death:
        return "-"
    if not named_facts:
        return "neither"
    cause_s = death["first_sign_s"]
    first = f", first seen after {cause_s:.1f} s" if cause_s is not None else ""
    return f"{' and '.join(named_facts)}{first}"


def format_leftovers(row: Row) -> str:
    """The number and kinds of the objects left in the namespace after Ctrl-C; `-` if not measured."""
    leftovers = row.get("left")
    if leftovers is None:
        return "-"
    return ", ".join(f"{count} {kind}" for kind, count in leftovers.items()) or "nothing"


def render_table(result: dict[str, Any]) -> str:
    """The table in Markdown."""
    limit = result["limit_s"]
    lines = ["| launcher | failure reported after | names on the terminal | left after Ctrl-C |"]
    lines.append("|---|---|---|---|")
    for row in result["rows"]:
        cells = (row["launcher"], format_failure_time(row, limit), describe_diagnosis(row), format_leftovers(row))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render_page(text: str, result: dict[str, Any]) -> str:
    """The page's text with this result in place of the previous one."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    summary = f"Measured on {result['date']}: {', '.join(f'{k} {v}' for k, v in result['versions'].items())}."
    return f"{before}{BEGIN}\n{summary}\n\n{render_table(result)}\n{END}{after}"


def draw_picture(result: dict[str, Any]) -> None:
    """Write the picture: seconds until the terminal reports the failure, and leftover objects.

    Its background is transparent and its colours are those of torchyard's charts, for a light and for a dark page.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "torchyard", "svg.fonttype": "path", "font.size": 12})
    mpl.rcParams.update({"text.color": TEXT_COLOUR, "axes.edgecolor": TEXT_COLOUR, "ytick.labelcolor": TEXT_COLOUR})
    from matplotlib import pyplot

    limit = result["limit_s"]
    rows = [row for row in result["rows"] if not row.get("not_measured")][::-1]
    interrupted_rows = [row for row in rows if row.get("left") is not None]
    figure, (first, second) = pyplot.subplots(
        2, 1, figsize=(9.6, 7.2), height_ratios=[len(rows), len(interrupted_rows)], layout="constrained"
    )
    times = [row["death"]["told_s"] for row in rows]
    labels = [format_failure_time(row, limit) for row in rows]
    _draw_bars(first, rows, [limit if time is None else time for time in times], labels)
    for patch, time in zip(first.patches, times, strict=True):
        if time is None:
            patch.set_hatch("///")
            patch.set_edgecolor(patch.get_facecolor())
            patch.set_facecolor("none")
    first.set_title("A rank is killed: seconds until the terminal reports that the job failed", loc="left", fontsize=13)
    first.set_xlim(0, limit * 1.3)
    _draw_bars(
        second,
        interrupted_rows,
        [sum(row["left"].values()) for row in interrupted_rows],
        [format_leftovers(row).replace("1 ", "") for row in interrupted_rows],
    )
    second.set_title("Ctrl-C while the job trains: objects left in the cluster 20 s later", loc="left", fontsize=13)
    max_count = max([1, *(sum(row["left"].values()) for row in interrupted_rows)])
    second.set_xlim(0, max_count * 4.6)
    figure.savefig(PICTURE, metadata={"Date": None}, transparent=True)
    PICTURE.write_text("\n".join(line.rstrip() for line in PICTURE.read_text().splitlines()) + "\n")
    pyplot.close(figure)


def _draw_bars(axes: Any, rows: list[Row], values: list[float], labels: list[str]) -> None:
    colours = [TORCHYARD_COLOUR if row["launcher"].startswith("torchyard") else PEER_COLOUR for row in rows]
    axes.barh(range(len(rows)), values, color=colours, height=0.62)
    axes.set_yticks(range(len(rows)), [row["launcher"] for row in rows])
    axes.bar_label(axes.containers[0], labels, padding=5, color=TEXT_COLOUR, fontsize=11)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def print_result(result: dict[str, Any]) -> None:
    """Print the table."""
    print(render_table(result))
    print("\nnot compared:")
    for launcher, reason in result["not_compared"].items():
        print(f"  {launcher}: {reason}")


def write_result(result: dict[str, Any]) -> None:
    """Store the result, the picture and the page's table."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    RESULT.write_text(text.replace(f"{sys.prefix}/bin/", ""))  # torchrun prints where its interpreter is
    draw_picture(result)
    if PAGE.exists():
        PAGE.write_text(render_page(PAGE.read_text(), result))
