"""Flower: python with_flower.py ACTORS"""

import sys
import time

import task
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task.data()[0][context.node_config["partition-id"]]
    task.train(model, x, y)
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(told), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    test, last = task.data()[1], [time.perf_counter()]

    def watch(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = task.Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        found = task.accuracy(model, *test)
        now = time.perf_counter()
        print(number, round(now - last[0], 3), found, flush=True)
        last[0] = now
        return MetricRecord({"accuracy": found})

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=100)
    initial = ArrayRecord(task.Net().state_dict())
    strategy.start(grid, initial, num_rounds=task.ROUNDS, evaluate_fn=watch, train_config=ConfigRecord())


if __name__ == "__main__":
    actors = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": int(sys.argv[1])}}
    run_simulation(server_app, client_app, num_supernodes=100, backend_config=actors)
