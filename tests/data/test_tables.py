"""Tables: UCI Credit and Heart, scikit-learn's own, and a user's csv."""

import re
from pathlib import Path

import numpy
import pytest
import torch

from fedddp.data import credit, csv, heart, npz, sklearn


def crx(path: Path) -> None:
    """24 complete rows, every third granted, and two with gaps."""
    rows = [
        f"{'ab'[n % 2]},{20 + n}.5,{n},u,g,{'wc'[n // 12]},v,1.25,t,f,{n:02d},f,g,{n:05d},{10 * n},{'+--'[n % 3]}"
        for n in range(24)
    ]
    gaps = ["?,30.83,0,u,g,w,v,1.25,t,t,01,f,g,00202,0,+", "b,?,0,u,g,w,v,1.25,t,t,01,f,g,00202,0,-"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows[:10] + gaps + rows[10:]) + "\n\n")


def test_credit_leaves_gaps_out_and_standardises_numbers_alone(tmp_path: Path) -> None:
    crx(tmp_path / "credit/crx.data")
    data = credit.Source(root=str(tmp_path), test_fraction=0.25).load()
    assert (len(data.train), len(data.test)) == (18, 6)
    assert data.test.targets.bincount().tolist() == [4, 2]
    # A1 a, b; A2; A3; A4 u; A5 g; A6 c, w; A7 v; A8; A9 t; A10 f; A11; A12 f; A13 g; A14; A15
    assert data.train.inputs.shape[1] == 6 + 2 + 1 + 1 + 2 + 1 + 1 + 1 + 1 + 1
    seen = data.prepare(data.train.inputs, torch.float64)
    varying = [2, 3, 12, 15, 16]  # A2, A3, A11, A14, A15
    assert seen[:, varying].mean(0).abs().max() < 1e-6
    assert (seen[:, varying].std(0, correction=0) - 1).abs().max() < 1e-6
    assert seen[:, 9].abs().max() == 0  # A8 never varies
    assert torch.equal(seen[:, 0] + seen[:, 1], torch.ones(18).double())
    assert data.train.targets.dtype == torch.int64
    assert data.classes == 2


def test_credit_files_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"crx\.data: not found in .*credit.*fedddp data get credit"):
        credit.Source(root=str(tmp_path)).load()
    path = tmp_path / "crx.data"
    for content, reason in (
        ("", "holds no rows"),
        ("a,b,+\nb,c,-\n", "expected 15 columns"),
        ("a,b\nc\n", "row 2 has 1 cells"),
        ("\x00\xff", "cannot be read"),
    ):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + reason):
            credit.Source(root=str(tmp_path)).load()


