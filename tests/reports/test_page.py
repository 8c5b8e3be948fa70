"""The page: whole, without a network, and alive in a browser."""

import csv
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
    return [
        re.findall(r'data-value="([^"]*)"', row)
        for row in re.findall(r"<tr data-row=.*?</tr>", dom.partition("</table>")[0])
    ]


def test_it_holds_curves_a_split_reliability_and_the_table(html):
    made = html.split("<svg")[1:]
    assert (
        sum('id="row-0"' in drawing for drawing in made) == 6
    )  # accuracy, nll, ece, train_loss; accuracy over bytes and over seconds
    assert all(f'id="row-{row}-band"' in html for row in range(3))
    assert "digits split by dirichlet, seed 0" in html
    assert html.count("ECE 0.") == 3
    assert html.partition("</table>")[0].count("<tr data-row=") == 3
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


def two_experiments(folder):
    """Different data, with accuracies that would make one of them the best everywhere."""
    for data, base in (("digits", 0.5), ("mnist", 0.9)):
        for method, more in (("fedavg", {}), ("feddyn", {"alpha": 0.3}), ("feddyn", {"alpha": 0.1})):
            for seed in range(3):
                settings = {"method": {"name": method, **more}, "data": {"name": data}, "seed": seed}
                gain = 0.05 * more.get("alpha", 0) + seed / 1000
                cost = {"active": [2.0] * 2, "bytes_up": [10.0] * 2, "bytes_down": [5.0] * 2, "seconds": [1.0] * 2}
                metrics = {"accuracy": [base, base + gain], **cost}
                write_run(folder / f"{data}-{method}-{more.get('alpha', '')}-{seed}", settings, metrics)
    return reports.make([folder])


def test_each_experiment_has_its_own_section_best_marks_and_axes(tmp_path):
    made = two_experiments(tmp_path)
    assert [section.title for section in made.sections] == ["digits split by itself", "mnist split by itself"]
    html = page(made, "two")
    digits, mnist = html.split("<section")[1:]
    for part, base in ((digits, 0.5), (mnist, 0.9)):
        first = part.partition("</table>")[0]
        assert re.findall(r'class="best" data-value="([\d.]+)"', first)[0].startswith(str(base + 0.5 / 1000)[:4])
        assert first.count("<tr data-row=") == 3
        assert "data.name" not in first  # what the section is about is no column
    ticks = [
        re.findall(r">(\d\.\d+)</text>", part.partition("<svg")[2].partition("</svg>")[0]) for part in (digits, mnist)
    ]
    assert max(map(float, ticks[0])) < 0.6 < 0.85 < min(map(float, ticks[1]))


def test_a_setting_of_one_method_stands_with_that_method(tmp_path):
    html = page(two_experiments(tmp_path), "two")
    heads, body = re.search(r"<thead>(.*?)</thead><tbody>(.*?)</tbody>", html.split("<section")[1]).groups()
    assert "alpha" not in heads
    assert 'feddyn <span class="own">alpha 0.3</span>' in body
    assert 'fedavg <span class="own"' not in body
    data = re.search(r"hidden>(.*?)</pre>", html.split("<section")[1], re.S)[1].splitlines()
    assert data[0].startswith("method,method.alpha,seeds,accuracy")
    assert data[1].startswith("feddyn,0.3,3,")


def test_a_setting_that_two_methods_share_by_name_alone_is_shown_where_it_tells_apart(tmp_path):
    for name, alpha in (("feddyn", 0.1), ("feddyn", 0.3), ("bayes_admm", 0.0)):
        write_run(tmp_path / f"{name}{alpha}", {"method": {"name": name, "alpha": alpha}}, {"accuracy": [alpha]})
    (section,) = reports.make([tmp_path]).sections
    assert [row.name for row in section.rows] == ["feddyn alpha=0.3", "feddyn alpha=0.1", "bayes_admm"]
    assert section.own == {0: "alpha 0.3", 1: "alpha 0.1"}


