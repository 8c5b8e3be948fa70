"""The page: whole, without a network, and alive in a browser."""

import json
import re
import shutil
import subprocess

import pytest

from fedddp import reports
from fedddp.reports.page import page
from tests.reports.conftest import write_run

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000"),
]


@pytest.fixture(scope="module")
def html(sweep):
    return page(reports.make([sweep], at=[3], target=0.5), "a <sweep>")


def browse(folder, html, *words):
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    (folder / "page.html").write_text(html)
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'browser'}", *words, (folder / "page.html").as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def values_of(dom):
    """What each cell of the main table sorts by, in the order that the browser shows."""
    return [re.findall(r'data-value="([^"]*)"', row) for row in re.findall(r"<tr data-row=.*?</tr>", dom)]


def test_it_holds_curves_a_split_reliability_and_the_table(html):
    made = html.split("<svg")[1:]
    assert sum('id="row-0"' in drawing for drawing in made) == 4  # accuracy, nll, ece, train_loss
    assert all(f'id="row-{row}-band"' in html for row in range(3))
    assert "digits split by dirichlet, seed 0" in html
    assert html.count("ECE 0.") == 3
    assert html.count("<tr data-row=") == 3
    assert "<title>a &lt;sweep&gt;</title>" in html


def test_it_needs_no_network(html):
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html.replace("xlink:href", "href"))
    assert "@import" not in html
    assert "url(http" not in html


def test_a_run_without_pictures_or_classes_has_a_page_too(tmp_path):
    write_run(tmp_path / "a", {}, {"rmse": [3.0, 2.0, 1.0]})
    html = page(reports.make([tmp_path]), "regression")
    assert "Reliability" not in html
    assert "Who has what" not in html
    assert html.count("<svg") == 1


def test_a_posterior_has_a_reliability_of_its_own(tmp_path):
    bins = {"count": [2.0, 8.0], "confidence": [0.8, 7.2], "right": [1.0, 6.0]}
    folder = write_run(tmp_path / "a", {}, {"accuracy": [0.7], "averaged_accuracy": [0.8]})
    numbers = {"reliability": bins, "averaged_reliability": bins | {"right": [1.0, 7.0]}}
    (folder / "pictures.json").write_text(json.dumps(numbers))
    html = page(reports.make([tmp_path]), "posterior")
    assert "ECE 0.140" in html  # (|0.8 - 1| + |7.2 - 6|) / 10
    assert "fedavg, averaged" in html
    assert "ECE 0.040" in html


def test_numbers_that_are_not_finite_leave_a_gap(tmp_path):
    write_run(tmp_path / "a", {}, {"nll": [float("inf"), 2.0, float("nan")], "ece": [float("nan")] * 3})
    assert page(reports.make([tmp_path], metrics=["nll"]), "diverged").count("<svg") == 1


def test_a_click_on_a_heading_sorts_the_table(html, tmp_path):
    """The browser runs the page's own script, then ours: click on `nll`, and a second time."""
    click = "<script>[...document.querySelectorAll('th')].find(h => h.textContent == 'nll').click()</script>"
    column = re.findall(r"<th(?: [^>]*)?>([^<]*)<", html).index("nll")
    for clicks, direction in ((1, True), (2, False)):
        dom = browse(tmp_path, html.replace("</body>", click * clicks + "</body>"), "--dump-dom")
        values = [float(cells[column]) for cells in values_of(dom)]
        assert values == sorted(values, reverse=direction)
        assert len(values) == 3


def test_it_is_drawn(html, tmp_path):
    shot = tmp_path / "page.png"
    browse(tmp_path, html, f"--screenshot={shot}", "--window-size=1200,2000")
    from PIL import Image

    colours = {colour for _, colour in Image.open(shot).convert("RGB").getcolors(10**6)}
    lines = {(0x3B, 0x6F, 0xB6), (0xD9, 0x82, 0x2B), (0x3F, 0x9B, 0x5B)}
    assert lines <= colours
