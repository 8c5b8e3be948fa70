"""The runs of a sweep: every point as a configuration with a folder named by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.config.schema import flatten
from fedddp.core.files import Damaged, check_text
from fedddp.core.registry import SECTIONS
from fedddp.jobs import rendezvous
from fedddp.jobs.grid import Point
from fedddp.runs.claim import home, own_folder, write_config


@dataclass(frozen=True)
class Planned:
    words: tuple[str, ...]
    config: Config
    folder: Path

    def prepare(self) -> None:
        """Freeze the configuration in the folder: what is edited while the job waits in a queue does not count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / rendezvous.NAME).write_text("")
        if not _whole(self.folder / "config.yaml"):
            self.config.kept.copy(self.folder)
            write_config(self.folder, self.config.values)


def _whole(path: Path) -> bool:
    try:
        check_text(path)
    except (FileNotFoundError, Damaged):
        return False
    return True


def place(experiment: str | None, points: Sequence[Point]) -> Path:
    """Where the runs of a sweep go if nobody says: a folder named as the experiment, or as its data."""
    config = fit(experiment, points[0] if points else [])[1]
    return Path("runs") / home(experiment, config)


def plan(experiment: str | None, points: Sequence[Point], out: Path) -> list[Planned]:
    """One run per configuration: points that differ in nothing that matters are one.

    In a grid over methods, a key that only some of them have is left out for the others; a key that no point has is
    an error.
    """
    runs: dict[str, Planned] = {}
    taken: set[str] = set()
    refused: dict[str, list[str]] = {}  # key -> words that show the mistake
    for point in points:
        words, config = fit(experiment, point)
        taken |= {_key(word) for word in words}
        refused |= {_key(word): [*filter(_is_name, point), word] for word in point if word not in words}
        if config.hash not in runs:
            runs[config.hash] = Planned(tuple(words), config, own_folder(out, config))
    for key in refused.keys() - taken:
        configuration.load(experiment, refused[key])  # raises, naming the key and the closest that exists
    return list(runs.values())


def fit(experiment: str | None, point: Point) -> tuple[Point, Config]:
    """The words of a point that its method, solver, model, data and split have, and their configuration."""
    try:
        return point, configuration.load(experiment, point)
    except ValueError:
        known = configuration.load(experiment, list(filter(_is_name, point))).values
    sections = [key for key, _ in flatten(known)]
    kept = [w for w in point if _is_name(w) or any(f"{_key(w)}.".startswith(f"{known}.") for known in sections)]
    return kept, configuration.load(experiment, kept)


def _key(word: str) -> str:
    return word.partition("=")[0]


def _is_name(word: str) -> bool:
    """method=NAME or method.name=NAME, likewise the other sections that are named."""
    return _key(word).removesuffix(".name") in SECTIONS
