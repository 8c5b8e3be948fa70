"""What a run can be told about its privacy: whom it protects, how much it may spend, what is clipped to what norm."""

from dataclasses import dataclass, field

from fedddp.core.check import check
from fedddp.exchange.ranges import EVERY
from fedddp.rounds.accounting import ACCOUNTANTS, available

LEVELS = ("none", "client", "part", "example")
ON_CHANGES = ("client", "part")  # levels whose noise is on the sum of changes
SAMPLINGS = ("fixed", "poisson")
RANDOM = ("seed", "system")
GRADIENT = "gradient"  # the name of what is clipped at the level of examples


@dataclass
class PrivacySettings:
    level: str = "none"  # whom it protects: none, client, example, or part (an example, in its part's change)
    epsilon: float = 0.0  # what a run may spend; without noise, the noise follows from it; 0: as noise says
    delta: float = 1e-5  # the probability of spending more, in (0, 1)
    noise: float = 0.0  # deviation of the noise in units of the clip; 0: as epsilon says
    clip: dict[str, float] = field(default_factory=dict)  # norm of a client's change by field, or all; gradient=...
    quantile: float = 0.0  # share of the clients whose changes the clip follows, in (0, 1) (adaptive); 0: it stays
    sampling: str = "fixed"  # fixed (a fixed number of clients; epochs of examples) or poisson (each by itself)
    accountant: str = "rdp"  # rdp (Rényi) or pld (privacy loss distributions, tighter and slower)
    randomness: str = "seed"  # of the noise: seed (the run's, for simulation) or system (bits do not repeat)

    def __post_init__(self) -> None:
        check("privacy.level", self.level, self.level in LEVELS, " or ".join(LEVELS))
        check("privacy.epsilon", self.epsilon, self.epsilon >= 0, "above 0, or 0 for what the noise gives")
        check("privacy.noise", self.noise, self.noise >= 0, "above 0, or 0 for what epsilon gives")
        check("privacy.delta", self.delta, 0 < self.delta < 1, "in (0, 1)")
        check("privacy.quantile", self.quantile, 0 <= self.quantile < 1, "in (0, 1), or 0 for a clip that stays")
        check("privacy.sampling", self.sampling, self.sampling in SAMPLINGS, " or ".join(SAMPLINGS))
        check("privacy.accountant", self.accountant, self.accountant in ACCOUNTANTS, " or ".join(ACCOUNTANTS))
        check("privacy.randomness", self.randomness, self.randomness in RANDOM, " or ".join(RANDOM))
        for name, bound in self.clip.items():
            check(f"privacy.clip.{name}", bound, bound > 0, "above 0")
        if self.level == "none":
            return
        if missing := available():
            raise ValueError(f"privacy.level={self.level}: {missing}")
        if not self.epsilon and not self.noise:
            raise ValueError(f"privacy.level={self.level}: give privacy.epsilon=... or privacy.noise=...")
        if not self.clip or (self.level == "example" and GRADIENT not in self.clip):
            name = GRADIENT if self.level == "example" else EVERY
            raise ValueError(f"privacy.level={self.level}: needs privacy.clip.{name}=... (the largest norm)")

    @property
    def samples_clients(self) -> bool:
        """Whether each client takes part by itself."""
        return self.level == "client" and self.sampling == "poisson"

    def uses_total(self) -> bool:
        """Whether the noise of a round depends on how many there will be."""
        return self.level != "none" and not self.noise
