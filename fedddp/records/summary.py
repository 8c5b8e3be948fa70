"""summary.json: what a run ended with."""

from pathlib import Path
from typing import Any

from fedddp.core.files import Damaged, read_record
from fedddp.records.metrics import Say, lacking, read_metrics, spans
from fedddp.records.records import last_three
from fedddp.records.table import SUMMARIES

PLAIN = ("accuracy", "nll", "ece", "brier", "rmse", "ood_auroc")
KINDS = (
    "",
    "averaged_",
    "personal_",
    "personal_averaged_",
)  # of models; averaged: over a posterior, where there is one
TEXT = ("macro_f1", "micro_f1", "precision", "recall_at_5", "perplexity")
BY_CLIENT = tuple(
    f"{group}_{kind}{name}_{what}"
    for group in ("clients", "unseen")
    for kind in KINDS
    for name in ("accuracy", "nll", "ece")
    for what in SUMMARIES
)
WORSE = tuple(f"{kind}worse_than_alone" for kind in KINDS)
METRICS = (*PLAIN, *TEXT, *(f"averaged_{name}" for name in PLAIN), *BY_CLIENT, *WORSE)
TOLD = (*METRICS, "last_3_rounds", "seconds", "bytes", "bytes_up", "bytes_down", "bytes_clients", "rounds_lost")


def from_metrics(folder: Path, rounds: int, checksum: str, say: Say) -> dict[str, Any]:
    """What the rounds' records tell of the whole run.

    Where records were lost to damage, an earlier summary of the same run knows more; without one, `rounds_lost` says
    what the numbers are without.
    """
    records = read_metrics(folder / "metrics.jsonl", lambda _: None)  # whoever opened it for writing has said so
    lost = lacking(records, rounds)
    if not lost:
        return told(records)
    before = _earlier(folder / "summary.json", say)
    if before.get("checksum") == checksum and "seconds" in before:
        return {key: before[key] for key in TOLD if key in before}
    say(f"{folder / 'summary.json'}: is made without round {spans(lost)}, lost from metrics.jsonl")
    return told(records, complete=rounds not in lost) | {"rounds_lost": lost}


def _earlier(path: Path, say: Say) -> dict[str, Any]:
    try:
        return read_record(path)
    except FileNotFoundError:
        return {}
    except Damaged as error:
        say(f"{error}; it is made anew")
        return {}


def told(records: list[dict[str, Any]], complete: bool = True) -> dict[str, Any]:
    last: dict[str, Any] = records[-1] if records and complete else {}
    return {
        **{name: last[name] for name in METRICS if name in last},
        "last_3_rounds": last_three(records, METRICS) if complete else {},
        "seconds": sum(r["seconds"] for r in records),
        "bytes": sum(r["bytes"] for r in records),
        **_communication(records),
    }


def _communication(records: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes per client and round, up and down, in the mean over rounds; and all that clients sent and were sent."""
    up, down = ([r[f"bytes_{way}"] for r in records] for way in ("up", "down"))
    rounds = max(len(records), 1)
    everything = sum(r["active"] * (r["bytes_up"] + r["bytes_down"]) for r in records)
    return {"bytes_up": sum(up) / rounds, "bytes_down": sum(down) / rounds, "bytes_clients": everything}
