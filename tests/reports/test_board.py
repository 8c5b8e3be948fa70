"""What TensorBoard finds in a run's own events: settings for its HParams page, pictures, and each once."""

import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from fedddp.runs import config as configuration
from tests.reports.conftest import POINTS
from tests.small import fresh, run, settings


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
        assert set(found) == set(config.relevant)
        assert found["method.name"].string_value == config["method.name"]
        assert found["local.lr"].number_value == config["local.lr"]
        assert found["seed"].number_value == config["seed"]
        assert found["model.hidden"].string_value == "[12]"


def test_pictures_of_the_split_and_of_reliability(sweep):
    drawn = board(sweep / "0")
    assert set(drawn.Tags()["images"]) == {"split", "reliability"}
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
    for tag in ("split", "reliability"):
        assert sum(len(file.Images(tag)) for file in files if tag in file.Tags()["images"]) == 1
    steps = [e.step for file in files if "accuracy" in file.Tags()["scalars"] for e in file.Scalars("accuracy")]
    assert sorted(steps) == [1, 2, 3]
