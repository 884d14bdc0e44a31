"""Drawings of a Gradient: their content, and that they are well-formed."""

import re
from xml.etree import ElementTree

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchlayers.graph import differentiate
from torchlayers.graph.draw import COLOURS
from torchlayers.graph.draw_boxes import BACKWARD, CAPTURED, FORWARD, boxes_of
from torchlayers.graph.draw_layout import layers_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def gradient():
    def function(x, w):
        return (x @ w).tanh().sum(), x.max(0)[0]

    return differentiate(make_fx(function)(torch.randn(2, 3), torch.randn(3, 3)))


def test_the_boxes_say_what_is_forward_captured_and_backward(gradient):
    roles = {(box.label, box.role) for box in boxes_of(gradient)}
    assert {
        ("mm", FORWARD),
        ("tanh", CAPTURED),
        ("input w_1", CAPTURED),
        ("output 1", FORWARD),
        ("cotangent of output 0", BACKWARD),
        ("tanh_backward", BACKWARD),
        ("gradient of input 1", BACKWARD),
    } <= roles


def test_the_lines_are_the_values(gradient):
    boxes = {box.name: box for box in boxes_of(gradient)}
    sources = {box.label: {boxes[source].label for source in box.sources} for box in boxes.values()}
    assert sources["tanh"] == {"mm"}
    assert sources["tanh_backward"] == {"expand", "tanh"}  # captured, across graphs
    assert sources["output 1"] == {"max"}  # one of two results


def test_every_box_is_below_its_sources(gradient):
    boxes = boxes_of(gradient)
    layers = layers_of(boxes)
    depth = {box.name: i for i, layer in enumerate(layers) for box in layer}
    assert sorted(depth) == sorted(box.name for box in boxes)
    assert all(depth[source] < depth[box.name] for box in boxes for source in box.sources)


def test_the_svg_has_a_box_and_a_colour_for_everything(gradient):
    root = ElementTree.fromstring(gradient.to_svg())
    labels = [text.text for text in root.iter(f"{SVG}text")]
    boxes = boxes_of(gradient)
    legend = ["forward", "captured for backward", "backward"]
    assert sorted(labels) == sorted([box.label for box in boxes] + legend)
    lines = list(root.iter(f"{SVG}path"))
    assert len(lines) == sum(len(box.sources) for box in boxes)
    fills = [rect.get("fill") for rect in root.iter(f"{SVG}rect")][1:]
    assert set(fills) == set(COLOURS.values())


def test_boxes_stay_inside_and_apart(gradient):
    root = ElementTree.fromstring(gradient.to_svg())
    width, height = (float(root.get(name)) for name in ("width", "height"))
    found = [
        tuple(float(rect.get(name)) for name in ("x", "y", "width", "height"))
        for rect in list(root.iter(f"{SVG}rect"))[1:]
    ]
    for x, y, w, h in found:
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for i, (x, y, w, h) in enumerate(found):
        for other_x, other_y, other_w, other_h in found[:i]:
            apart_x = x + w <= other_x or other_x + other_w <= x
            assert apart_x or y + h <= other_y or other_y + other_h <= y


def test_the_dot_names_every_box_once(gradient):
    dot = gradient.to_dot()
    boxes = boxes_of(gradient)
    declared = re.findall(r'^  "([^"]+)" \[label="([^"]+)", fillcolor="(#\w+)"\];$', dot, re.M)
    assert declared == [(box.name, box.label, COLOURS[box.role]) for box in boxes]
    assert dot.count(" -> ") == sum(len(box.sources) for box in boxes)
