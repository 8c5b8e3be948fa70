"""What is refused of a source, a split or a model of one's own, and in which words."""

import re
from dataclasses import dataclass, field, fields

import pytest
import torch
from torch import Tensor, nn

from fedddp.core import registry
from fedddp.core.contract import Contract
from fedddp.core.data import Dataset, Examples, Source
from fedddp.core.model import Model
from fedddp.core.rng import stream
from fedddp.core.shards import Shards, Split
from fedddp.splits._dealing import Counted


def hook(*_args: object) -> None:
    """Stands for any hook's body."""


HOOKS = [(Source, "load"), (Split, "deal"), (Model, "build")]
NEAR_MISSES = [
    (Source, "laod", "load"),
    (Source, "loads", "load"),
    (Split, "dael", "deal"),
    (Split, "counts", "count"),
    (Model, "built", "build"),
    (Model, "buidl", "build"),
]


@pytest.mark.parametrize(("base", "name", "meant"), NEAR_MISSES)
def test_a_misspelt_hook_is_refused(base: type[Contract], name: str, meant: str) -> None:
    wrong = "not part of the contract (a helper's name begins with _, a setting is annotated)"
    with pytest.raises(TypeError, match=f"^{re.escape(f'Own.{name}: {wrong}; did you mean {meant}?')}$"):
        type("Own", (base,), {name: hook})


def test_a_public_helper_is_refused_with_all_there_is() -> None:
    choices = "count, deal, minimum, repeats"
    with pytest.raises(TypeError, match=rf"Own\.xyz: not part of the contract .*; choose from {choices}$"):
        type("Own", (Split,), {"deal": hook, "xyz": hook})


@pytest.mark.parametrize(("base", "name"), HOOKS)
def test_a_setting_without_annotation_is_refused(base: type[Contract], name: str) -> None:
    with pytest.raises(TypeError, match=r"^Own\.strength: not part of the contract \(.*, a setting is annotated\)"):
        type("Own", (base,), {name: hook, "strength": 0.1})


@pytest.mark.parametrize(("base", "name"), HOOKS)
def test_a_helper_begins_with_an_underscore(base: type[Contract], name: str) -> None:
    own = type("Own", (base,), {name: hook, "_helper": hook})
    assert fields(own()) == fields(base)  # type: ignore[arg-type]


@pytest.mark.parametrize(("base", "name"), HOOKS)
def test_without_its_hook_it_cannot_be_made(base: type[Contract], name: str) -> None:
    own = type("Own", (base,), {"_helper": hook})
    for cls in (base, own):
        with pytest.raises(TypeError, match=rf"^Can't instantiate abstract class {cls.__name__} with .*\b{name}\b"):
            cls()


@pytest.mark.parametrize(("base", "name"), [*HOOKS, (Split, "count")])
def test_a_setting_cannot_have_the_name_of_a_hook(base: type[Contract], name: str) -> None:
    message = f"Own.{name}: is a hook of the contract and cannot be a setting; rename it"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        type("Own", (base,), {"__annotations__": {name: int}, name: 3})


@pytest.mark.parametrize(("base", "name"), HOOKS)
@pytest.mark.parametrize("explicit", [False, True], ids=["implied", "dataclass"])
def test_annotated_fields_are_settings(base: type[Contract], name: str, explicit: bool) -> None:
    space = {
        "__annotations__": {"width": int, "layers": list[int]},
        "width": 8,
        "layers": field(default_factory=lambda: [1, 2]),
        name: hook,
    }
    own = type("Own", (base,), space)
    own = dataclass(own) if explicit else own
    one, other = own(), own(width=3, layers=[4])
    assert [f.name for f in fields(one)] == [f.name for f in fields(base)] + ["width", "layers"]  # type: ignore[arg-type]
    assert (one.width, one.layers, other.width, other.layers) == (8, [1, 2], 3, [4])
    one.layers.append(3)
    assert own().layers == [1, 2]
    assert own() == own(width=8) != other


def test_a_default_factory_above_is_found_again_below() -> None:
    @dataclass
    class Wide(Model):
        layers: list[int] = field(default_factory=lambda: [5])

        def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
            return nn.Linear(shape[0], outputs)

    class Wider(Wide):
        bias: bool = False

    assert (Wide().layers, Wider().layers, Wider().bias) == ([5], [5], False)


def test_what_extends_a_contract_may_add_public_names() -> None:
    class Halves(Source, extends=True):
        share: float = 0.5

        def halves(self, examples: Examples) -> Dataset:
            border = round(self.share * len(examples))
            order = torch.arange(len(examples))
            return Dataset(examples.take(order[:border]), examples.take(order[border:]), classes=2)

    class Own(Halves):
        def load(self) -> Dataset:
            return self.halves(Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)))

        def halves(self, examples: Examples) -> Dataset:
            return super().halves(examples)

    assert (len(Own().load().train), len(Own(share=0.25).load().train)) == (2, 1)
    with pytest.raises(TypeError, match=r"Own\.halfs: not part of the contract .*; did you mean halves\?$"):
        type("Own", (Halves,), {"load": hook, "halfs": hook})


class Pairs(Split):
    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        return list(torch.arange(len(examples)).split(2))


class Joined(Pairs):
    def deal(self, examples: Examples, generator: torch.Generator) -> Shards:  # type: ignore[override]
        return Shards.of(super().deal(examples, generator))


def test_the_smallest_client_is_the_splits_own_setting() -> None:
    five = Examples(torch.zeros(5, 1), torch.zeros(5, dtype=torch.long))
    assert Shards.deal(Pairs(), five, 0).num_examples.tolist() == [2, 2, 1]
    with pytest.raises(ValueError, match="client 2 of 3 has 1 examples, fewer than 2"):
        Shards.deal(Pairs(minimum=2), five, 0)
    assert Shards.deal(Joined(minimum=2), five, 0).num_examples.tolist() == [2, 2, 1]  # taken as they are


def test_how_many_clients_is_known_beforehand_where_it_is_a_setting() -> None:
    assert Pairs().count() is None
    examples = Examples(torch.zeros(60, 1), torch.arange(60) % 2, torch.arange(60) % 7)
    for name in registry.names("split"):
        split = registry.find("split", name)
        if issubclass(split, Counted):
            own = split(clients=6)
            assert own.count() == 6
            assert len(own.deal(examples, stream(0, "split"))) == 6
        else:
            assert name in ("file", "natural")
            assert split().count() is None


@pytest.mark.parametrize(("section", "base"), [("data", Source), ("split", Split), ("model", Model)])
def test_everything_there_is_follows_its_contract(section: str, base: type[Contract]) -> None:
    for name in registry.names(section):
        assert isinstance(registry.find(section, name)(), base)
