"""fedddp: python with_fedddp.py RANKS"""

import sys

import task

import fedddp

if __name__ == "__main__":
    clients, test = task.data()
    named = {f"client {number}": pair for number, pair in enumerate(clients)}
    settings = {"local.lr": task.RATE, "local.batch_size": task.BATCH, "local.epochs": 1, "evaluation.every": 1}
    run = fedddp.run(
        model=task.Net(),
        clients=named,
        test=test,
        method="fedavg",
        rounds=task.ROUNDS,
        settings=settings,
        ranks=int(sys.argv[1]),
        resume=False,
    )
    print(run.metrics[["round", "seconds", "accuracy"]])
