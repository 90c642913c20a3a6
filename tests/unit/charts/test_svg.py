"""The drawn chart."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.charts.chart import Band, Line, Marks, Panel, Point
from torchyard.charts.svg import GRAY, PALETTE, render_svg

RISING = (Point(0, 0), Point(1, 1), Point(2, 4))


def draw(panel: Panel) -> str:
    return render_svg([panel], columns=1, width=320, height=230)


def list_elements(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def read_points(element: ElementTree.Element) -> list[tuple[float, float]]:
    """The points of an element in pixels."""
    pairs = [pair.split(",") for pair in element.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_line_rises_to_the_right() -> None:
    """A larger x is further to the right, and a larger y further up, inside the picture."""
    (line,) = list_elements(draw(Panel("loss", [Line(RISING)])), "polyline")
    points = read_points(line)
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert all(0 < x < 320 and 0 < y < 230 for x, y in points)


def get_contrasts(color: str) -> tuple[float, float]:
    """The contrast of a color to white and to black, by the formula of WCAG 2."""
    linear: list[float] = []
    for start in (1, 3, 5):
        channel = int(color[start : start + 2], 16) / 255
        linear.append(channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4)
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 1.05 / (luminance + 0.05), (luminance + 0.05) / 0.05


@pytest.mark.parametrize(("color", "minimum"), [*((color, 3) for color in PALETTE), (GRAY, 4.5)])
def test_color_can_be_seen_on_a_light_and_on_a_dark_page(color: str, minimum: float) -> None:
    """Lines have a contrast of 3 to white and to black, text 4.5."""
    assert min(get_contrasts(color)) >= minimum


def test_background_is_that_of_the_page() -> None:
    """Nothing of a chart is white or black, and only the frame and the areas are rectangles."""
    svg = draw(Panel("loss", [Line(RISING, label="a")], x_label="epoch", y_label="loss"))
    assert re.findall("#fff|#000", svg) == []
    assert [rect.attrib["fill"] for rect in list_elements(svg, "rect")] == ["none"]
    assert ElementTree.fromstring(svg).attrib["fill"] == GRAY  # of the text


def test_dots_and_marks_are_at_their_points() -> None:
    """Each point of a line with dots has a circle, and each mark a triangle of its color."""
    panel = Panel("loss", [Line(RISING, has_dots=True)], marks=[Marks(RISING[:1], "#d62728", "down")])
    svg = draw(panel)
    circles = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in list_elements(svg, "circle")]
    assert circles == read_points(list_elements(svg, "polyline")[0])
    (triangle,) = list_elements(svg, "polygon")
    corners = read_points(triangle)
    assert triangle.attrib["fill"] == "#d62728"
    assert min(x for x, _ in corners) < circles[0][0] < max(x for x, _ in corners)


def test_band_is_an_area_between_its_lines() -> None:
    """The corners of a band are its upper line, and its lower line backwards."""
    band = Band(low=[Point(0, 0), Point(1, 1)], high=[Point(0, 2), Point(1, 3)])
    (area,) = list_elements(draw(Panel("busbw", [], bands=[band])), "polygon")
    xs = [x for x, _ in read_points(area)]
    assert xs == [*sorted(xs[:2]), *sorted(xs[2:], reverse=True)]


def test_lines_with_labels_are_in_the_legend() -> None:
    """The legend lists labels with the colors of their lines, in as many rows as they need, below the curves."""
    lines = [Line(RISING, label=f"a fabric with number {index}") for index in range(4)]
    svg = draw(Panel("busbw", [*lines, Line(RISING)]))
    keys = [path.attrib["stroke"] for path in list_elements(svg, "path") if "stroke-width" in path.attrib]
    assert keys == [line.attrib["stroke"] for line in list_elements(svg, "polyline")][:4]
    assert len(set(keys)) == 4
    tops = {text.attrib["y"] for text in list_elements(svg, "text") if "fabric" in str(text.text)}
    assert len(tops) > 1
    assert max(map(float, tops)) < float(ElementTree.fromstring(svg).attrib["height"])


def test_labels_of_the_axis_are_inside_and_apart() -> None:
    """Long labels of an axis, such as days, do not cover each other, and the last one ends inside the picture."""
    days = [Point(1_750_000_000.0 + 86_400 * index, 1) for index in range(44)]
    svg = render_svg([Panel("busbw", [Line(days)], x_scale="time")], columns=1, width=320, height=230)
    middles = [float(text.attrib["x"]) for text in list_elements(svg, "text") if str(text.text).startswith("2025-")]
    label_width = 60
    assert len(middles) > 1
    assert all(right - left >= label_width for left, right in itertools.pairwise(middles))
    assert max(middles) + label_width / 2 < 320


def test_panels_are_in_rows() -> None:
    """Three panels in two columns are two rows, and the picture has room for both."""
    svg = render_svg([Panel("a", [Line(RISING)])] * 3, columns=2, width=100, height=80)
    assert re.findall(r"translate\((\d+,\d+)\)", svg) == ["0,0", "100,0", "0,80"]
    assert 'viewBox="0 0 200 160"' in svg


@pytest.mark.parametrize("points", [[], [Point(float("nan"), 1)], [Point(3, 3)]], ids=["none", "no number", "one"])
def test_any_number_of_points_is_a_picture(points: list[Point]) -> None:
    """A panel without a point that can be shown is an empty one."""
    assert len(list_elements(draw(Panel("loss", [Line(points, has_dots=True)])), "polyline")) == 1


@given(st.text())
def test_any_text_is_shown_as_text(text: str) -> None:
    """No title, label or axis can add an element, and the picture remains well-formed XML."""
    plain = draw(Panel("a", [Line(RISING, label="a")], x_label="a", y_label="a"))
    svg = draw(Panel(text, [Line(RISING, label=text or "a")], x_label=text or "a", y_label=text or "a"))
    names = [element.tag for element in ElementTree.fromstring(svg).iter()]
    assert names == [element.tag for element in ElementTree.fromstring(plain).iter()]
