"""Which classes the final model takes for which: counted over the test set, chunk by chunk, and added exactly."""

from typing import Any

import torch

from fedddp.core.objective import CrossEntropy, NextToken
from fedddp.evaluation.evaluate import Evaluator, add_up
from fedddp.evaluation.predictions import in_chunks, predict
from fedddp.exchange.messages import Message, Sum

MOST = 100  # classes in a matrix that anybody reads


def confusion(evaluator: Evaluator, server: Any) -> dict[str, Any]:
    """A row for each true class, a column for each predicted one; {} where there are no classes, or too many."""
    task, exchange = evaluator.federation.task, evaluator.federation.exchange
    fits = isinstance(task.objective, CrossEntropy) and not isinstance(task.objective, NextToken)
    if not fits or evaluator.judged_by_own(server) or not 1 < task.data.classes <= MOST:
        return {}
    models, size = evaluator.point(server), task.data.classes
    chunks = in_chunks(task, task.data.test)
    parts: list[Message] = [{"pairs": Sum(torch.zeros(1, size * size, dtype=torch.float64))}]
    for chunk in chunks[exchange.rank :: exchange.world_size]:
        probabilities, targets = predict(task, models, task.data.test, chunk)
        pairs = targets.long() * size + probabilities.argmax(1)
        parts.append({"pairs": Sum(torch.bincount(pairs.cpu(), minlength=size * size).double()[None])})
    total = add_up(exchange, parts, len(chunks), task.device)["pairs"].reshape(size, size)
    return {"confusion": {"counts": total.long().tolist(), "names": list(task.data.label_names)}}