def test_every_picture_has_its_numbers_and_both_buttons(tmp_path, html):
    plates = re.findall(r'<figure class="plate.*?</figure>', html, re.S)
    assert len(plates) == 4 + 2 + 3 + 3 + 2  # curves, costs, reliability, confusion, two of the splits
    for one in plates:
        assert one.count("data-save") == 2
        assert len(re.search(r'<pre class="numbers" hidden>(.*?)</pre>', one, re.S)[1].splitlines()) > 2
    costs = page(two_experiments(tmp_path), "two")
    numbers = re.search(r'data-name="[^"]*accuracy-by-bytes-sent".*?hidden>(.*?)</pre>', costs, re.S)[1].splitlines()
    assert numbers[0] == "setting,bytes sent,accuracy,accuracy_std"
    assert [line.split(",")[1] for line in numbers[1:3]] == [
        "30",
        "60",
    ]  # two clients, 15 bytes each, summed over rounds


def test_differences_stand_beside_their_tests(tmp_path):
    html = page(two_experiments(tmp_path), "two")
    (table,) = re.findall(r"Differences in accuracy to feddyn.*?</table>", html.split("<section")[1], re.S)
    assert "p (signs)" in table
    assert "3 seeds: no exact p below 0.25; t assumes normal differences" in table


def test_one_seed_a_row_has_no_table_of_differences(tmp_path):
    for name in ("fedavg", "feddyn"):
        write_run(tmp_path / name, {"method": {"name": name}}, {"accuracy": [0.7]})
    html = page(reports.make([tmp_path]), "one each")
    assert "Nothing can be said: no row has two seeds that the best one has, too." in html
    assert "p (signs)" not in html


