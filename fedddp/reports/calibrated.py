"""How far final models can be trusted, where runs were calibrated: sets, temperature, uncertainty, when to answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

import numpy as np

from fedddp.records import pictures as drawing
from fedddp.records.pictures import Curve
from fedddp.reports.index import Array
from fedddp.reports.plate import csv_text, plate, scrolling
from fedddp.reports.rows import Row
from fedddp.reports.sections import Section

ROWS = 12  # most settings in the table and the picture
KINDS = {"point": "", "averaged": ", averaged"}  # and what they add to a row's name
NOTHING = 1e-9  # of uncertainty: single models do not disagree with themselves
SHARES = np.linspace(0.05, 1.0, 20)  # of the answers, at which seeds are averaged

Judged = Mapping[str, Any]  # what calibration.json says of one kind of prediction


def calibrated(section: Section) -> Iterator[str]:
    rows = {place: row for place, row in enumerate(section.rows[:ROWS]) if _judged(row, "point")}
    if not rows:
        return
    yield (
        "<h3>Calibrated answers</h3><p>On the part of the test set that did not calibrate, in the mean over seeds. "
        "Sets hold the true class with a promised coverage. The entropy of a prediction has an aleatoric part, of "
        "single predictions, and an epistemic one, their disagreement over samples of a posterior; the AUROC says how "
        "well the entropy and its epistemic part tell strange inputs (evaluation.ood). The picture: how often the "
        "surest answers are right, averaged where there is a posterior.</p>"
    )
    yield _table(f"{section.title}-calibrated", rows.values())
    answers = {place: _answers(_judged(row, "averaged") or _judged(row, "point")) for place, row in rows.items()}
    curves = [Curve(place, SHARES, accuracy, np.zeros(len(SHARES))) for place, accuracy in answers.items()]
    figure = drawing.draw_curves("accuracy of the surest answers", curves, "share answered", " ")
    data = [
        [rows[place].name, f"{share:.2f}", f"{value:.6g}"]
        for place, accuracy in answers.items()
        for share, value in zip(SHARES, accuracy, strict=True)
    ]
    yield '<div class="charts">'
    yield plate(f"{section.title}-selective", figure, ["setting", "answered", "accuracy"], data)
    yield "</div>"


def _judged(row: Row, kind: str) -> list[Judged]:
    """What each seed found of its point or of its posterior; nothing where one of them has none."""
    found = [run.calibration.get("kinds", {}).get(kind) for run in row.runs]
    return found if all(found) else []


def _table(name: str, rows: Iterable[Row]) -> str:
    found = {row.name + more: _judged(row, kind) for row in rows for kind, more in KINDS.items()}
    means = {name: _means(seeds) for name, seeds in found.items() if seeds}
    columns = list(dict.fromkeys(column for own in means.values() for column in own))
    lines = [
        [name, *(f"{own[column]:.3f}" if column in own else "" for column in columns)] for name, own in means.items()
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("setting", *columns))
    body = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines]
    return scrolling(name, head, body, csv_text(["setting", *columns], lines))


def _means(seeds: Sequence[Judged]) -> dict[str, float]:
    each = [_columns(one) for one in seeds]
    return {name: fmean(columns[name] for columns in each) for name in each[0]}


def _columns(one: Judged) -> dict[str, float]:
    """The numbers of one run; its sets at the level in the middle."""
    level = sorted(one["coverage"])[len(one["coverage"]) // 2]
    sets = one["coverage"][level]
    least = min(share for share in sets["clients"] if share is not None)
    found = {f"coverage {level}": sets["reached"], "least client": least, "classes in a set": sets["size"]}
    found["temperature"] = one["temperature"]
    for metric in ("nll", "ece"):
        found |= {metric: one["plain"][metric], f"{metric}, tempered": one["tempered"][metric]}
    found |= {name: one[name] for name in ("aleatoric", "epistemic")}
    told = {name: value for name, value in one.get("ood_auroc", {}).items() if one[name] > NOTHING}
    return found | {f"AUROC of {name}": value for name, value in told.items()}


def _answers(seeds: Sequence[Judged]) -> Array:
    """How often the surest share of the answers is right, in the mean over seeds."""
    each = [(one["selective"]["answered"][::-1], one["selective"]["accuracy"][::-1]) for one in seeds]
    mean: Array = np.mean([np.interp(SHARES, *pair) for pair in each], axis=0)
    return mean
