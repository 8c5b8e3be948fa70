"""Shakespeare's speeches: who speaks (data.task=role), or what comes next? Of the roles with most lines.

role   the classes are the roles; clients are mixtures of plays
next   each token's target is the one that follows; each role is a client

Speeches of at least `words` words of the `roles` largest roles; a share of each role's is for the test. A play's
speeches go to the clients by shares from a Dirichlet distribution, so clients differ in size and in plays. Speeches of
plays in which none of these roles speaks are the strange inputs of evaluation.ood=own. Files as for data=shakespeare.
"""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

import torch

from fedddp.core.check import check, check_count
from fedddp.core.data import Dataset
from fedddp.core.rng import stream
from fedddp.data._files import find, reading
from fedddp.data.shakespeare import REMEDY
from fedddp.data.text import Rows, Texts


class Role(NamedTuple):
    play: str
    name: str
    speeches: list[str]

    @property
    def lines(self) -> int:
        return sum(speech.count("\n") + 1 for speech in self.speeches)


class Source(Texts):
    length: int = 64
    task: str = "role"  # what is to be told: role: who speaks; or next: the next token, each role being a client
    roles: int = 20  # roles with most lines, at least 2
    words: int = 30  # fewest words of a speech, at least 1
    clients: int = 8  # clients that the plays are dealt to, at least 1
    alpha: float = 0.3  # of the Dirichlet distribution of a play over clients, above 0; small: unequal
    strange: int = 200  # most speeches of other plays

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.task", self.task, self.task in ("role", "next"), "role or next")
        check_count("data.roles", self.roles, least=2, most=1000)
        check_count("data.words", self.words)
        check_count("data.clients", self.clients, most=100_000)
        check("data.alpha", self.alpha, self.alpha > 0, "above 0")
        check_count("data.strange", self.strange, least=0)

    def load(self) -> Dataset:
        every = roles(find(self.root, ("shakespeare",), ("roles.jsonl.xz", "roles.jsonl"), REMEDY))
        ranked = sorted(every, key=lambda role: (-role.lines, role.play, role.name))
        names = list(dict.fromkeys(role.name for role in ranked))[: self.roles]
        chosen = [role for role in ranked[: self._depth(ranked, names)] if role.name in names]
        plays = {role.play for role in chosen}
        rows = [(speech, role.name, role.play) for role in chosen for speech in self._long(role)]
        texts, labels, whose = (list(column) for column in zip(*rows, strict=True))
        if self.task == "next":
            return self.made(Rows(texts, [], labels))
        others = [speech for role in every if role.play not in plays for speech in self._long(role)]
        order = torch.randperm(len(others), generator=stream(self.test_seed, "strange")).tolist()
        strange = [others[place] for place in order[: self.strange]]
        return self.made(Rows(texts, labels, self._deal(whose)), strange=strange)

    def _depth(self, ranked: list[Role], names: list[str]) -> int:
        """Roles up to the one that completes the names: a later one of the same name is somebody else's."""
        return next(n for n in range(1, len(ranked) + 1) if {role.name for role in ranked[:n]} >= set(names))

    def _long(self, role: Role) -> list[str]:
        return [speech for speech in role.speeches if len(speech.split()) >= self.words]

    def _deal(self, plays: list[str]) -> list[str]:
        """A client for each speech."""
        generator = stream(self.test_seed, "plays")
        shares = torch.distributions.Gamma(torch.tensor(self.alpha, dtype=torch.float64), torch.tensor(1.0))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
            drawn = {play: shares.sample((self.clients,)) + 1e-12 for play in sorted(set(plays))}
        picked = [int(torch.multinomial(drawn[play], 1, generator=generator)) for play in plays]
        return [f"{client:06d}" for client in picked]


def roles(path: Path) -> list[Role]:
    with reading(path, "speeches by role"):
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        found = [json.loads(line) for line in raw.splitlines() if line]
        return [Role(one["play"], one["role"], one["speeches"]) for one in found]
