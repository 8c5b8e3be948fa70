"""Privacy of a run: what it spends, what it may still spend, and what is refused beside it.

A run counts the rounds that it starts in privacy.json, before anything of a round is told: with the system's randomness
a round that is repeated after a stop is another release, and counts again; with the seed's it is the same one.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedddp.clients.private import Guard
from fedddp.config.loading import Config
from fedddp.core import rng, tree
from fedddp.core.files import Damaged, read_record, write_record
from fedddp.core.task import Task
from fedddp.exchange.discrete import KEY
from fedddp.exchange.group import Exchange
from fedddp.rounds.accounting import Accountant, of_clients, of_examples, of_parts
from fedddp.rounds.averaging import KEY as PARTS
from fedddp.rounds.method import Method
from fedddp.rounds.privacy import GRADIENT, ON_CHANGES, PrivacySettings
from fedddp.rounds.private import private

LEDGER = "privacy.json"


@dataclass(frozen=True)
class Privacy:
    settings: PrivacySettings
    accountant: Accountant
    noise: float
    secret: bytes = b""  # of the system's randomness, the same on every rank

    def epsilon(self, rounds: int) -> float:
        return self.accountant.epsilon(self.noise, rounds) if rounds else 0.0

    def affords(self, rounds: int) -> bool:
        budget = self.settings.epsilon
        return not budget or self.epsilon(rounds) <= budget

    @property
    def guard(self) -> Guard | None:
        if self.settings.level != "example":
            return None
        system = self.settings.randomness == "system"
        return Guard(self.settings.clip[GRADIENT], self.noise, self.settings.sampling == "poisson", system)

    def seed(self, own: int) -> int:
        """Of the choice of clients."""
        return rng.key("privacy", self.secret.hex()) if self.secret else own

    def wrapped(self, config: Config, method: Method[Any, Any, Any], task: Task) -> Method[Any, Any, Any]:
        count, share = task.num_clients, config.federation.participation
        expected = share * count if self.settings.samples_clients else max(1, round(share * count))
        parts = config.federation.parts if self.settings.level == "part" else 1
        return private(
            method,
            self.settings,
            config.title("method"),
            self.noise,
            expected=expected,
            seed=config.seed_of("federation"),
            secret=self.secret,
            shared=config.exchange.secure != "none" and parts == 1,
            parts=parts,
        )

    def summary(self, rounds: int) -> dict[str, Any]:
        (first, *_) = self.accountant.releases
        return {
            "epsilon": self.epsilon(rounds),
            "privacy": {
                "level": self.settings.level,
                "delta": self.settings.delta,
                "noise": self.noise,
                "rounds": rounds,
                "neighbours": f"{self.settings.level}s: {first.neighbours}",
                "sampling": self.settings.sampling,
                "accountant": self.settings.accountant,
                "randomness": self.settings.randomness,
            },
        }


def make_privacy(config: Config, task: Task, exchange: Exchange) -> Privacy | None:
    """What a configuration asks for; nothing if it asks for none."""
    settings = config.privacy
    if settings.level == "none":
        return None
    _refuse(config, task)
    accountant = _accountant(config, task)
    rounds = config.federation.rounds
    noise = settings.noise or accountant.noise(settings.epsilon, rounds)
    accountant.epsilon(noise, rounds)  # what cannot be accounted for is said now
    secret = ""
    if settings.randomness == "system":
        secret = exchange.tell(os.urandom(KEY).hex() if exchange.rank == 0 else "", 0)
    return Privacy(settings, accountant, noise, bytes.fromhex(secret))


def _accountant(config: Config, task: Task) -> Accountant:
    settings, federation = config.privacy, config.federation
    if settings.level == "client":
        share = federation.participation
        return of_clients(settings.sampling, share, task.num_clients, settings.delta, settings.accountant)
    if settings.level == "part":
        return of_parts(settings.delta, settings.accountant)
    epochs, batch_size = config.local.passes()
    parts = task.shards.divided(config.federation.parts, PARTS)
    sizes, gradients = [size for part in parts for size in part.num_examples.tolist()], config.local.gradients()
    return of_examples(settings.sampling, sizes, epochs, batch_size, gradients, settings.delta, settings.accountant)


def _refuse(config: Config, task: Task) -> None:
    """What would be told beside what is accounted for."""
    settings, federation, name = config.privacy, config.federation, config.title("method")
    where = f"privacy.level={settings.level}"
    if config.evaluation.clients != "none":
        raise ValueError(
            f"{where}: goes with evaluation.clients=none; what a client's own data says of it is not noisy"
        )
    if config.exchange.compress != "none":
        raise ValueError(f"{where}: goes with exchange.compress=none; noise cannot be compressed")
    if settings.level == "part":
        _refuse_parts(config, task)
    if settings.level == "client" and config["split.virtual"] > 1:
        raise ValueError(f"{where} with split.virtual: would protect a part of a client only; use privacy.level=part")
    if settings.level in ON_CHANGES:
        if config.exchange.secure != "none" and (settings.quantile or settings.samples_clients):
            raise ValueError(
                f"{where} with exchange.secure: shares of the noise need a clip and a number of clients "
                "that stay; use privacy.sampling=fixed and privacy.quantile=0"
            )
        if config.exchange.secure != "none" and federation.on_bad_client == "skip":
            raise ValueError(
                f"{where} with exchange.secure: a client left out takes its share of the noise along; "
                "use federation.on_bad_client=stop"
            )
        return
    if not config.method.by_solver:
        raise ValueError(
            f"{where}: not for method={name}, whose clients look at their examples other than by their "
            "solver. Use fedavg, fedprox, feddyn, pvi, bayes_admm, ..."
        )
    if not config.local.gradients():
        raise ValueError(
            f"{where}: not for local={config.title('local')}, which looks at examples other than by "
            "gradients of batches; use sgd, adam or ivon"
        )
    wrong = {
        "federation.graphs=true": federation.graphs,
        "federation.autocast=bf16": federation.autocast != "none",
        "federation.fits": bool(federation.fits),
        "federation.streams other than independent": federation.streams != "independent",
    }
    for key, on in wrong.items():
        if on:
            raise ValueError(f"{where}: cannot be had with {key}")
    _refuse_repeats(task, where)


def _refuse_parts(config: Config, task: Task) -> None:
    where, parts = "privacy.level=part", config.federation.parts
    if parts == 1 and config["split.virtual"] == 1:
        raise ValueError(f"{where}: clients have no parts; set split.virtual=... (a site for each) or {PARTS}=...")
    if config.federation.participation < 1:
        raise ValueError(f"{where}: is accounted for with federation.participation=1 only")
    if parts > 1 and config.privacy.quantile:
        raise ValueError(f"{where} with {PARTS}: the clip stays; use privacy.quantile=0")
    if parts > 1 and tree.leaves(config.local.memory(task, 1)):
        raise ValueError(f"{where} with {PARTS}: what a solver remembers of all parts is not private; local.keep=false")
    _refuse_repeats(task, where)


def _refuse_repeats(task: Task, where: str) -> None:
    if len(task.shards.order.unique()) < len(task.shards.order):
        raise ValueError(f"{where}: the split deals an example more than once, and it would be less private than said")


@dataclass
class Ledger:
    """How many rounds have spent, whether or not they came to an end."""

    privacy: Privacy
    folder: Path
    exchange: Exchange
    rounds: int = field(default=0)

    @classmethod
    def open(cls, privacy: Privacy, folder: Path, exchange: Exchange, done: int) -> "Ledger":
        """Every rank calls this; rank 0 reads."""
        failure, count = "", done
        if exchange.rank == 0:
            try:
                count = max(done, int(read_record(folder / LEDGER)["rounds"]))
            except FileNotFoundError:
                if done and privacy.secret:
                    failure = f"{folder / LEDGER}: is missing, and with it what was spent in the rounds so far"
            except (Damaged, KeyError) as error:
                failure = f"{folder / LEDGER}: what was spent cannot be read ({error}); begin anew in another --out"
        exchange.together(failure)
        return cls(privacy, folder, exchange, exchange.agree([count])[0])

    def after(self, number: int) -> int:
        """Rounds that have spent when round `number` (from 0) has started."""
        return self.rounds + 1 if self.privacy.secret else max(self.rounds, number + 1)

    def affords(self, number: int) -> bool:
        return self.privacy.affords(self.after(number))

    def start(self, number: int) -> None:
        self.rounds = self.after(number)
        if self.exchange.rank == 0:
            write_record(self.folder / LEDGER, {"rounds": self.rounds})

    @property
    def epsilon(self) -> float:
        return self.privacy.epsilon(self.rounds)
