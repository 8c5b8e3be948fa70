"""A report as one web page that needs no network: table, learning curves, splits, reliability."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fedddp.reports import Report
from fedddp.reports.numbers import Number, curve
from fedddp.reports.rows import Row, is_seed
from fedddp.reports.runs import Record
from fedddp.reports.table import Column, Value, written
from fedddp.runs.pictures import Curve, colour, dash, draw_curves, draw_reliability, draw_split, svg

RELIABILITY = {"reliability": "", "averaged_reliability": ", averaged"}  # kinds, and what they add to a row's name
PANELS = 12  # most reliability diagrams
SPLITS = 4  # most heat maps
DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}  # matplotlib's and the browser's

STYLE = """
:root { color: #222a33; background: #fff; font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
body { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 17px; margin: 36px 0 8px } p { margin: 4px 0; color: #5b6672 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }
th, td { padding: 6px 12px; border-bottom: 1px solid #e8ebee; text-align: right; white-space: nowrap }
th { color: #5b6672; font-weight: 600; cursor: pointer; user-select: none; border-bottom-color: #c6cdd4 }
th:hover { color: #222a33 }
th[aria-sort=ascending]::after { content: " ▲" } th[aria-sort=descending]::after { content: " ▼" }
.word { text-align: left } .best { font-weight: 700 }
.key { display: inline-block; width: 18px; height: 0; border-top: 3px solid; vertical-align: middle; margin-right: 8px }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13.5px; margin: 6px 0 10px }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(350px, 1fr)); gap: 14px }
.splits { display: grid; grid-template-columns: repeat(auto-fill, minmax(500px, 1fr)); gap: 14px }
.charts svg, .splits svg { width: 100% }
svg { max-width: 100%; height: auto }
svg text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif !important }
summary { cursor: pointer; color: #5b6672 }
details { margin-top: 14px; font-size: 13px } code { font-size: 12.5px }
[data-row] { cursor: default } tr[data-row]:hover { background: #f5f7f9 }
.dim { opacity: .12 } [id^=row-] { transition: opacity .1s }
"""
SCRIPT = """
for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], place = head.cellIndex, up = head.ariaSort === "descending";
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.ariaSort = up ? "ascending" : "descending";
  const key = row => { const v = row.cells[place].dataset.value; return v === "" || isNaN(v) ? v : Number(v) };
  const order = (a, b) => a === b ? 0 : b === "" ? -1 : a === "" ? 1 : (a < b ? -1 : 1) * (up ? 1 : -1);
  [...body.rows].sort((a, b) => order(key(a), key(b))).forEach(row => body.append(row));
};
const lines = [...document.querySelectorAll("[id^=row-]")];
for (const part of document.querySelectorAll("[data-row]")) {
  const mine = new RegExp(`^row-${part.dataset.row}(-band)?$`);
  part.onmouseenter = () => lines.forEach(line => line.classList.toggle("dim", !mine.test(line.id)));
  part.onmouseleave = () => lines.forEach(line => line.classList.remove("dim"));
}
"""


def page(report: Report, title: str) -> str:
    """The whole page."""
    parts = [*_head(report, title), *_table(report), *_curves(report), *_splits(report), *_reliability(report)]
    body = "\n".join([*parts, *_settings(report)])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n<script>{SCRIPT}</script></body></html>"
    )


def _head(report: Report, title: str) -> Iterator[str]:
    runs = [run for row in report.rows for run in row.runs]
    yield f"<h1>{escape(title)}</h1>"
    yield (
        f"<p>{len(runs)} finished runs in {len(report.rows)} settings. Every number is the mean of the last three "
        "rounds, then mean ± sample deviation over seeds.</p>"
    )


def _table(report: Report) -> Iterator[str]:
    table = report.table
    heads = "".join(f"<th{_kind(column)}>{escape(column.title)}</th>" for column in table.columns)
    yield f'<div class="wide"><table style="margin-top:16px"><thead><tr>{heads}</tr></thead><tbody>'
    winners = [_winner(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]
    for place, row in enumerate(table.rows):
        cells = zip(table.columns, row, winners, strict=True)
        inner = "".join(_cell(c, v, best, _key(place) if i == 0 else "") for i, (c, v, best) in enumerate(cells))
        yield f'<tr data-row="{place}">{inner}</tr>'
    yield "</tbody></table></div>"
    if table.notes:
        notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
        yield f"<details{' open' if len(table.notes) < 4 else ''}><summary>Notes</summary>{notes}</details>"


def _cell(column: Column, value: Value, winner: float | None, key: str) -> str:
    plain = value.mean if isinstance(value, Number) else value
    kind = ' class="best"' if winner is not None and plain == winner else _kind(column)
    text = "" if plain is None else escape(str(plain))
    return f'<td{kind} data-value="{text}">{key}{escape(written(column, value))}</td>'


def _kind(column: Column) -> str:
    return ' class="word"' if column.words else ""


def _winner(column: Column, values: list[Value]) -> float | None:
    """The best mean of a column that has one and more than one row."""
    means = [value.mean for value in values if isinstance(value, Number)]
    if not column.best or len(means) < 2:
        return None
    return max(means) if column.best > 0 else min(means)


def _key(place: int) -> str:
    """The row's line in the charts, in small."""
    return f'<span class="key" style="border-top-style:{DASHES[dash(place)]};border-color:{colour(place)}"></span>'


def _curves(report: Report) -> Iterator[str]:
    yield "<h2>Learning curves</h2><p>Mean over seeds; the band is one deviation.</p>"
    names = (f'<span data-row="{i}">{_key(i)}{escape(row.name)}</span>' for i, row in enumerate(report.rows))
    yield f'<div class="legend">{"".join(names)}</div><div class="charts">'
    for metric in dict.fromkeys([*report.metrics, "train_loss"]):
        curves = [Curve(i, *curve(row.runs, metric)) for i, row in enumerate(report.rows)]
        curves = [c for c in curves if len(c.rounds)]
        if curves:
            yield svg(draw_curves(metric, curves))
    yield "</div>"


def _splits(report: Report) -> Iterator[str]:
    """One heat map for each different split."""
    found: dict[str, list[Record]] = {}
    for row in report.rows:
        for run in row.runs:
            if "split" in run.pictures:
                found.setdefault(str(run.summary.get("split_hash")), []).append(run)
    if found:
        yield "<h2>Who has what</h2><p>Training examples of each class at each client.</p>"
    drawn = [svg(draw_split(runs[0].pictures["split"], _split_name(runs))) for runs in list(found.values())[:SPLITS]]
    yield f'<div class="splits">{"".join(drawn)}</div>'
    if len(found) > SPLITS:
        yield f"<p>{len(found) - SPLITS} more splits are not drawn.</p>"


def _split_name(runs: list[Record]) -> str:
    data = ", ".join(sorted({f"{run.config.get('data.name')} split by {run.config.get('split.name')}" for run in runs}))
    seeds = sorted({run.config.get("split.seed") or run.config.get("seed", 0) for run in runs})
    return f"{data}, seed {', '.join(map(str, seeds))}"


def _reliability(report: Report) -> Iterator[str]:
    """The bins of all seeds of a row together: of its point or ensemble and, where it has one, of its posterior."""
    panels = {}
    for row in report.rows:
        for kind, name in RELIABILITY.items():
            if all(kind in run.pictures for run in row.runs):
                panels[row.name + name] = _pooled(row, kind)
    if panels:
        yield (
            "<h2>Reliability</h2><p>How often the final model is right when it is so sure, all seeds together. A dot's "
            "area is its share of the test examples; red is the gap to a calibrated model, the dashed line.</p>"
        )
        yield svg(draw_reliability(dict(list(panels.items())[:PANELS])))
    if len(panels) > PANELS:
        yield f"<p>The {PANELS} best of {len(panels)} are drawn.</p>"


def _pooled(row: Row, kind: str) -> dict[str, list[float]]:
    bins = [run.pictures[kind] for run in row.runs]
    return {name: [sum(values) for values in zip(*(b[name] for b in bins), strict=True)] for name in bins[0]}


def _settings(report: Report) -> Iterator[str]:
    """What all runs share, and where each lies."""
    runs = [run for row in report.rows for run in row.runs]
    shared = {k: v for k, v in runs[0].config.items() if all(run.config.get(k) == v for run in runs) and not is_seed(k)}
    words = " ".join(f"<code>{escape(key)}={escape(_short(value))}</code>" for key, value in shared.items())
    yield f"<details><summary>Settings that all runs share</summary><p>{words}</p></details>"
    cells = ("".join(f'<td class="word">{escape(word)}</td>' for word in _provenance(run)) for run in runs)
    rows = "".join(f"<tr>{inner}</tr>" for inner in cells)
    yield f'<details><summary>The runs</summary><div class="wide"><table><tbody>{rows}</tbody></table></div></details>'


def _provenance(run: Record) -> list[str]:
    return [str(run.folder), f"seed {run.config.get('seed')}", f"checksum {run.summary.get('checksum')}"]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
