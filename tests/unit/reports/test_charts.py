from xml.etree import ElementTree

from opct.reports import charts


def test_ticks_of_counts_are_whole_numbers():
    """Not at 0.5 and 1.5; a range whose steps are whole anyway is as without."""
    assert charts.ticks(0.0, 2.0) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert charts.ticks(0.0, 2.0, whole=True) == [0.0, 1.0, 2.0]
    assert charts.ticks(0.0, 40.0, whole=True) == charts.ticks(0.0, 40.0) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_text_in_a_chart_is_escaped():
    group = charts.BarGroup('<script>"x"</script>', (charts.Bar("a<b", 0, 0.5, 0.4, 0.6, "50% & more"),))
    drawing = str(charts.interval_bars([group], label='say "<hi>"'))
    assert "<script>" not in drawing
    assert "&lt;script&gt;" in drawing
    assert ElementTree.fromstring(drawing).attrib["aria-label"] == 'say "<hi>"'


def test_every_chart_is_well_formed_and_named():
    line = charts.line_chart([charts.Series("r", 2, ((0, 0.5), (10, 0.1)))], x_title="x", y_title="y", label="falls")
    dots = charts.scatter(
        [charts.Point("r", 1, 0.5, 0.1, (None, None), (0.05, 0.2))],
        x_title="x",
        y_title="y",
        label="dot",
        down_is_better=True,
    )
    forest = charts.forest([charts.BarGroup("m", (charts.Bar("r", 1, -0.1, None, None, "-10"),))], label="rows")
    for drawing, label in ((line, "falls"), (dots, "dot"), (forest, "rows")):
        root = ElementTree.fromstring(str(drawing))
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"] == label


def test_styles_differ_in_shape_not_only_in_colour():
    shapes = {str(charts.marker(style, 0, 0)) for style in range(charts.STYLES)}
    assert len(shapes) == charts.STYLES
    assert len(set(charts.DASHES)) == charts.SHAPES == charts.STYLES / 2
    hollow = {style for style in range(charts.STYLES) if "hollow" in str(charts.marker(style, 0, 0))}
    assert hollow == set(range(charts.SHAPES, charts.STYLES))
