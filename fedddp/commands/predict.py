"""predictions of a finished run for inputs of your own, with uncertainties"""

import argparse
from pathlib import Path
from typing import Any

from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument(
        "inputs", type=Path, metavar="INPUT.npz", help="`inputs` [N, ...] as the run's data stores them"
    )
    parser.add_argument("--trust", action="store_true", help="import the run's own model, if it is not built in")
    parser.add_argument("--out", type=Path, required=True, metavar="P.npz")
    parser.add_argument("--samples", type=int, default=32, help="of the posterior; 0: its mean alone (default: 32)")
    parser.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="also sets of classes that hold the true one so often (a run with evaluation.calibration)",
    )


def call(arguments: argparse.Namespace) -> int:
    import numpy as np
    import torch

    from fedddp.runs.predict import load, predict, with_sets

    if arguments.samples < 0:
        raise ValueError(f"--samples {arguments.samples}: must be at least 0")
    with waiting("reading the run"):
        trained = load(arguments.run, arguments.trust)
    try:
        with np.load(arguments.inputs) as file:
            stored = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{arguments.inputs}: not a readable .npz file: {error}") from error
    if "inputs" not in stored and len(stored) != 1:
        raise ValueError(f"{arguments.inputs}: holds {', '.join(stored) or 'nothing'}; name the array `inputs`")
    inputs = stored.get("inputs", next(iter(stored.values())))
    given, samples, coverage = torch.from_numpy(inputs), arguments.samples, arguments.coverage
    with waiting(f"{len(given)} predictions"):
        if coverage is None:
            found = predict(trained, given, samples)
        else:
            found = with_sets(trained, arguments.run, given, samples, coverage)
    if coverage is not None:
        size = float(found["sets"].sum(1).double().mean())
        print(f"sets of {size:.2f} classes on average, for a coverage of {coverage:g}")
    arrays: dict[str, Any] = {name: value.numpy() for name, value in found.items()}
    np.savez(arguments.out, **arrays)
    print(f"{len(inputs)} predictions: {', '.join(found)} in {arguments.out}")
    return 0
