"""pfl-research: python with_pfl.py, or torchrun --nproc-per-node=2 with_pfl.py"""

import time

import task
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Net(task.Net):
    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {"accuracy": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


class Watch(TrainingProcessCallback):
    def __init__(self, test):
        self.test, self.last = test, time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        found = task.accuracy(model.pytorch_model, *self.test)
        now = time.perf_counter()
        print(central_iteration + 1, round(now - self.last, 3), found)
        self.last = now
        return False, Metrics()


clients, test = task.data()
users = list(range(len(clients)))
dataset = FederatedDataset(
    lambda user: PyTorchTensorDataset(clients[user], user_id=str(user)),
    get_user_sampler("minimize_reuse", users),
    user_id_to_weight={user: len(clients[user][0]) for user in users},
)
net = Net()
FederatedAveraging().run(
    NNAlgorithmParams(task.ROUNDS, evaluation_frequency=1000, train_cohort_size=len(users), val_cohort_size=0),
    SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
    PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=task.RATE, local_batch_size=task.BATCH),
    callbacks=[Watch(test)],
)