def test_clients_are_shown_where_the_run_has_their_numbers(tmp_path):
    folder = write_run(tmp_path / "a", {}, {"accuracy": [0.7]})
    assert "<h3>Clients</h3>" not in page(reports.make([tmp_path]), "none")
    told = {"names": ["oslo", "rome"], "examples": [5, 6], "counts": [], "labels": []}
    (folder / "clients.json").write_text(json.dumps(told))
    columns = {"test_examples": [2, 3], "loss_before": [1, 1], "accuracy": [0.25, None]}
    lines = [{"round": n, "parts": "", "unseen": 0, "columns": columns | {"accuracy": [n / 4, None]}} for n in (1, 2)]
    (folder / "client_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = page(reports.make([tmp_path]), "clients")
    numbers = re.search(r'-clients-accuracy".*?hidden>(.*?)</pre>', html, re.S)[1].splitlines()
    assert numbers == ["setting,seed,client,examples,accuracy", "fedavg,0,oslo,5,0.5", "fedavg,0,rome,6,"]


def test_clients_have_a_histogram_and_a_scatter_over_their_examples(tmp_path):
    folder = write_run(tmp_path / "a", {}, {"accuracy": [0.7]})
    told = {"names": ["oslo", "rome", "bonn"], "examples": [5, 6, 7], "counts": [], "labels": []}
    (folder / "clients.json").write_text(json.dumps(told))
    line = {"round": 1, "parts": "", "unseen": 0, "columns": {"test_examples": [2, 0, 3], "accuracy": [0.5, None, 1]}}
    (folder / "client_metrics.jsonl").write_text(json.dumps(line) + "\n")
    html = page(reports.make([tmp_path]), "clients")
    for kind in ("accuracy", "examples"):
        numbers = re.search(rf'-clients-by-{kind}".*?hidden>(.*?)</pre>', html, re.S)[1].splitlines()
        assert numbers == ["setting,examples,accuracy", "fedavg,5,0.5", "fedavg,7,1"]


def test_calibrated_answers_are_told_where_a_run_has_them(tmp_path):
    """Means over seeds; the surest answers by interpolation; a single model does not disagree with itself."""
    kind = {"temperature": 2.0, "scores": [[0, 1]], "entropy": 1.0, "aleatoric": 1.0, "epistemic": 0.0}
    kind |= {"plain": {"nll": 0.7, "ece": 0.2}, "tempered": {"nll": 0.6, "ece": 0.1}}
    kind["selective"] = {"confidence": [0.5, 0.9], "answered": [1.0, 0.5], "accuracy": [0.6, 0.8]}
    for seed, reached in ((0, 0.88), (1, 0.94)):
        folder = write_run(tmp_path / str(seed), {"seed": seed}, {"accuracy": [0.7]})
        levels = {q: {"reached": 1.0, "size": 9.0, "clients": [1.0]} for q in ("0.8", "0.95")}
        levels["0.9"] = {"reached": reached, "size": 1.5, "clients": [None, reached - 0.1, 0.97]}
        point = kind | {"coverage": levels, "ood_auroc": {"entropy": 0.75, "epistemic": 0.5}}
        folder.joinpath("calibration.json").write_text(json.dumps({"kinds": {"point": point}}))
    made = reports.make([tmp_path])
    assert "scores" not in made.sections[0].runs[0].calibration["kinds"]["point"]
    html = page(made, "trust")
    numbers = re.search(r'-calibrated".*?hidden>(.*?)</pre>', html, re.S)[1].splitlines()
    row = dict(zip(*csv.reader(line.replace("&quot;", '"') for line in numbers), strict=True))
    assert {"coverage 0.9": "0.910", "least client": "0.810", "classes in a set": "1.500"}.items() <= row.items()
    assert {"nll, tempered": "0.600", "AUROC of entropy": "0.750", "epistemic": "0.000"}.items() <= row.items()
    assert "AUROC of epistemic" not in row
    answers = re.search(r'-selective".*?hidden>(.*?)</pre>', html, re.S)[1].splitlines()
    assert {"fedavg,0.05,0.8", "fedavg,0.50,0.8", "fedavg,0.75,0.7", "fedavg,1.00,0.6"} <= set(answers)


def test_a_confusion_matrix_is_that_of_the_final_model(sweep):
    numbers = json.loads((sweep / "0" / "pictures.json").read_text())
    counts, last = (
        numbers["confusion"]["counts"],
        json.loads((sweep / "0" / "metrics.jsonl").read_text().splitlines()[-1]),
    )
    total = sum(map(sum, counts))
    assert total == round(0.6 * 1797)
    assert sum(counts[n][n] for n in range(10)) / total == last["accuracy"]


def test_a_narrow_page_does_not_scroll_and_its_table_says_that_it_does(tmp_path):
    """The body is as wide as the window, the table scrolls within."""
    html = page(two_experiments(tmp_path), "two")
    told = "<script>document.title = [document.documentElement.scrollWidth, innerWidth, "
    told += "document.querySelectorAll('.scrolls').length].join(' ')</script>"
    dom = browse(tmp_path, html.replace("</body>", told + "</body>"), "--dump-dom", "--window-size=500,900")
    wide, window, scrolls = map(int, re.search(r"<title>([\d ]+)</title>", dom)[1].split())
    assert wide <= window
    assert scrolls >= 2


def test_a_saved_drawing_has_colours_of_its_own(html, tmp_path):
    ask = "<script>document.title = drawn(document.querySelector('.plate svg')).includes('var(') + ' ' + "
    ask += "drawn(document.querySelector('.plate svg')).includes('#222a33')</script>"
    assert "var(--ink, #222a33)" in html
    assert "<title>false true</title>" in browse(tmp_path, html.replace("</body>", ask + "</body>"), "--dump-dom")


def test_dark_follows_the_system_and_a_print_is_light_with_a_page_for_each_experiment(tmp_path):
    from PIL import Image

    html = page(two_experiments(tmp_path), "two")
    for number, paper in ((0, (0x16, 0x1B, 0x21)), (1, (0xFF, 0xFF, 0xFF))):  # Blink's dark and light
        shot = tmp_path / f"{number}.png"
        browse(tmp_path, html, f"--blink-settings=preferredColorScheme={number}", f"--screenshot={shot}")
        assert Image.open(shot).convert("RGB").getpixel((2, 2)) == paper
    browse(tmp_path, html, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--blink-settings=preferredColorScheme=0")
    assert len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes())) >= 2
