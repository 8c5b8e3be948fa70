"""What with_nvflare.py runs for each client."""

import nvflare.client as flare
import task
import torch

flare.init()
site = int(flare.get_site_name().rpartition("-")[2]) - 1
clients, test = task.data()
model = task.Net()
while flare.is_running():
    received = flare.receive()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
    if site == 0:
        print("accuracy", received.current_round, task.accuracy(model, *test), flush=True)
    task.train(model, *clients[site])
    params = {name: value.clone() for name, value in model.state_dict().items()}
    flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": len(clients[site][0])}))
