"""What an earlier report has read of the runs below a folder, in one file of arrays and texts."""

import json
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedddp.core.files import whole

Array = NDArray[np.float64]
Entry = tuple[dict[str, Any], Array]  # a run: what is not an array, and the array

INDEX = ".report.safetensors"
VERSION = "5"  # of the layout


def load(folder: Path) -> dict[str, Entry]:
    """What an earlier report kept; nothing if there is none, or if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / INDEX, framework="numpy") as file:
            about = file.metadata()
            if about.pop("version", None) != VERSION:
                return {}
            digest = about.pop("digest", None)
            tensors = {name: file.get_tensor(name) for name in about}
    except (OSError, SafetensorError):
        return {}
    if digest != _digest(about, tensors):
        return {}
    return {name: (json.loads(text), tensors[name]) for name, text in about.items()}


def _digest(about: dict[str, str], tensors: dict[str, Array]) -> str:
    found = blake2b(digest_size=8)
    for name in sorted(about):
        found.update(f"{name}\n{about[name]}\n{tensors[name].shape}\n".encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()


def save(folder: Path, entries: dict[str, Entry]) -> None:
    """A folder that we may not write to is simply read again the next time."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    about = {name: json.dumps(entry[0]) for name, entry in entries.items()}
    tensors = {name: entry[1] for name, entry in entries.items()}
    head = {"version": VERSION, "digest": _digest(about, tensors)}
    with suppress(OSError, SafetensorError), whole(folder / INDEX) as temporary:
        save_file(tensors, temporary, {**about, **head})
