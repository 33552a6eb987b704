import re
from xml.etree import ElementTree

import pytest

from opct.reports import charts
from opct.reports.page import template_text


def test_an_arm_is_named_beside_its_bar_and_a_long_name_is_cut_where_it_is_whole_on_a_pointer():
    long = "opct-anchor_fraction-0.25"
    bars = [charts.Bar(name, i, 0.5, 0.4, 0.6, "50%") for i, name in enumerate(("SFT", long))]
    for draw in (charts.interval_bars, charts.forest):
        root = ElementTree.fromstring(str(draw([charts.BarGroup("Rate", tuple(bars))], label="x")))
        texts = [(node.tag, node.text) for node in root.iter()]
        assert {("text", "SFT"), ("text", "opct-anch\u2026"), ("title", f"{long}: 50%")} <= set(texts)


@pytest.mark.parametrize("draw", [charts.interval_bars, charts.forest])
@pytest.mark.parametrize("text", ["\u2212100.0  \u2212100 to \u2212100", "12.345 nats  12.100 to 12.110"])
def test_a_long_name_leaves_room_for_what_is_drawn(draw, text):
    bars = (charts.Bar("a-name-of-an-arm", 0, 0.5, 0.4, 0.6, text),)
    root = ElementTree.fromstring(str(draw([charts.BarGroup("Rate", bars)], label="x")))
    ends = [float(node.attrib["x1"]) for node in root.iter("line") if node.attrib["class"] in ("axis", "grid")]
    assert max(ends) - min(ends) >= charts.LEAST_DRAWN


def test_a_whisker_below_zero_is_not_drawn_over_the_names():
    root = ElementTree.fromstring(
        str(charts.interval_bars([charts.BarGroup("KL", (charts.Bar("SFT", 0, 0.1, -0.4, 0.6, "0.1", 1),))], label="x"))
    )
    [whisker] = [node for node in root.iter("line") if node.attrib["class"] == "whisker"]
    [bar] = [node for node in root.iter("rect") if node.attrib["class"] == "bar"]
    assert whisker.attrib["x1"] == bar.attrib["x"]
    assert float(whisker.attrib["x2"]) > float(bar.attrib["x"])


def test_every_arm_has_a_color_of_its_own_in_both_schemes():
    light, dark = template_text("style.css").split("prefers-color-scheme: dark")
    for scheme in (light, dark):
        colors = re.findall(r"--arm-\d+: (#\w{6})", scheme)
        assert len(colors) == len(set(colors)) == charts.STYLES


def test_every_chart_is_well_formed_and_named_and_its_text_is_escaped():
    axes = {"x_title": "x", "y_title": "y", "label": 'say "<hi>"'}
    bars = charts.BarGroup('<script>"x"</script>', (charts.Bar("a<b", 0, 0.5, 0.4, 0.6, "50% & more"),))
    point = charts.Point("a<b", 1, 0.5, 0.1, (None, None), (0.05, 0.2))
    for drawing in (
        charts.interval_bars([bars], label=axes["label"]),
        charts.forest([bars], label=axes["label"]),
        charts.line_chart([charts.Series("a<b", 2, ((0, 0.5), (10, 0.1)))], **axes),
        charts.scatter([point], **axes, down_is_better=True),
    ):
        assert "<script>" not in str(drawing)
        root = ElementTree.fromstring(str(drawing))
        assert (root.attrib["role"], root.attrib["aria-label"]) == ("img", 'say "<hi>"')
