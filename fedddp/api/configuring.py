"""From what is handed in to a configuration: names, mappings, modules, tensors, objects."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fedddp.config import loading as configuration
from fedddp.config.given import GivenModel, given_clients, given_data
from fedddp.config.loading import Config
from fedddp.core.data import Source


def configure(
    experiment: str | None = None,
    *,
    model: Any = None,
    data: Any = None,
    clients: Any = None,
    test: Any = None,
    split: Any = None,
    method: Any = None,
    local: Any = None,
    rounds: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration that `run` would run."""
    given: dict[str, Any] = {}
    more: dict[str, Any] = {} if seed is None else {"seed": seed}
    own = not named_data(data, clients)
    if own:
        given |= _own_data(data, clients, test, split)
        experiment = experiment or ""
    elif test is not None:
        raise ValueError("test: goes with data or clients of your own; a named data set brings its own test examples")
    parts = {"model": model, "data": None if own else data, "split": split, "method": method, "local": local}
    for section, part in parts.items():
        if isinstance(part, nn.Module):
            given[section] = GivenModel(module=part)
        elif isinstance(part, str | Mapping):
            more[section] = dict(part) if isinstance(part, Mapping) else part
        elif part is not None and section not in given:
            given[section] = part
    for key, value in {**(settings or {}), **({} if rounds is None else {"federation.rounds": rounds})}.items():
        section, _, name = key.partition(".")
        if not name:
            more[section] = value
            continue
        if isinstance(more.get(section), str):
            more[section] = {"name": more[section]}
        more.setdefault(section, {})[name] = value
    return configuration.load(experiment, more=more, given=given)


def named_data(data: Any, clients: Any) -> bool:
    """Whether the data is one that can be named."""
    return clients is None and (data is None or isinstance(data, str | Mapping | Source))


def _own_data(data: Any, clients: Any, test: Any, split: Any) -> dict[str, Any]:
    if test is None:
        raise ValueError("test: give a pair (inputs, targets) to evaluate on")
    if clients is None:
        return {"data": given_data(data, test)}
    if data is not None or split is not None:
        raise ValueError("clients: holds all data and says whose it is; leave out data and split")
    source, deal = given_clients(clients, test)
    return {"data": source, "split": deal}
