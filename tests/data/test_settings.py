"""What every source can be told: root, fraction, validation, pixels."""

import re
from dataclasses import fields, replace

import pytest
import torch

from fedddp.core import registry
from fedddp.core.data import Dataset, Examples, bag_of_words, root
from fedddp.core.rng import stream
from fedddp.core.sound import refuse_unfit
from fedddp.data import _settings
from fedddp.data._settings import pixel_moments, share


class Subset(_settings.Subset):
    def load(self) -> Dataset:
        return self.dataset(examples(), examples(), 5)


class Images(_settings.Images):
    def load(self) -> Dataset:
        return self.dataset(examples(), examples(), 5)


class Table(_settings.Table):
    def load(self) -> Dataset:
        return self.rows(examples(), 5)


def examples(count: int = 100, classes: int = 5) -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8, generator=generator)
    return Examples(inputs, torch.arange(count) % classes, torch.arange(count) % 7)


def test_a_fraction_has_the_same_share_of_every_class_in_the_stored_order() -> None:
    whole = examples()
    data = Subset(fraction=0.2, fraction_seed=3).dataset(whole, whole, 5)
    assert data.train.targets.bincount().tolist() == [4] * 5
    index = [int((whole.inputs == one).flatten(1).all(1).nonzero()) for one in data.train.inputs]
    assert index == sorted(index)
    assert torch.equal(whole.take(torch.tensor(index)).clients, data.train.clients)  # type: ignore[arg-type]


def test_the_fraction_depends_on_its_own_seed_alone() -> None:
    whole = examples()
    one, same, other = (Subset(fraction=0.5, fraction_seed=seed).dataset(whole, whole, 5) for seed in (1, 1, 2))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)


def test_validation_points_are_taken_from_the_training_set() -> None:
    whole = examples()
    data = Subset(fraction=0.5, validation=10).dataset(whole, whole, 5)
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (40, 10, 100)
    both = torch.cat([data.train.inputs, data.validation.inputs]).flatten(1).unique(dim=0)
    assert len(both) == 50
    assert Subset().dataset(whole, whole, 5).validation is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fraction": 0.0}, "data.fraction=0.0"),
        ({"fraction": 1.5}, "data.fraction=1.5"),
        ({"validation": -1}, "data.validation=-1"),
        ({"validation": 100}, "data.validation=100: must be below 100 training points"),
        ({"fraction": 0.001}, "0.001 leaves none of 100"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Subset(**settings).dataset(examples(), examples(), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [n for n in registry.names("data") if hasattr(registry.find("data", n), "test_fraction")]
)
@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.0, 2.0])
def test_every_source_refuses_a_test_set_of_nothing_or_of_everything(name: str, fraction: float) -> None:
    with pytest.raises(ValueError, match=f"data.test_fraction={fraction}: must be in"):
        registry.find("data", name)(test_fraction=fraction)


def test_nothing_is_left_to_train_on() -> None:
    with pytest.raises(ValueError, match=r"choose a smaller data\.test_fraction"):
        Table(test_fraction=0.999).load()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test": examples(0)}, "mine: the test set is empty; choose a larger data.test_fraction"),
        ({"train": examples(0)}, "mine: the training set is empty"),
        ({"classes": 4}, "mine: the training set has targets from 0 to 4, expected 0 to 3"),
        (
            {"validation": Examples(torch.zeros(2, 3), torch.zeros(2))},
            "mine: the validation set has inputs [3], to train",
        ),
        ({"test": Examples(examples(2).inputs, examples(3).targets)}, "mine: the test set has 2 inputs and 3 targets"),
    ],
)
def test_a_data_set_that_no_run_can_be_made_of(changed: dict[str, Examples], message: str) -> None:
    data = replace(Dataset(examples(), examples(), 5), **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=re.escape(message)):
        refuse_unfit(data, "mine", "choose a larger data.test_fraction")


def test_the_first_example_that_is_not_finite_is_named() -> None:
    inputs = torch.zeros(10_000, 2)
    inputs[7_777, 1] = torch.nan
    part = Examples(inputs, torch.arange(10_000) % 2)
    with pytest.raises(ValueError, match="first in the inputs of example 7777"):
        refuse_unfit(Dataset(part, part, 2), "mine")


def test_pixels_are_a_stated_choice() -> None:
    whole = examples()
    raw, unit, standard = (
        Images(pixels=choice).dataset(whole, whole, 5) for choice in ("0-255", "0-1", "standardised")
    )
    floats = whole.inputs.double()
    assert torch.equal(raw.prepare(whole.inputs, torch.float64), floats)
    assert torch.equal(unit.prepare(whole.inputs, torch.float64), floats * (1 / 255))
    seen = standard.prepare(whole.inputs, torch.float64)
    expected = (floats - floats.mean((0, 2, 3), keepdim=True)) / floats.std((0, 2, 3), keepdim=True, correction=0)
    torch.testing.assert_close(seen, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"data.pixels=0..255: must be 0-255 or 0-1 or standardised or mnist"):
        Images(pixels="0..255")


