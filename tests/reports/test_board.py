"""What TensorBoard finds in a run's own events: settings for its HParams page, pictures, and each once."""

import json
import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from fedddp.config import loading as configuration
from fedddp.records.tags import tag
from tests.reports.conftest import POINTS
from tests.small import fresh, run, settings

WORDS = ("command", "configuration", "split")
ACCURACY = "1_quality/accuracy"


def board(folder) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def session(found: EventAccumulator):
    """The settings that the HParams page shows; None where there are none."""
    try:
        content = found.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    except KeyError:
        return None
    return metadata.parse_session_start_info_plugin_data(content).hparams


def test_a_run_is_a_session_with_its_settings(sweep):
    for number in range(len(POINTS)):
        found = session(board(sweep / str(number)))
        config = configuration.load(str(sweep.parent / "experiment.yaml"), POINTS[number])
        assert set(found) == {"method", "seed", "local.lr"}  # and none of the sixty that all runs share
        assert found["method"].string_value == config["method.name"]
        assert found["local.lr"].number_value == config["local.lr"]
        assert found["seed"].number_value == config["seed"]


def test_pictures_of_the_split_and_of_reliability(sweep):
    drawn = board(sweep / "0")
    assert set(drawn.Tags()["images"]) == {"split", "reliability", "confusion"}
    assert drawn.Images("split")[0].width > 300
    assert not board(sweep / "1").Tags()["images"]  # evaluation.histograms=0


def test_the_numbers_behind_the_pictures_are_right(sweep):
    numbers = json.loads((sweep / "0" / "pictures.json").read_text())
    last = json.loads((sweep / "0" / "metrics.jsonl").read_text().splitlines()[-1])
    count, confidence, right = (numbers["reliability"][name] for name in ("count", "confidence", "right"))
    assert sum(count) == round(0.6 * 1797)  # the test set
    assert sum(right) / sum(count) == last["accuracy"]
    gaps = sum(abs(c - r) for c, r in zip(confidence, right, strict=True)) / sum(count)
    assert abs(gaps - last["ece"]) < 1e-9
    assert [sum(row) for row in numbers["split"]["counts"]] == numbers["split"]["sizes"]
    assert sum(numbers["split"]["sizes"]) == 1797 - round(0.6 * 1797) - 100  # without test and held-out part


def test_a_resumed_run_is_one_session_with_one_picture(exchange, tmp_path):
    folder = fresh(tmp_path, "run")
    words = settings("fedavg", "checkpoint.every=1", "evaluation.every=1", "evaluation.histograms=1")
    assert run(words, folder, kill_after=2) is None
    assert run(words, folder, resume=True)
    assert run(words, folder, resume=True)  # of a finished run, nothing is written again
    # file by file: made within one second by one process, they have no order that TensorBoard could know
    files = [board(path) for path in Path(folder).glob("events.out.tfevents.*")]
    assert sum(session(file) is not None for file in files) == 1
    for name in ("split", "reliability"):
        assert sum(len(file.Images(name)) for file in files if name in file.Tags()["images"]) == 1
    steps = [e.step for file in files if ACCURACY in file.Tags()["scalars"] for e in file.Scalars(ACCURACY)]
    assert sorted(steps) == [1, 2, 3]


def test_numbers_are_in_groups_and_what_matters_comes_first(sweep):
    tags = board(sweep / "0").Tags()["scalars"]
    groups = sorted({name.partition("/")[0] for name in tags})
    assert groups == ["1_quality", "2_uncertainty", "3_time", "4_traffic", "5_clients", "7_system"]
    assert {"1_quality/accuracy", "1_quality/train_loss", "2_uncertainty/nll", "3_time/seconds_local"} <= set(tags)
    assert {"4_traffic/bytes_up", "5_clients/active", "7_system/seconds_idle_mean"} <= set(tags)
    assert tag("validation_averaged_nll") == "2_uncertainty/validation_averaged_nll"
    assert tag("dual_residual") == "6_duals/dual_residual"
    assert tag("accuracy_min") == "1_quality/accuracy_min"


def test_no_tag_is_both_a_number_and_a_histogram(exchange, tmp_path):
    """TensorBoard's HParams page, which reads every number's last value, would fail."""
    folder = fresh(tmp_path, "run")
    assert run(settings("bayes_admm", "evaluation.histograms=1", "evaluation.samples=2"), folder)
    tags = board(folder).Tags()
    assert len(tags["histograms"]) > 4
    assert not {*tags["histograms"]} & {*tags["scalars"]}


def test_texts_say_what_the_run_is(sweep):
    found = board(sweep / "8")
    text = {name: found.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode() for name in WORDS}
    assert "fedddp run" in text["command"]
    assert "method=fedprox local.lr=0.1 seed=2" in text["command"]
    assert "batch_size: 16" in text["configuration"]
    rows = text["split"].splitlines()
    assert rows[0].startswith("| client | examples | 0 | 1 |")
    told = json.loads((sweep / "8" / "clients.json").read_text())
    assert [int(row.split(" | ")[1]) for row in rows[2:]] == told["examples"]


def test_six_curves_are_laid_out_and_each_finds_its_numbers(sweep):
    found = board(sweep / "8")
    content = found.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    charts = layout_pb2.Layout.FromString(content).category[0].chart
    tags = found.Tags()["scalars"]
    assert len(charts) == 6
    for chart in charts:
        (pattern,) = chart.multiline.tag
        assert any(re.match(pattern, name) for name in tags), pattern
