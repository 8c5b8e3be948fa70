"""What a queued run will be is frozen in its folder, and believed only if it is what was written there."""

import pytest

from fedddp.core.files import Damaged, check_text
from fedddp.jobs import slurm_task
from fedddp.jobs.planned import plan
from tests.small import MODELS, settings


@pytest.fixture
def planned(tmp_path):
    (run,) = plan(None, [settings("fedavg", *MODELS["mlp"])], tmp_path)
    run.prepare()
    return run


def test_a_queued_configuration_with_a_changed_digit_is_refused_and_written_anew(planned, capsys):
    path = planned.folder / "config.yaml"
    whole = path.read_text()
    check_text(path)
    path.write_text(whole.replace("rounds: 3", "rounds: 4"))
    with pytest.raises(Damaged):
        check_text(path)
    assert slurm_task.run(planned.folder, [str(path)]) != 0
    assert "config.yaml: is damaged" in capsys.readouterr().err
    planned.prepare()
    assert path.read_text() == whole


def test_a_configuration_that_is_whole_stays_as_it_was_queued(planned):
    path = planned.folder / "config.yaml"
    before = path.stat().st_mtime_ns
    planned.prepare()
    assert path.stat().st_mtime_ns == before