def test_standardised_uses_what_is_left_to_train_on() -> None:
    whole = examples()
    data = Images(pixels="standardised", fraction=0.5, validation=20).dataset(whole, whole, 5)
    seen = data.prepare(data.train.inputs, torch.float64)
    assert seen.mean((0, 2, 3)).abs().max() < 1e-12
    assert (seen.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_model_inputs_have_the_runs_type(dtype: torch.dtype) -> None:
    grey = Examples(examples().inputs[:, 0], examples().targets)
    for choice in ("0-255", "0-1", "standardised"):
        for part in (examples(), grey):
            assert Images(pixels=choice).dataset(part, part, 5).prepare(part.inputs, dtype).dtype == dtype


def test_a_constant_picture_is_only_centred() -> None:
    flat = Examples(torch.full((4, 2, 2), 7, dtype=torch.uint8), torch.arange(4))
    data = Images(pixels="standardised").dataset(flat, flat, 4)
    assert data.prepare(flat.inputs, torch.float32).abs().max() == 0


def test_pixel_moments_are_exact_over_chunks() -> None:
    inputs = torch.arange(256, dtype=torch.uint8).repeat(10).view(2560, 1, 1)
    mean, deviation = pixel_moments(inputs)
    assert float(mean) == 127.5
    assert float(deviation) == pytest.approx(((256**2 - 1) / 12) ** 0.5, abs=1e-12)


def test_a_share_of_numbers_is_plain() -> None:
    picked = share(torch.rand(10), 0.3, stream("x"))
    assert len(picked) == 3
    assert torch.equal(picked, picked.sort().values)


def test_table_rows_are_divided_class_by_class_and_standardised_by_training_rows() -> None:
    inputs = torch.cat([torch.arange(50.0).view(-1, 1), torch.ones(50, 1), torch.eye(50)[:, :1]], 1)
    rows = Examples(inputs, torch.tensor([0] * 30 + [1] * 20))
    data = Table(test_fraction=0.2).rows(rows, 2, numeric=torch.tensor([True, True, False]))
    assert data.test.targets.bincount().tolist() == [6, 4]
    seen = data.prepare(data.train.inputs, torch.float64)
    assert float(seen[:, 0].mean()) == pytest.approx(0, abs=1e-12)
    assert float(seen[:, 0].std(correction=0)) == pytest.approx(1, abs=1e-12)
    assert seen[:, 1].abs().max() == 0  # never varies
    assert torch.equal(seen[:, 2], data.train.inputs[:, 2].double())  # a category
    everything = torch.cat([data.train.inputs, data.test.inputs])[:, 0]
    assert torch.equal(everything.sort().values, torch.arange(50.0))


def test_a_bag_of_words_counts_shares_of_known_words() -> None:
    words = torch.tensor([[[1, 2, 2, 4], [3, 0, 0, 0], [0, 0, 0, 0]]])  # three known words; 4 is unknown, 0 padding
    expected = torch.tensor([[[0.25, 0.5, 0], [0, 0, 1], [0, 0, 0]]])
    assert torch.equal(bag_of_words(words, 3, torch.float32), expected)
    part = Examples(words[0].to(torch.int16), torch.zeros(3, 2, dtype=torch.uint8))
    data = Dataset(part, part, classes=2, bag=3)
    assert data.input_shape == (3,)
    assert torch.equal(data.prepare(part.inputs, torch.float32), expected[0])


def test_the_root_is_the_setting_then_the_environment_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDDP_DATA", "/environment")
    assert str(root("/setting")) == "/setting"
    assert str(root("")) == "/environment"
    monkeypatch.delenv("FEDDDP_DATA")
    assert str(root("")) == "data"


def test_every_source_has_a_root_a_first_line_and_defaults() -> None:
    for name in registry.names("data"):
        source = registry.find("data", name)()
        assert "root" in {field.name for field in fields(source)}
        assert registry.describe("data", name)
        assert callable(source.load)


def test_mnists_constants_scale_any_picture() -> None:
    whole = examples()
    seen = Images(pixels="mnist").dataset(whole, whole, 5).prepare(whole.inputs, torch.float64)
    torch.testing.assert_close(seen, (whole.inputs.double() / 255 - 0.1307) / 0.3081, rtol=1e-12, atol=1e-12)


def test_validation_points_that_clients_keep_are_drawn_with_replacement() -> None:
    whole = examples()
    data = Images(validation=len(whole) - 1, keep_validation=True).dataset(whole, whole, 5)
    assert torch.equal(data.train.inputs, whole.inputs)  # nobody loses a point
    assert data.validation is not None
    assert len(data.validation) == len(whole) - 1
    assert len(data.validation.inputs.flatten(1).unique(dim=0)) < 0.8 * len(whole)  # about 1 - 1/e of them differ


def test_contaminated_labels_are_other_ones_in_the_clients_data_alone():
    """As many as asked for, of all other classes alike; the held-out points and the test set keep theirs."""
    inputs = torch.arange(1000.0).unsqueeze(1)
    whole = Examples(inputs, torch.arange(1000) % 5)
    plain, spoilt = (Subset(validation=100, contaminated=share).dataset(whole, whole, 5) for share in (0.0, 0.4))
    assert torch.equal(spoilt.train.inputs, plain.train.inputs)
    shift = (spoilt.train.targets - plain.train.targets) % 5
    assert int((shift != 0).sum()) == 360
    assert shift.bincount(minlength=5)[1:].min() > 60  # 90 of each are expected, to 3.7 deviations
    for part in ("validation", "test"):
        assert torch.equal(getattr(spoilt, part).targets, getattr(plain, part).targets)


def test_what_has_no_single_label_cannot_be_contaminated():
    whole = Examples(torch.zeros(10, 1), torch.zeros(10))
    with pytest.raises(ValueError, match=r"data\.contaminated=0\.5"):
        Subset(contaminated=0.5).dataset(whole, whole, 0)
