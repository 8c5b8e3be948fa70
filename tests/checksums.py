"""`python -m tests.checksums > FILE`: a checksum of every method's server on small runs; before and after a refactor.

Two models, all clients and some of them, on one rank: the contract tests show that the number of ranks changes nothing.
"""

import tempfile
from pathlib import Path

import torch

from fedddp.exchange.group import Exchange
from tests.small import METHODS, MODELS, run, settings

CASES = {"all": [], "some": ["federation.participation=0.4", "local.keep=true"]}


def main() -> None:
    torch.set_num_threads(1)
    exchange = Exchange.connect(torch.device("cpu"))
    print("method", *(f"{model}-{case}" for model in MODELS for case in CASES))
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            sums = []
            for model, words in MODELS.items():
                for case, more in CASES.items():
                    done = run(settings(method, *words, *more), str(Path(folder, f"{method}-{model}-{case}")))
                    assert done is not None
                    sums.append(done["checksum"])
            print(method, *sums, flush=True)
    exchange.close()


if __name__ == "__main__":
    main()
