"""What a run leaves at its end: the last checkpoint, its final state as plain tensors, and the summary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedddp.core import files, tree
from fedddp.evaluation.evaluate import Evaluator
from fedddp.evaluation.posterior import export
from fedddp.records import summary
from fedddp.rounds import checkpoint
from fedddp.rounds.federate import checksum
from fedddp.runs.checkpoints import Checkpoints
from fedddp.runs.private import Ledger


def finish(
    checkpoints: Checkpoints,
    folder: Path,
    evaluator: Evaluator,
    server: Any,
    rounds: int,
    ledger: Ledger | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The summary, which is in the folder once everything else is; no client rows that nobody needs."""
    federation, config, exchange = evaluator.federation, checkpoints.config, checkpoints.exchange
    keep = config.checkpoint.keep_clients or rounds < federation.task.rounds
    checkpoints.end(rounds, server, federation, keep)
    result = checksum(server)
    recorded = summary.told([])
    if exchange.rank == 0:
        recorded = summary.from_metrics(folder, rounds, result, say)
    ended = {
        "method": config.title("method"),
        "rounds": rounds,
        **recorded,
        **(ledger.privacy.summary(ledger.rounds) if ledger is not None else {}),
        "world_size": exchange.world_size,
        "clients": federation.task.num_clients,
        "parameters": federation.task.layout.numel,
        "cohort_width": federation.plan.width,
        "precision": config.federation.precision,
        "checksum": result,
        "config_hash": config.hash,
        "split_hash": federation.task.shards.digest(),
        **checkpoint.fingerprint(),
    }
    with checkpoint.everywhere(exchange, "the results"):
        if exchange.rank == 0:
            if not keep:
                checkpoints.drop_others(rounds)
            ended["files"] = _export(folder, evaluator, server)
            files.write_record(folder / "summary.json", ended)
    return ended


def _export(folder: Path, evaluator: Evaluator, server: Any) -> dict[str, str]:
    """The final state for others to read; the digest of each file."""
    state, posterior = (folder / f"{name}.safetensors" for name in ("server", "posterior"))
    with files.whole(state) as temporary:
        checkpoint.save_tensors(temporary, tree.leaves(server))
    lam = evaluator.federation.method.posterior(server)
    with files.whole(posterior) as temporary:
        export(temporary, evaluator.federation.task, evaluator.point(server), lam)
    return {path.name: checkpoint.digest(path) for path in (state, posterior)}
