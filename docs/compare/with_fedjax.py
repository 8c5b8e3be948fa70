"""FedJAX: python with_fedjax.py, with jax==0.4.25, numpy<2 and dm-haiku==0.0.12: newer ones lack what it calls."""

import time

import fedjax
import jax
import jax.numpy as jnp
import task
from fedjax.algorithms import fed_avg


def outputs(params, x):
    for weight, bias in params[:-1]:
        x = jax.nn.sigmoid(x @ weight + bias)
    weight, bias = params[-1]
    return x @ weight + bias


def loss(params, batch, rng):
    chosen = jax.nn.log_softmax(outputs(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(chosen, batch["y"][:, None], axis=1))


@jax.jit
def accuracy(params, x, y):
    return jnp.mean(outputs(params, x).argmax(1) == y)


clients, test = task.data()
examples = {
    f"client {number}": fedjax.ClientDataset({"x": x.numpy(), "y": y.numpy()}) for number, (x, y) in enumerate(clients)
}
layers = [layer for layer in task.Net() if hasattr(layer, "weight")]
initial = [(jnp.array(one.weight.detach().T), jnp.array(one.bias.detach())) for one in layers]
algorithm = fed_avg.federated_averaging(
    jax.jit(jax.grad(loss)),
    fedjax.optimizers.sgd(task.RATE),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=task.BATCH, num_epochs=1),
)
state, last = algorithm.init(initial), time.perf_counter()
for number in range(task.ROUNDS):
    keys = jax.random.split(jax.random.PRNGKey(number), len(examples))
    cohort = [(name, one, key) for (name, one), key in zip(examples.items(), keys, strict=True)]
    state, _ = algorithm.apply(state, cohort)
    found = float(accuracy(state.params, *(part.numpy() for part in test)))
    now = time.perf_counter()
    print(number + 1, round(now - last, 3), found, flush=True)
    last = now
