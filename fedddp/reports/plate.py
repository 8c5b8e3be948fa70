"""A picture on the page: the drawing, to be had as SVG, and the numbers in it, to be had as CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

from fedddp.records.pictures import svg

COLOURS = {  # of axes and texts, which the page's light and dark styles set
    "#222a33": "ink",
    "#2b3a4a": "ink",
    "#46505c": "label",
    "#8a94a0": "edge",
    "#e8ebee": "grid",
    "#e4e9ee": "grid",
}


def plate(name: str, figure: Figure, head: Sequence[str], rows: Iterable[Sequence[Any]], wide: bool = False) -> str:
    """The figure as an element; `name` is that of the files, `head` and `rows` are its numbers."""
    width = " wide-plate" if wide else ""
    return (
        f'<figure class="plate{width}" data-name="{escape(_file(name))}">{themed(svg(figure))}{saves("svg", "csv")}'
        f"{numbers(head, rows)}</figure>"
    )


def scrolling(name: str, heads: str, body: Sequence[str], data: str) -> str:
    """A table that scrolls within the page, and says so where it has to."""
    return (
        f'<div data-name="{escape(name.replace(" ", "-"))}"><div class="wide"><table style="margin-top:14px"><thead>'
        f"<tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        '<p class="more">The table is wider than the page: scroll it sideways for more columns.</p>'
        f'{saves("csv")}<pre class="numbers" hidden>{escape(data)}</pre></div>'
    )


def saves(*kinds: str) -> str:
    """The buttons."""
    buttons = "".join(f'<button type="button" data-save="{kind}">{kind.upper()}</button>' for kind in kinds)
    return f'<div class="save">{buttons}</div>'


def numbers(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """What the CSV button saves, on the page but not shown."""
    return f'<pre class="numbers" hidden>{escape(csv_text(head, rows))}</pre>'


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()


def themed(drawing: str) -> str:
    """Colours of axes and texts become the page's; saved on its own, the drawing has its own again."""
    for colour, name in COLOURS.items():
        drawing = drawing.replace(colour, f"var(--{name}, {colour})")
    return drawing


def _file(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")
