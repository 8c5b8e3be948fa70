"""A report as one web page that needs no network: a section for each experiment, with its table and its pictures."""

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from fedddp.reports import Report
from fedddp.reports.drawn import key, pictures
from fedddp.reports.numbers import Number, more_is_better
from fedddp.reports.paired import Paired, compare, holm
from fedddp.reports.plate import numbers, scrolling
from fedddp.reports.rows import is_seed
from fedddp.reports.runs import Record
from fedddp.reports.sections import Section
from fedddp.reports.table import Column, Value, written

MOST_COMPARED = 30  # rows in a table of differences


def page(report: Report, title: str) -> str:
    """The whole page."""
    style, script = (files("fedddp.reports").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    parts = [*_head(report, title)]
    for place, section in enumerate(report.sections):
        parts += [f'<section id="part-{place}">', *_section(section, len(report.sections) > 1), "</section>"]
    body = "\n".join([*parts, *_runs(report)])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n'
        f"<body>\n{body}\n<script>{script}</script></body></html>"
    )


def _head(report: Report, title: str) -> Iterator[str]:
    runs = [run for row in report.rows for run in row.runs]
    yield f"<h1>{escape(title)}</h1>"
    yield (
        f"<p>{len(runs)} finished runs in {len(report.rows)} settings. Every number is the mean of the last three "
        "rounds, then mean ± sample deviation over seeds. The best of each column is marked within its experiment.</p>"
    )
    if len(report.sections) > 1:
        links = (f'<a href="#part-{i}">{escape(section.title)}</a>' for i, section in enumerate(report.sections))
        yield f"<nav>{''.join(links)}</nav>"
    yield from _notes(report.notes)


def _notes(notes: list[str]) -> Iterator[str]:
    if notes:
        lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
        yield f"<details{' open' if len(notes) < 4 else ''}><summary>Notes</summary>{lines}</details>"


def _section(section: Section, several: bool) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>"
    if several:
        yield f"<p>{len(section.runs)} runs in {len(section.rows)} settings.</p>"
    yield from _table(section)
    yield from _differences(section)
    yield from pictures(section)
    yield from _shared(section)


def _table(section: Section) -> Iterator[str]:
    table = section.table
    heads = "".join(f"<th{_kind(column)}>{escape(column.title)}</th>" for column in table.columns)
    winners = [_winner(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]
    body = []
    for place, row in enumerate(table.rows):
        cells = zip(table.columns, row, winners, strict=True)
        own = f' <span class="own">{escape(section.own[place])}</span>' if place in section.own else ""
        first = (key(place), own)
        inner = "".join(_cell(c, v, best, first if i == 0 else ("", "")) for i, (c, v, best) in enumerate(cells))
        body.append(f'<tr data-row="{place}">{inner}</tr>')
    yield scrolling(f"{section.title}-table", heads, body, section.data)
    yield from _notes(table.notes)


def _cell(column: Column, value: Value, winner: float | None, first: tuple[str, str]) -> str:
    plain = value.mean if isinstance(value, Number) else value
    kind = ' class="best"' if winner is not None and plain == winner else _kind(column)
    text = "" if plain is None else escape(str(plain))
    return f'<td{kind} data-value="{text}">{first[0]}{escape(written(column, value))}{first[1]}</td>'


def _kind(column: Column) -> str:
    return ' class="word"' if column.words else ""


def _winner(column: Column, values: list[Value]) -> float | None:
    """The best mean of a column that has one and more than one row."""
    means = [value.mean for value in values if isinstance(value, Number)]
    if not column.best or len(means) < 2:
        return None
    return max(means) if column.best > 0 else min(means)


def _differences(section: Section) -> Iterator[str]:
    """Every row against the best, paired by seed, in the first metric."""
    metric, best = section.metrics[0], section.rows[0]
    rows = list(enumerate(section.rows))[1 : MOST_COMPARED + 1]
    if not rows:
        return
    found = [compare(row, best, metric) for _, row in rows]
    yield f"<h3>Differences in {escape(metric)} to {escape(best.name)}</h3>"
    if max(one.count for one in found) < 2:
        yield "<p>Nothing can be said: no row has two seeds that the best one has, too.</p>"
        return
    corrected = holm([one.p for one in found])
    yield (
        f"<p>{'Below' if more_is_better(metric) else 'Above'} zero is worse. Runs are paired by their seeds. The 95 % "
        "interval and p (t) are the paired t test's; p (signs) is the exact sign-flip permutation test's; the last p "
        "is corrected after Holm for the number of rows, by the signs from six seeds on, else by t. That the best was "
        "chosen by the same numbers is not corrected for.</p>"
    )
    names = ("setting", "difference", "95 % interval", "p (t)", "p (signs)", "p, Holm", "seeds", "")
    heads = "".join(f"<th{' class=word' if i in (0, 7) else ''}>{name}</th>" for i, name in enumerate(names))
    body, data = [], []
    for (place, row), one, p in zip(rows, found, corrected, strict=True):
        cells = [row.name, *_said(one, p), str(one.count), one.limit]
        values = [row.name, one.mean, one.mean, one.p_t, one.p_exact, p, one.count, one.limit]
        marks = [key(place), *[""] * (len(cells) - 1)]
        inner = "".join(
            f'<td{" class=word" * (i in (0, 7))} data-value="{escape(_known(value))}">{mark}{escape(text)}</td>'
            for i, (text, value, mark) in enumerate(zip(cells, values, marks, strict=True))
        )
        body.append(f'<tr data-row="{place}">{inner}</tr>')
        data.append([row.name, one.count, one.mean, one.low, one.high, one.p_t, one.p_exact, p])
    head = ["setting", "seeds", "difference", "low", "high", "p_t", "p_signs", "p_holm"]
    table = scrolling(f"{section.title}-differences-{metric}", heads, body, "")
    yield table.replace('<pre class="numbers" hidden></pre>', numbers(head, data))


def _said(one: Paired, corrected: float) -> list[str]:
    interval = f"{one.low:+.4f} to {one.high:+.4f}" if one.low == one.low else "–"
    return [f"{one.mean:+.4f}" if one.count else "–", interval, *(_p(p) for p in (one.p_t, one.p_exact, corrected))]


def _p(value: float) -> str:
    return "–" if value != value else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _known(value: Any) -> str:
    return "" if value != value else str(value)


def _shared(section: Section) -> Iterator[str]:
    """What all runs of the experiment share."""
    runs = section.runs
    shared = {k: v for k, v in runs[0].config.items() if all(run.config.get(k) == v for run in runs) and not is_seed(k)}
    words = " ".join(f"<code>{escape(name)}={escape(_short(value))}</code>" for name, value in shared.items())
    yield f"<details><summary>Settings that all these runs share</summary><p>{words}</p></details>"


def _runs(report: Report) -> Iterator[str]:
    """Where each run lies."""
    runs = [run for row in report.rows for run in row.runs]
    cells = ("".join(f'<td class="word">{escape(word)}</td>' for word in _provenance(run)) for run in runs)
    rows = "".join(f"<tr>{inner}</tr>" for inner in cells)
    yield f'<details><summary>The runs</summary><div class="wide"><table><tbody>{rows}</tbody></table></div></details>'


def _provenance(run: Record) -> list[str]:
    return [str(run.folder), f"seed {run.config.get('seed')}", f"checksum {run.summary.get('checksum')}"]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
