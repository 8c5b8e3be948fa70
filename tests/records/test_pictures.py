"""Labels of the report's pictures: none lies on another, and none leaves its picture."""

from itertools import combinations
from math import radians, sin

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedddp.records import clients_picture, pictures
from fedddp.records.pictures import Curve

RANDOM = np.random.default_rng(0)
LONG = [f"bayes_admm alpha=0.3 local.lr={place / 100} data.fraction=0.25" for place in range(1, 13)]
HOSPITALS = [f"hospital of the town number {place}" for place in range(20)]
CLASSES = {
    "digits": [],
    "clothes": ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"],
    "letters": [chr(ord("a") + place) for place in range(26)],
    "many": [f"a class with a long name {place}" for place in range(100)],
}


def curve(values: list[float], across: float) -> Figure:
    points = np.linspace(across / 8, across, len(values))
    line = Curve(0, points, np.array(values), np.zeros(len(values)))
    return pictures.draw_curves("accuracy", [line], "bytes sent", "B")


def confusion(names: list[str]) -> Figure:
    counts = RANDOM.integers(0, 50, (len(names) or 10,) * 2)
    return pictures.draw_confusion({LONG[0]: {"counts": counts, "names": names}})


def split(clients: int, classes: int, who: list[str], names: list[str]) -> Figure:
    counts = RANDOM.integers(0, 900, (clients, classes))
    found = {"counts": counts, "sizes": counts.sum(1), "names": names, "clients": who}
    return pictures.draw_split(found, "heart split by natural, seed 0")


def bins() -> dict[str, list[float]]:
    return {"count": [5.0] * 10, "confidence": [5 * (p + 0.5) / 10 for p in range(10)], "right": [2.0] * 10}


def clients(low: float, high: float) -> Figure:
    return pictures.draw_scatter("accuracy", {"fedavg": (np.linspace(low, high, 30), RANDOM.random(30))})


DRAWN = {
    "curve of small numbers": lambda: curve([0.00012, 0.00013, 0.00019], 950),
    "curve of large numbers": lambda: curve([1.2e6, 1.3e6, 9.9e6], 7.4e11),
    "curve that falls": lambda: curve([-1000.0, -2000.0, -2001.0], 3e4),
    "clients of about one size": lambda: clients(310, 390),
    "clients of a few hundred": lambda: clients(120, 900),
    "clients of some hundreds": lambda: clients(15, 700),
    "clients, three kinds of models": lambda: clients_picture.draw(
        {kind: RANDOM.random(30) for kind in ("accuracy", "averaged_accuracy", "server_accuracy")}, list(range(90, 120))
    ),
    "clients of all sizes": lambda: clients(2, 80000),
    "histogram": lambda: pictures.draw_histogram("accuracy", {"fedavg": RANDOM.random(30) / 1000}),
    "dots of twelve settings": lambda: pictures.draw_spread("nll", {name: RANDOM.random(9) for name in LONG}),
    "dots of two settings": lambda: pictures.draw_spread("nll", {n: RANDOM.random(9) for n in ("pvi", "bayes_admm")}),
    "reliability": lambda: pictures.draw_reliability({name: bins() for name in LONG[:6]}),
    "split of hospitals": lambda: split(20, 2, HOSPITALS, ["healthy", "diseased"]),
    "split of four": lambda: split(4, 10, ["cleveland", "hungarian", "switzerland", "va"], CLASSES["clothes"]),
    "split of 100": lambda: split(100, 10, [], CLASSES["clothes"]),
    "split of 1000": lambda: split(1000, 62, [], []),
    **{f"confusion of {name}": lambda names=names: confusion(names) for name, names in CLASSES.items()},
}


def labels(axis) -> list:
    """Of the ticks that are shown, major and minor."""
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    low, high = sorted(axis.get_view_interval())
    shown = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_visible()]
    return [text for text in shown if text.get_text()]


def apart(one, other, renderer) -> bool:
    """Upright and level texts by their boxes; slanted ones by the distance of their lines."""
    a, b = (text.get_window_extent(renderer) for text in (one, other))
    slant = one.get_rotation() % 90
    if slant:
        height = one.get_size() / 72 * one.figure.dpi
        return abs(_place(one) - _place(other)) * sin(radians(slant)) >= height
    return not a.padded(-0.5).overlaps(b.padded(-0.5))


def _place(text) -> float:
    return float(text.get_transform().transform(text.get_position())[0])


@pytest.mark.parametrize("name", DRAWN)
def test_labels_do_not_overlap(name):
    figure = DRAWN[name]()
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        for axis in (axes.xaxis, axes.yaxis):
            texts = labels(axis)
            wrong = [(a.get_text(), b.get_text()) for a, b in combinations(texts, 2) if not apart(a, b, renderer)]
            assert not wrong
        level = [a.get_window_extent(renderer) for a in labels(axes.xaxis)]
        upright = [a.get_window_extent(renderer) for a in labels(axes.yaxis)]
        for box in [*level, *upright, axes.title.get_window_extent(renderer)]:
            assert box.x0 > -2
            assert box.y0 > -2
            assert box.x1 < figure.bbox.width + 2
            assert box.y1 < figure.bbox.height + 2
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.title.get_text()]
    assert not [1 for a, b in combinations(titles, 2) if a.overlaps(b)]
