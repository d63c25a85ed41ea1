"""What a synthesis network writes: where it stops, and the pictures of it."""

import io
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from layernorm_lab.errors import RunError
from layernorm_lab.experiments.handwriting import pen
from layernorm_lab.experiments.handwriting.network import Synthesis
from layernorm_lab.experiments.handwriting.samples import TextOptions, write_text


def test_writing_stops_when_the_window_has_read_the_text():
    torch.manual_seed(0)
    model = Synthesis(None, units=6, mixtures=2, pace=0.5).eval()  # half a character a point
    points, finished = write_text(model, TextOptions(text="hello there"))
    assert finished
    assert 11 < len(points) < 60
    again, _ = write_text(model, TextOptions(text="hello there"))
    assert np.array_equal(points, again), "one seed writes one thing"
    other, _ = write_text(model, TextOptions(text="hello there", seed=1))
    assert len(points) != len(other) or not np.array_equal(points, other)
    points, finished = write_text(model, TextOptions(text="hello there", points=7))
    assert (len(points), finished) == (7, False)


def test_the_last_stroke_is_whole():
    """Of these seeds two are in the middle of a stroke when the window has read the text."""
    torch.manual_seed(0)
    model = Synthesis(None, units=6, mixtures=2, pace=0.5).eval()
    for seed in range(4):
        points, finished = write_text(model, TextOptions(text="hello there", seed=seed))
        assert finished
        assert points[-1, 2] == 1


def test_a_window_that_runs_past_the_text_at_once_stops():
    """Its weights are all 0 in float32 then, the one of the place after the text among them."""
    torch.manual_seed(0)
    model = Synthesis(None, units=6, mixtures=2, pace=50.0).eval()
    points, finished = write_text(model, TextOptions(text="hi"))
    assert (len(points), finished) == (0, True)


def test_a_diverged_network_is_named():
    model = Synthesis(None, units=6, mixtures=2).eval()
    torch.nn.init.constant_(model.output.bias, math.nan)
    with pytest.raises(RunError, match="its training has diverged"):
        write_text(model, TextOptions(text="hi"))


def test_pictures_are_whole():
    drawn = pen.strokes(np.array([[1, 0, 0], [0, 1, 1], [2, 0, 1], [1, 1, 0]]), np.zeros(2), np.array([10.0, 20.0]))
    assert [stroke.tolist() for stroke in drawn] == [[[10, 0], [10, 20]], [[30, 20]], [[40, 40]]]
    for content in (pen.svg(drawn, "a < b"), pen.moving_svg(drawn, "a < b")):
        root = ElementTree.fromstring(content)
        assert root[0].text == "a < b"
        assert len(root[1]) == 3
        assert b"script" not in content
    assert pen.png(drawn, 400.0).startswith(b"\x89PNG")
    assert pen.png([], 400.0).startswith(b"\x89PNG"), "nothing written is an empty picture"


@pytest.mark.parametrize("corner", [(900.0, 200.0), (300.0, 3000.0), (12000.0, 40.0)])
def test_drawings_share_one_scale(corner):
    """Wide, high, and too long for the usual scale: a unit has as many pixels in both directions."""
    drawn = [np.array([[0.0, 0.0], corner])]
    for inch in (pen.scale(drawn), 1000.0):
        with Image.open(io.BytesIO(pen.png(drawn, inch))) as image:
            left, top, right, bottom = image.convert("L").point(lambda level: 255 * (level < 128)).getbbox()
        # the pen is 12 units wide; a pixel at either end is grey
        for pixels, units in ((right - left, corner[0]), (bottom - top, corner[1])):
            assert abs(pixels - (units + 12) * 160 / inch) <= 2.5
    assert pen.scale(drawn) == (400.0 if corner[0] < 9000 else (12000 + 120) / 25)
