"""Clients that leave a federation, and clients that come later.

    forget   the client's part is taken out of the server (the method's hook `forget`), its row out of the checkpoint
    join     the newcomer's row begins empty (`init_clients`), the server is told of it (the method's hook `admit`)

Each makes a folder of its own from the last checkpoint of a run: the configuration is the run's, but for
federation.without, and the rounds so far are its rounds. What goes on there is a run like any other, resumed on any
number of ranks. The old folder stays, and so does what its files tell of the client: remove it where that must not be.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.config.loading import Config, load
from fedddp.core import files, tree
from fedddp.core.check import hint
from fedddp.evaluation.evaluate import Evaluator
from fedddp.exchange.alone import Alone
from fedddp.records import metrics
from fedddp.rounds import checkpoint
from fedddp.rounds.checkpoint import SERVER, load_tensors
from fedddp.rounds.federate import Federation
from fedddp.rounds.store import ClientStore
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.claim import origin, write_config
from fedddp.runs.clients import called, clients, present
from fedddp.runs.private import LEDGER

Adapt = Callable[[Federation, Any, dict[str, Tensor]], Any]


def forget(folder: Path, config: Config, client: str, rounds: int, out: Path) -> Config:
    """Into `out`, the run in `folder` without one of its clients, to go on for so many rounds."""
    before, named = here(folder, config), files.read_record(folder / "clients.json")["names"]
    if client not in map(str, named):
        raise ValueError(f"{folder}: has no client {client!r}; {hint(client, [str(name) for name in named])}")
    row = [str(name) for name in named].index(client)
    after = changed(config, [*config.federation.without, before[row]])

    def adapt(federation: Federation, server: Any, rows: dict[str, Tensor]) -> Any:
        method, task = federation.method, federation.task
        own = {name: leaf[rows["ids"] == row] for name, leaf in rows.items() if name != "ids"}
        found = method.forget(server, tree.rebuild(method.init_clients(1, task, config.local), own), task)
        if found is None:
            raise ValueError(
                f"forget: method={config.title('method')} does not keep apart what each client has added, so nothing "
                "can be taken out: start a run with federation.without, or use a method with sites: pvi, fedep, "
                "fedlap, fedlap_cov, bayes_admm, bregman_admm, federated_admm, fedadmm, feddyn, fedcurv or fedbens"
            )
        if wrong := method.improper(found):
            raise ValueError(f"forget: without {client}, {wrong}; so do more rounds before")
        return found

    others = [old for old in range(len(before)) if old != row]
    return carry(folder, after, rounds, out, dict(enumerate(others)), adapt)


def join(folder: Path, config: Config, client: str, rounds: int, out: Path) -> Config:
    """Into `out`, the run in `folder` with one more client of its split, to go on for so many rounds."""
    away, before = config.federation.without, here(folder, config)
    known = {str(number): number for number in away}
    if client not in known:
        raise ValueError(
            f"join: {client!r} is none of the clients that are away, federation.without={away}. A run that expects a "
            "newcomer starts with federation.without=[NUMBER]; one of Python objects is joined by fedddp.join"
        )
    after = changed(config, [one for one in away if one != known[client]])
    everybody = sorted([*before, known[client]])
    rows = {new: before.index(one) for new, one in enumerate(everybody) if one in before}
    return carry(folder, after, rounds, out, rows, admit)


def join_named(folder: Path, config: Config, client: str, rounds: int, out: Path) -> Config:
    """The same for clients that have names: those of `config` are the run's and the newcomer."""
    before = [str(name) for name in files.read_record(folder / "clients.json")["names"]]
    after = list(config.values["split"]["names"])
    if client in before or sorted(after) != sorted([*before, client]):
        raise ValueError(f"join: clients must be {', '.join(before)}, as in {folder}, and {client}; not {after}")
    rows = {new: before.index(name) for new, name in enumerate(after) if name != client}
    return carry(folder, config, rounds, out, rows, admit)


