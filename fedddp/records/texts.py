"""What a run is, in words: TensorBoard's page of texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from fedddp.config import asked

MOST = 50  # clients, and classes, in a table


def texts(values: Mapping[str, Any], clients: Mapping[str, Any]) -> dict[str, str]:
    """As Markdown: the command that repeats the run, its configuration, and who has what."""
    plain = {key: value for key, value in values.items() if key != asked.NAME}
    return {
        "command": _code(asked.command(values)),
        "configuration": _code(OmegaConf.to_yaml(OmegaConf.create(plain))),
        "split": _split(clients),
    }


def _split(clients: Mapping[str, Any]) -> str:
    """A row for each client of `clients.json`: its name, its examples, and of which classes."""
    names, examples, labels = clients["names"], clients["examples"], clients["labels"]
    counts = clients["counts"] if len(labels) <= MOST else []
    head = ["client", "examples", *(labels if counts else [])]
    rows = [[names[i], examples[i], *(counts[i] if counts else [])] for i in range(min(MOST, len(names)))]
    more = f"\n\n{len(names) - MOST} more clients" if len(names) > MOST else ""
    return "\n".join(map(_row, [head, ["---"] * len(head), *rows])) + more


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