def hospitals(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shift, name in enumerate(heart.HOSPITALS):
        rows = [
            f"{40 + n},1,{1 + n % 4},{120 + shift},{200 + n * (shift != 2)},0,{n % 3},150,0,{n}.5,?,?,?,{n % 3}"
            for n in range(12)
        ]
        rows.append("50,1,1,?,200,0,0,150,0,1,2,3,3,0")  # a gap in a column that is kept
        (folder / f"processed.{name}.data").write_text("\n".join(rows) + "\n")


def test_hospitals_are_clients_standardised_each_by_itself(tmp_path: Path) -> None:
    hospitals(tmp_path / "heart")
    data = heart.Source(root=str(tmp_path)).load()
    assert data.train.clients is not None
    assert data.train.clients.bincount().tolist() == [7] * 4  # 66 % of the 12 complete rows
    assert data.train.inputs.shape[1] == 13
    assert set(data.train.targets.tolist()) == {0, 1}
    for hospital in range(4):
        own = data.train.inputs[data.train.clients == hospital]
        assert own.mean(0).abs().max() < 1e-6
        assert ((own.std(0, correction=0) - 1).abs() < 1e-5).logical_or(own.abs().amax(0) == 0).all()
    raw = heart.Source(root=str(tmp_path), standardise="none").load()
    assert raw.train.inputs[:, 2].unique().tolist() == [120, 121, 122, 123]
    pooled = heart.Source(root=str(tmp_path), standardise="pooled", validation=4).load()
    assert pooled.prepare(pooled.train.inputs, torch.float64).mean(0).abs().max() < 1e-6
    with pytest.raises(ValueError, match=r"data\.standardise=all: must be hospital or pooled or none"):
        heart.Source(standardise="all")


def test_a_missing_or_damaged_hospital_is_named(tmp_path: Path) -> None:
    hospitals(tmp_path)
    (tmp_path / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(ValueError, match=r"processed\.va\.data.*expected 14 columns"):
        heart.Source(root=str(tmp_path)).load()
    (tmp_path / "processed.va.data").write_text("x,1,1,120,200,0,0,150,0,1,?,?,?,0\n")
    with pytest.raises(ValueError, match=r"processed\.va\.data.*could not convert"):
        heart.Source(root=str(tmp_path)).load()
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(ValueError, match=r"processed\.va\.data: not found.*fedddp data get heart"):
        heart.Source(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("table", "rows", "columns", "classes"),
    [("breast_cancer", 569, 30, 2), ("wine", 178, 13, 3), ("iris", 150, 4, 3), ("diabetes", 442, 10, 0)],
)
def test_sklearns_tables(table: str, rows: int, columns: int, classes: int) -> None:
    data = sklearn.Source(table=table).load()
    assert len(data.train) + len(data.test) == rows
    assert (data.input_shape, data.classes) == ((columns,), classes)
    assert data.train.targets.is_floating_point() == (classes == 0)
    seen = data.prepare(data.train.inputs, torch.float64)
    assert seen.mean(0).abs().max() < 1e-5
    assert (seen.std(0, correction=0) - 1).abs().max() < 1e-5
    again = sklearn.Source(table=table, test_seed=1).load()
    assert not torch.equal(again.test.inputs, data.test.inputs)


def test_an_unknown_table_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"data\.table=moons: must be breast_cancer or wine or iris or diabetes"):
        sklearn.Source(table="moons")


TABLE = "size,colour,owner,kind\n" + "".join(
    f"{n}.5,{('red', 'blue')[n % 2]},{'xyz'[n % 3]},{('cat', 'dog')[n % 2]}\n" for n in range(20)
)


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\ufeff" + TABLE + "7,,x,cat\n8,red,x,NA\n")
    data = csv.Source(root=str(tmp_path), file="mine.csv", client="owner").load()
    assert data.label_names == ("cat", "dog")
    assert data.input_shape == (3,)  # size, blue, red
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.train.clients is not None
    assert set(data.train.clients.tolist()) == {0, 1, 2}
    assert torch.equal(data.train.inputs[:, 2] == 1, data.train.targets == 0)


def test_a_table_with_a_test_file_and_a_number_to_predict(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("1;2;a\n3;4;b\n5;6;a\n")
    (tmp_path / "test.csv").write_text("7;8;c\n")
    source = csv.Source(
        file=str(tmp_path / "train.csv"),
        test_file=str(tmp_path / "test.csv"),
        target="1",
        regression=True,
        header=False,
        delimiter=";",
        standardise=False,
    )
    data = source.load()
    assert data.classes == 0
    assert data.train.targets.tolist() == [2.0, 4.0, 6.0]
    assert data.train.inputs.tolist() == [[1, 1, 0, 0], [3, 0, 1, 0], [5, 1, 0, 0]]
    assert data.test.inputs.tolist() == [[7, 0, 0, 1]]


def test_classes_that_are_numbers_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{n},{(2, 10, 1)[n % 3]}\n" for n in range(30)))
    assert csv.Source(root=str(tmp_path), file="t.csv").load().label_names == ("1", "2", "10")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "data.file=: must be the path"),
        ({"file": "none.csv"}, r"none\.csv: not found in "),
        ({"file": "mine.csv", "target": "weight"}, "data.target=weight: must be one of size, colour, owner, kind"),
        ({"file": "mine.csv", "client": "9"}, "data.client=9"),
        ({"file": "gaps.csv"}, "none of its 1 rows is without a missing value"),
        ({"file": "mine.csv", "regression": True}, "data.target=kind: must be a column of numbers"),
        ({"file": "uneven.csv"}, "row 2 has 3 cells, the first has 2"),
        ({"file": "mine.csv", "delimiter": ";"}, "data.delimiter=;: .*mine.csv has one column only"),
        ({"file": "twice.csv"}, "has two columns named 'a'"),
        ({"file": "empty.csv"}, "holds no rows"),
        ({"file": "header.csv"}, "none of its 0 rows"),
        ({"file": "constant.csv"}, "data.target=b: is 7 in every row; there is nothing to predict"),
        ({"file": "constant.csv", "regression": True}, "data.target=b: is 7 in every row"),
        ({"file": "infinite.csv"}, "column a: holds inf, which float32 cannot hold"),
        ({"file": "infinite.csv", "target": "a", "regression": True}, "column a: holds inf"),
        ({"file": "many.csv"}, "data.target=y: holds 300 different numbers in 300 rows; say data.regression=true, or"),
        ({"file": "many.csv", "regression": True, "classes": True}, "data.classes=true: must be false"),
        ({"file": "constant.csv", "client": "a"}, "data.client=a: must be another column: nothing is left"),
        ({"file": "mine.csv", "test_file": "many.csv"}, "data.test_file=many.csv: must be a table with the columns of"),
        ({"file": "mine.csv", "test_fraction": 0.001}, "data.test_fraction=0.001: 0.001 leaves none of"),
    ],
)
def test_mistakes_with_tables(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    (tmp_path / "mine.csv").write_text(TABLE)
    (tmp_path / "gaps.csv").write_text("a,b\n1,?\n")
    (tmp_path / "uneven.csv").write_text("a,b\n1,2,3\n")
    (tmp_path / "twice.csv").write_text("a,a,b\n1,2,3\n")
    (tmp_path / "empty.csv").write_text("\n")
    (tmp_path / "header.csv").write_text("a,b\n")
    (tmp_path / "constant.csv").write_text("a,b\n1,7\n2,7\n")
    (tmp_path / "infinite.csv").write_text("a,b\n1,0\ninf,1\n")
    (tmp_path / "many.csv").write_text("x,y\n" + "".join(f"{n},{n / 10}\n" for n in range(300)))
    with pytest.raises(ValueError, match=message):
        csv.Source(root=str(tmp_path), **settings).load()  # type: ignore[arg-type]


def test_many_numbers_are_what_one_says_they_are(tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    file.write_text("x,y\n" + "".join(f"{n},{n % 60}\n" for n in range(600)))
    assert csv.Source(file=str(file), regression=True).load().classes == 0
    assert csv.Source(file=str(file), classes=True).load().classes == 60
    file.write_text("x,y\n" + "".join(f"{n},{n % 60}\n" for n in range(1200)))  # 5 % of the rows
    assert csv.Source(file=str(file)).load().classes == 60


@pytest.mark.data
def test_the_real_credit(data_root: Path) -> None:
    data = credit.Source(root=str(data_root)).load()
    assert data.train.inputs.shape == (520, 46)
    assert len(data.test) == 133
    assert data.train.targets.bincount().tolist() == [284, 236]
    assert data.test.targets.bincount().tolist() == [73, 60]


@pytest.mark.data
def test_the_real_hospitals_are_flambys(data_root: Path) -> None:
    data = heart.Source(root=str(data_root)).load()
    assert data.train.clients is not None
    assert data.test.clients is not None
    assert data.train.clients.bincount().tolist() == [199, 172, 30, 85]
    assert data.test.clients.bincount().tolist() == [104, 89, 16, 45]
    raw = heart.Source(root=str(data_root), standardise="none").load().train
    ages = [int(raw.inputs[data.train.clients == hospital, 0].sum()) for hospital in range(4)]
    assert ages == [10781, 8170, 1712, 5072]  # of the rows that FLamby trains on
    assert data.input_shape == (13,)
    assert bool(data.train.inputs.isfinite().all())
    assert float(data.test.inputs.abs().max()) < 20


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ([f"{n % 12}.5" for n in range(400)], True),  # fractions
        ([str(n) for n in range(30)], True),  # hardly any twice
        ([str(n % 26) for n in range(400)], False),  # letters
        (["0.5", "1.5"] * 50, False),
        ([str(n % 11) for n in range(400)], False),
    ],
)
def test_a_quantity_is_asked_about(tmp_path: Path, values: list[str], asked: bool) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x,y\n" + "".join(f"{n % 9},{value}\n" for n, value in enumerate(values)))
    if not asked:
        assert csv.Source(file=str(file)).load().classes == len(set(values))
        return
    with pytest.raises(ValueError, match=r"say data.regression=true, or, if they are classes, data.classes=true"):
        csv.Source(file=str(file)).load()
    assert csv.Source(file=str(file), regression=True).load().classes == 0


def test_integers_with_gaps_are_no_classes(tmp_path: Path) -> None:
    """A price in whole euros would become 99,001 classes."""
    arrays = {"inputs": torch.zeros(100, 2), "targets": torch.arange(100) * 1000}
    file = tmp_path / "a.npz"
    numpy.savez(file, **{f"{part}_{name}": array for part in ("train", "test") for name, array in arrays.items()})
    with pytest.raises(ValueError, match="100 different integers up to 99000; store them as floats"):
        npz.Source(file=str(file)).load()
