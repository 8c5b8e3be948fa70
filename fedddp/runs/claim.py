"""A run's folder: new, or with a run of this very configuration; and its config.yaml, which damage shows in."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedddp.config.loading import Config, read, stem
from fedddp.config.schema import flatten, relevant
from fedddp.core.files import Damaged, check_text, write_sealed_text
from fedddp.rounds import checkpoint

NAME = "config.yaml"
ROUNDS = "federation.rounds"
OURS = (
    NAME,
    "metrics.jsonl",
    "client_metrics.jsonl",
    "calibration.json",
    "summary.json",
    "pictures.json",
    "clients.json",
    "traceback.txt",
    "[a-z]*.safetensors",
)


def claim(folder: Path, config: Config, resume: bool, say: Callable[[str], None]) -> None:
    """Make the folder ours, by whoever holds its lock; a ValueError says why it cannot be."""
    path = folder / NAME
    if path.exists():
        try:
            theirs = read_config(path)
        except Damaged as error:
            if not resume:
                raise ValueError(f"{error}; add --resume to go on with the run") from error
            say(f"{error}; it is written anew, and the checkpoints tell whether it is this run")
        else:
            _same(folder, config, theirs, resume)
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    config.kept.copy(folder, anew=_untouched(folder))  # what an earlier attempt copied may be another file
    (folder / "traceback.txt").unlink(missing_ok=True)
    write_config(folder, config.values)


def but_for_rounds(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration's relevant values a run of more rounds shares."""
    return {key: value for key, value in values.items() if key != ROUNDS}


def origin(config: Config) -> str:
    """A hash of the configuration but for the number of rounds: what a checkpoint can be taken for."""
    return blake2b(json.dumps(but_for_rounds(config.relevant), sort_keys=True).encode(), digest_size=6).hexdigest()


def default_folder(parent: Path, config: Config, resume: bool) -> Path:
    """Named by the configuration; on resume, that of the same run with another number of rounds, if there is one."""
    own = own_folder(parent, config)
    found = find(parent, config) if resume and not own.exists() else None
    return found or own


def home(experiment: str | None, config: Config) -> str:
    """What the folder of an experiment's runs is called: as the experiment, or without one as the data."""
    if experiment:
        return stem(experiment)
    file = config.values["data"].get("file") or config.values["data"].get("path")
    return Path(str(file)).stem if file else config.title("data")


def own_folder(parent: Path, config: Config) -> Path:
    """What the configuration is named; or how it was named before, by somebody who wrote the same in other words."""
    own = parent / config.folder_name
    if own.exists():
        return own
    return next(iter(sorted(parent.glob(f"{config.title('method')}-*{config.hash}"))), own)


def find(parent: Path, config: Config) -> Path | None:
    """The folder of the same run with another number of rounds: of those there are, the one that came furthest."""
    found = []
    for path in parent.glob(f"{config.title('method')}-*/{NAME}"):
        with suppress(ValueError, OSError):
            if but_for_rounds(relevant(read_config(path))) == but_for_rounds(config.relevant):
                done = _done(path.parent).get("round", 0)
                if done <= config.federation.rounds:
                    found.append((done, path.parent))
    return max(found)[1] if found else None


def _done(folder: Path) -> dict[str, Any]:
    """What the newest whole checkpoint says of itself; nothing if there is none."""
    newest = checkpoint.newest(folder / "checkpoints", lambda _: None)
    return checkpoint.about(newest) if newest else {}


def _untouched(folder: Path) -> bool:
    """Whether a run here ended before its first round: then the corrected command may have the folder."""
    metrics = folder / "metrics.jsonl"
    begun = any((folder / "checkpoints").glob("round-*")) or (metrics.is_file() and metrics.stat().st_size > 0)
    return not begun and not (folder / "summary.json").exists()


def _extend(folder: Path, config: Config, theirs: int) -> None:
    """Whether the run there can go on to another number of rounds, bit for bit as if it had been started with it."""
    rounds, told = config.federation.rounds, _done(folder)
    if config.privacy.uses_total():
        raise ValueError(
            f"{folder} holds this run with {ROUNDS}={theirs}, and privacy.epsilon makes its noise for that many: give "
            "privacy.noise to be free to go on; for this one choose another --out and begin anew"
        )
    if config.local.uses_total() or config.method.uses_total():
        what = "method" if config.method.uses_total() else "local"
        raise ValueError(
            f"{folder} holds this run with {ROUNDS}={theirs}, and what {what}={config.title(what)} does in a round "
            f"depends on how many there will be: a run of {rounds} is another one from the start; choose another --out"
        )
    if told.get("round", 0) > rounds:
        raise ValueError(
            f"{folder} has {told['round']} rounds already, more than {ROUNDS}={rounds}; choose another --out"
        )
    if told.get("dropped") and told["round"] < rounds:
        raise ValueError(
            f"{folder} is finished after {told['round']} rounds, and what its clients remember was dropped then: it "
            "cannot go on. checkpoint.keep_clients=true keeps it; for this one choose another --out and begin anew"
        )


def _same(folder: Path, config: Config, theirs: Mapping[str, Any], resume: bool) -> None:
    mine, other = dict(flatten(config.values)), dict(flatten(theirs))
    if _untouched(folder):
        return
    if relevant(theirs) != config.relevant and but_for_rounds(relevant(theirs)) == but_for_rounds(config.relevant):
        _extend(folder, config, other[ROUNDS])
        if not resume:
            raise ValueError(
                f"{folder} holds this run with {ROUNDS}={other[ROUNDS]}: add --resume to go on with it to "
                f"{config.federation.rounds}, or choose another --out"
            )
    elif relevant(theirs) != config.relevant:
        keys = [k for k in sorted({*mine, *other}) if mine.get(k) != other.get(k) and not k.startswith("asked.")]
        changed = ", ".join(f"{k}={other.get(k)} (now {mine.get(k)})" for k in keys[:4])
        raise ValueError(
            f"{folder} holds a run of another configuration: {changed} (in its {NAME}); choose another --out"
        )
    if not resume:
        raise ValueError(f"{folder} holds this run already: add --resume to go on, or choose another --out")
    measured = other.get("federation.measured_width", 0)
    config.federation.measured_width = measured
    config.values["federation"]["measured_width"] = measured


def _tidy(folder: Path) -> None:
    """Remove what a kill in the middle of a write has left."""
    for name in OURS:
        for left in folder.glob(f".{name}.*"):
            if re.fullmatch(r"\d+", left.suffix[1:]):
                left.unlink(missing_ok=True)


def write_config(folder: Path, values: Mapping[str, Any]) -> None:
    write_sealed_text(folder / NAME, OmegaConf.to_yaml(OmegaConf.create(dict(values))))


def read_config(path: Path) -> dict[str, Any]:
    """A run's config.yaml; Damaged if it is not what the run wrote."""
    try:
        check_text(path)
        return read(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; is its folder that of a run?") from error
    except ValueError as error:
        text = str(error) if isinstance(error, Damaged) else f"{path}: is damaged ({error})"
        raise Damaged(f"{text}; the command that made the run writes it anew, with --resume") from error
