"""The workloads: Fashion-MNIST over unequal clients, one local epoch."""

from dataclasses import dataclass

COMMON = [
    "data.name=fashion_mnist",
    "data.pixels=0-1",
    "split.name=dirichlet",
    "split.alpha=0.5",
    "split.size_alpha=1.0",
    "split.minimum=8",
    "local.epochs=1",
]
MLP = [
    "split.clients=100",
    "model.name=mlp",
    "model.hidden=[200,100]",
    "model.activation=sigmoid",
    "local.batch_size=32",
]
LOGISTIC = ["split.clients=1000", "model.name=logistic", "local.batch_size=20"]
FEW = ["split.clients=20", "local.batch_size=32"]


@dataclass(frozen=True)
class Workload:
    about: str
    words: tuple[str, ...]
    wanted: str  # what the design asks for, beside the plain loop and the arithmetic alone

    @property
    def settings(self) -> list[str]:
        return [*COMMON, *self.words]


def _fedavg(*words: str) -> tuple[str, ...]:
    return ("method=fedavg", *words)


WORKLOADS = {
    "a_sgd": Workload("100 clients, MLP 178k, batch 32, SGD", _fedavg(*MLP, "local.lr=0.5"), "1.4x, arithmetic 1.25x"),
    "a_adam": Workload(
        "100 clients, MLP 178k, batch 32, Adam", _fedavg(*MLP, "local.name=adam", "local.lr=0.001"), "1.7x"
    ),
    "a_ivon": Workload(
        "100 clients, MLP 178k, batch 32, IVON",
        (
            "method=bayes_admm",
            *MLP,
            "method.rho=1",
            "method.damping=0.001",
            "method.temperature=0.001",
            "method.delta=0.1",
            "local.lr=0.01",
            "local.hess_init=0.01",
            "local.beta2=0.9999",
            "local.keep=false",  # the momentum, as ivon-opt starts from none
        ),
        "2x",
    ),
    "b_sgd": Workload("1,000 clients, logistic regression, batch 20, SGD", _fedavg(*LOGISTIC, "local.lr=0.1"), "8x"),
    "lenet": Workload(
        "20 clients, LeNet, a fifth of the data, batch 32, SGD",
        _fedavg(*FEW, "data.fraction=0.2", "model.name=lenet", "local.lr=0.1"),
        "1x",
    ),
    "zenke": Workload(
        "20 clients, the CNN of Zenke et al., 2 % of CIFAR-10, batch 32, SGD",
        _fedavg(*FEW, "data.name=cifar10", "data.fraction=0.02", "model.name=zenke_cnn", "local.lr=0.05"),
        "1x",
    ),
}
