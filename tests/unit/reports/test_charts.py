from xml.etree import ElementTree

from opct.reports import charts


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