def admit(federation: Federation, server: Any, rows: dict[str, Tensor]) -> Any:
    found = federation.method.admit(server, federation.task)
    if found is None:
        raise ValueError("join: this method's server has a place for each client from the start; begin anew with all")
    return found


def configuration(folder: Path) -> Config:
    """Of a run, from its folder."""
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder}: no run here (config.yaml is missing)")
    return load(str(folder / "config.yaml"))


def beside(folder: Path, word: str, client: str) -> Path:
    """Where a run without, or with, a client goes if nothing is said."""
    return folder.with_name(f"{folder.name}-{word}-{client}")


def here(folder: Path, config: Config) -> list[int]:
    """The numbers, in the split, of a run's clients."""
    return present(config.federation.without, len(files.read_record(folder / "clients.json")["examples"]))


def carry(folder: Path, config: Config, rounds: int, out: Path, old: dict[int, int], adapt: Adapt) -> Config:
    """A folder whose newest checkpoint is that of `folder`, as another configuration would have it.

    `old` says which row each client's memory comes from; a client that is not in it begins empty.
    """
    if (out / "config.yaml").exists():
        raise ValueError(f"{out}: holds a run already; choose another --out")
    path = checkpoint.newest(folder / "checkpoints", lambda _: None)
    if path is None:
        raise ValueError(f"{folder}: has no checkpoint to start from")
    told = checkpoint.about(path)
    if told.get("dropped"):
        raise ValueError(
            f"{folder}: what its clients remember was dropped when it was finished; checkpoint.keep_clients=true keeps "
            "it. For this run, begin anew"
        )
    if config.privacy.uses_total():
        raise ValueError("privacy.epsilon made this run's noise for its number of rounds; give privacy.noise instead")
    done, exchange = int(told["round"]), Alone()
    config.federation.rounds = config.values["federation"]["rounds"] = done + rounds
    task = make_task(config, exchange.device)
    federation = make_federation(config, task, exchange, told.get("cost", ()))
    rows = _rows(path, told)
    server, _ = checkpoint.load(path, federation.method.init_server(task), None)
    server = adapt(federation, server, rows)
    _fill(federation.store, rows, old)
    out.mkdir(parents=True, exist_ok=True)
    about = {"cost": federation.plan.cost.constants, "width": told.get("width", 0), "config": origin(config)}
    write_config(out, config.values)
    checkpoint.save(out / "checkpoints", done, server, federation.store, exchange, about)
    files.write_record(out / "clients.json", clients(task, called(config, task)))
    if (folder / LEDGER).exists():
        files.write_record(out / LEDGER, files.read_record(folder / LEDGER))
    _copy_metrics(folder, out, done, Evaluator(federation, config.evaluation.samples)(server, done).metrics)
    return config


def _rows(path: Path, told: dict[str, Any]) -> dict[str, Tensor]:
    """Every client's memory, in the order of the shards."""
    shards = [load_tensors(path / name) for name in sorted(told["files"]) if name != SERVER]
    return {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]} if shards else {}


def _fill(store: ClientStore, rows: dict[str, Tensor], old: dict[int, int]) -> None:
    """Rows under their new numbers."""
    if store.empty:
        return
    new = {before: after for after, before in old.items()}
    kept = torch.tensor([one in new for one in rows["ids"].tolist()])
    found = {name: leaf[kept] for name, leaf in rows.items()}
    found["ids"] = torch.tensor([new[one] for one in found["ids"].tolist()])
    store.fill(found)


def _copy_metrics(folder: Path, out: Path, done: int, now: dict[str, float]) -> None:
    """The records so far; the last one tells how good the model is now."""
    records = [record for record in metrics.read_metrics(folder / "metrics.jsonl") if record["round"] <= done]
    if records:
        records[-1] |= now
    files.write_text(out / "metrics.jsonl", "".join(metrics.line(record) for record in records))


def changed(config: Config, without: Sequence[int]) -> Config:
    """The same configuration with other clients away."""
    federation = replace(config.federation, without=sorted(without))
    values = {**config.values, "federation": {**config.values["federation"], "without": sorted(without)}}
    return replace(config, federation=federation, values=values)
