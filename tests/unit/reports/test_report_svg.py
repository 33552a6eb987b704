from xml.etree import ElementTree

from opct.reports import svg


def test_ticks_are_round_and_cover_the_range():
    """0.03 to 0.47 in about five steps of 0.1: from 0 to 0.5."""
    assert svg.ticks(0.03, 0.47) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_ticks_of_a_single_value_do_not_divide_by_zero():
    assert svg.ticks(2.0, 2.0)[0] <= 2.0 < svg.ticks(2.0, 2.0)[-1]


def test_ticks_of_counts_are_whole_numbers():
    """Not at 0.5 and 1.5; a range whose steps are whole anyway is as without."""
    assert svg.ticks(0.0, 2.0) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert svg.ticks(0.0, 2.0, whole=True) == [0.0, 1.0, 2.0]
    assert svg.ticks(0.0, 40.0, whole=True) == svg.ticks(0.0, 40.0) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_frame_maps_the_ends_of_its_ticks_to_its_edges():
    frame = svg.Frame(10, 20, 110, 220, x_ticks=(0.0, 1.0, 2.0), y_ticks=(0.0, 4.0))
    assert (frame.x(0), frame.x(1), frame.x(2)) == (10, 60, 110)
    assert (frame.y(0), frame.y(4)) == (220, 20)


def test_text_in_a_chart_is_escaped():
    group = svg.BarGroup('<script>"x"</script>', (svg.Bar("a<b", 0, 0.5, 0.4, 0.6, "50% & more"),))
    drawing = str(svg.interval_bars([group], label='say "<hi>"'))
    assert "<script>" not in drawing
    assert "&lt;script&gt;" in drawing
    assert ElementTree.fromstring(drawing).attrib["aria-label"] == 'say "<hi>"'


def test_every_chart_is_well_formed_and_named():
    line = svg.line_chart([svg.Series("r", 2, ((0, 0.5), (10, 0.1)))], x_title="x", y_title="y", label="falls")
    dots = svg.scatter([svg.Point("r", 1, 0.5, 0.1, None, (0.05, 0.2))], x_title="x", y_title="y", label="dot")
    forest = svg.forest([svg.BarGroup("m", (svg.Bar("r", 1, -0.1, None, None, "-10"),))], label="rows")
    for drawing, label in ((line, "falls"), (dots, "dot"), (forest, "rows")):
        root = ElementTree.fromstring(str(drawing))
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"] == label


def test_a_flat_series_at_zero_is_drawn():
    drawing = str(svg.line_chart([svg.Series("r", 0, ((3, 0.0),))], x_title="x", y_title="y", label="flat"))
    assert "nan" not in drawing.lower()


def test_styles_differ_in_shape_not_only_in_colour():
    shapes = {str(svg.marker(style, 0, 0)) for style in range(svg.STYLES)}
    assert len(shapes) == svg.STYLES
    assert len(set(svg.DASHES)) == svg.SHAPES == svg.STYLES / 2
    hollow = {style for style in range(svg.STYLES) if "hollow" in str(svg.marker(style, 0, 0))}
    assert hollow == set(range(svg.SHAPES, svg.STYLES))


def test_a_long_heading_is_wrapped_and_moves_what_is_below_it():
    """Two rows of heading: the drawing is one row of 14 taller, and the note stays on the first."""
    bars = (svg.Bar("r", 0, 0.5, 0.4, 0.6, "50%"),)
    short, long = (
        svg.BarGroup("name", bars, "n = 3"),
        svg.BarGroup("a name of many words that takes two rows", bars, "n = 3"),
    )
    assert (len(short.heading), len(long.heading)) == (1, 2)
    heights = [
        float(ElementTree.fromstring(str(svg.interval_bars([g], label="x"))).attrib["viewBox"].split()[3])
        for g in (short, long)
    ]
    assert heights[1] - heights[0] == 14
    [note] = [
        t for t in ElementTree.fromstring(str(svg.interval_bars([long], label="x"))).iter("text") if t.text == "n = 3"
    ]
    assert (note.attrib["y"], note.attrib["text-anchor"]) == ("14", "end")


def test_two_drawings_can_have_one_scale():
    bar = svg.Bar("r", 0, 0.1, 0.05, 0.2, "10%")
    ends = [
        [
            t.text
            for t in ElementTree.fromstring(
                str(svg.interval_bars([svg.BarGroup("g", (bar,))], label="x", top=top))
            ).iter("text")
            if t.attrib["class"] == "tick"
        ][-1]
        for top in (None, 80.0)
    ]
    assert ends == ["20%", "80%"]
