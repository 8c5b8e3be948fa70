"""From a configuration to the things a run is made of: task, plan, federation."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedddp.clients.autocast import Autocast
from fedddp.clients.graphs import Graphs
from fedddp.clients.oracle import Oracle
from fedddp.clients.private import guarded
from fedddp.clients.stack import Stack
from fedddp.config.loading import Config
from fedddp.config.schema import DTYPES
from fedddp.core.adapters import merges
from fedddp.core.check import first_line
from fedddp.core.data import Dataset
from fedddp.core.model import Named
from fedddp.core.objective import choose
from fedddp.core.params import Layout, freeze_batch_norm, refuse_batch_norm
from fedddp.core.progress import waiting
from fedddp.core.record import Record, cuda_recorder
from fedddp.core.rng import Streams, stream
from fedddp.core.shards import Shards
from fedddp.core.sound import Measured, refuse_outputs, refuse_unfit
from fedddp.core.task import Task
from fedddp.evaluation.parts import hold_out
from fedddp.exchange.group import Exchange
from fedddp.rounds.averaging import KEY as PARTS
from fedddp.rounds.averaging import Averaged
from fedddp.rounds.buffers import Buffered
from fedddp.rounds.compression import compressed
from fedddp.rounds.cost import Cost
from fedddp.rounds.federate import Federation
from fedddp.rounds.fit_cache import Cached
from fedddp.rounds.iterative import Descent, Iterative
from fedddp.rounds.method import Method
from fedddp.rounds.personal_layers import PersonalSettings, personalised, refuse
from fedddp.rounds.plan import Plan, default_width
from fedddp.rounds.private import ranges
from fedddp.rounds.secrecy import Secrecy, public_ranges
from fedddp.rounds.solver import PointSolver, Solver
from fedddp.rounds.stacking import Stacked
from fedddp.rounds.store import ClientStore
from fedddp.runs.private import Privacy, make_privacy

WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def make_task(config: Config, device: torch.device) -> Task:
    """Data, split and model as every rank knows them."""
    dtype = DTYPES[config.federation.dtype]
    with waiting("reading the data"):
        data = config.data.load()
    larger = "choose a larger data.test_fraction" if "test_fraction" in config.values["data"] else ""
    refuse_unfit(data, f"data={config.title('data')}", larger)
    shards = Shards.deal(config.split, data.train, config.seed_of("split"))
    shards.refuse_strange(len(data.train))
    shards = shards.virtual(config["split.virtual"])
    if config.federation.without and config["split.unseen"]:
        raise ValueError("federation.without: cannot be had with split.unseen, whose numbers would be others")
    shards = shards.without(config.federation.without)
    shards, unseen = hold_out(shards, config["split.unseen"], config.seed_of("split"))
    if config.method.pools:
        shards = shards.pooled()
    objective = choose(config["model.loss"], data)
    module, initial = make_module(config, data, objective.outputs(data), dtype)
    layout = Layout.of(module, config["model.buffers"] in ("average", "local") or bool(merges(module)))
    streams = Streams(config.seed_of("federation"), config.federation.streams)
    return Task(
        module=module.to(device),
        layout=layout,
        objective=objective,
        data=data.to(device),
        shards=shards,
        streams=streams,
        rounds=config.federation.rounds,
        initial=initial.to(device),
        state=layout.state(module).to(device, dtype) if layout.buffers else None,
        dtype=dtype,
        device=device,
        unseen=unseen,
    )


def make_module(config: Config, data: Dataset, outputs: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """The skeleton and its initial parameters, which depend on the model's seed alone."""
    with seeded(config.seed_of("model")):
        module = _build(config, data.input_shape, outputs)
    buffers = config["model.buffers"]
    if buffers == "refuse":
        refuse_batch_norm(module)
    if buffers == "freeze":
        freeze_batch_norm(module)
    if data.named:
        module.register_forward_pre_hook(Named(data.named), with_kwargs=True)
    module = module.to(dtype)
    layout = Layout.of(module)
    if layout.numel == 0:
        raise ValueError("model: has no parameters to train")
    return module, layout.flatten(dict(module.named_parameters()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What a model draws inside follows from the model's seed alone: its start, and what of it is frozen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=stream(seed, "model"))))
        yield


def _build(config: Config, shape: tuple[int, ...], outputs: int) -> nn.Module:
    name = f"model={config.title('model')}"
    try:
        with Measured(name):
            return config.model.build(shape, outputs)
    except (MemoryError, RuntimeError) as error:  # sizes that do not fit together, or not into memory
        raise ValueError(f"{name}: cannot be built for inputs {list(shape)}: {first_line(error)}") from error


def make_federation(
    config: Config,
    task: Task,
    exchange: Exchange,
    measured: Sequence[float] = (),
    place: str = "",
    privacy: Privacy | None = None,
) -> Federation:
    """`measured`: the constants of cost that an earlier part of the run found; homes are balanced by them.

    `place`: where a device finds its examples, if not as configured. `privacy`: as it was made already.
    """
    refuse_outputs(task, config.title("model"))
    plan = make_plan(config, task, exchange.world_size, measured)
    ids = plan.at_home(exchange.rank)
    task = place_data(task, ids, place or config["data.place"])
    task = replace(task, record=make_recorder(config, task))
    method = make_method(config, task)
    privacy = privacy or make_privacy(config, task, exchange)
    if privacy is not None and task.state is not None:
        raise ValueError("privacy: statistics of a model's buffers are not accounted for; choose model.buffers=freeze")
    seed, guard = config.seed_of("federation"), None
    if privacy is not None:
        if config["method.personal"]:
            raise ValueError("method.personal: not with privacy, which is about gradients of the whole model")
        method, seed, guard = privacy.wrapped(config, method, task), privacy.seed(seed), privacy.guard
    return Federation(
        task=task,
        method=method,
        local=make_local(config),
        exchange=exchange,
        plan=plan,
        store=ClientStore.make(ids, lambda n: method.init_clients(n, task, config.local), config.federation.rows),
        oracle=make_oracle(config, task),
        graphs=None if task.record is None else Graphs(task.record),
        cohort=guarded(guard),
        poisson=config.privacy.samples_clients,
        silent=privacy is not None,
        seed=seed,
        participation=config.federation.participation,
        secrecy=make_secrecy(config, task, plan, ranges(method, task)),
        ends=config.evaluation.clients != "none",
        skip_bad=config.federation.on_bad_client == "skip",
        waits=config.federation.rows,
    )


def make_method(config: Config, task: Task) -> Method[Any, Any, Any]:
    """The method; with less to send, and with layers of each client's own, where that is wanted."""
    name = config.title("method")
    wanted = PersonalSettings(**{own.name: config[f"method.{own.name}"] for own in fields(PersonalSettings)})
    refuse(config.method, name, config.local, wanted)
    method = personalised(compressed(_averaged(config), config.exchange, name), wanted, task)
    if merges(task.module):
        return Stacked(method, task)
    return method if task.state is None else Buffered(method, config["model.buffers"] == "local")


def _averaged(config: Config) -> Method[Any, Any, Any]:
    """The method, or one whose clients average over their parts; where parts are private, that is done with noise."""
    parts, name = config.federation.parts, config.title("method")
    if parts == 1:
        return config.method
    if not (config.method.by_solver and config.local.gradients()):
        raise ValueError(
            f"{PARTS}={parts}: not for method={name} with local={config.title('local')}, which look at examples other "
            "than by gradients of batches; use fedavg, pvi, bayes_admm, ... with sgd, adam or ivon"
        )
    return config.method if config.privacy.level == "part" else Averaged(config.method, parts)


def make_secrecy(config: Config, task: Task, plan: Plan, own: dict[str, float]) -> Secrecy:
    """`own`: ranges that are known without being set."""
    settings = config.exchange
    public = public_ranges(settings.secure, settings.range | own, settings.gathered, task, plan.width)
    return Secrecy(settings.secure, public)


def place_data(task: Task, ids: Tensor, place: str) -> Task:
    """With the examples of the clients `ids` on the device, or on the host."""
    index = torch.cat([task.shards.of_client(client) for client in ids.tolist()] or [torch.zeros(0, dtype=torch.long)])
    return replace(task, data=task.data.placed(index, task.device, place))


def make_local(config: Config) -> Solver:
    """The solver; one that shares its first fits, if asked to."""
    folder = config.federation.fits
    local = config.local
    shares = folder and config.method.needs is PointSolver
    return Cached(local, Path(folder)) if shares and isinstance(local, Descent) else local


def make_oracle(config: Config, task: Task) -> Oracle:
    """How gradients are made: in bfloat16 if asked to."""
    settings, micro, again = config.federation, micro_batch(config), _recompute(config)
    kind = Autocast if settings.autocast == "bf16" else Oracle
    if micro and task.state is not None and not merges(task.module):
        raise ValueError(
            f"local.micro_batch={micro}: parts of a batch have other running statistics than the whole; "
            "choose model.buffers=freeze, or local.micro_batch=0"
        )
    if again and task.state is not None and not merges(task.module):
        raise ValueError(
            "local.recompute=true: what is computed twice would count twice in running statistics; "
            "choose model.buffers=freeze, or local.recompute=false"
        )
    return kind(task.module, task.layout, config.method.objective(task.objective), settings.vectorise, micro, again)


def micro_batch(config: Config) -> int:
    return config.local.micro_batch if isinstance(config.local, Iterative) else 0


def _recompute(config: Config) -> bool:
    return isinstance(config.local, Iterative) and config.local.recompute


def _bounds_memory(config: Config) -> bool:
    """Whether steps are made in less memory: by plain autograd, then, one client after the other."""
    return bool(micro_batch(config)) or _recompute(config)


def _by_hand(config: Config) -> bool:
    """Whether gradients may be made by hand, of models for which that is written."""
    return config.federation.vectorise and config.federation.autocast != "bf16" and not _bounds_memory(config)


def make_recorder(config: Config, task: Task) -> Record | None:
    """How clients' steps and a server's own are recorded, if they are asked to be."""
    if not config.federation.graphs:
        return None
    if task.device.type != "cuda":
        raise ValueError("federation.graphs=true: needs a GPU; leave it false here")
    if _bounds_memory(config):
        raise ValueError("federation.graphs=true: not with local.micro_batch or local.recompute")
    if task.state is not None:
        raise ValueError("federation.graphs=true: not with model.buffers=average or local; use freeze")
    if task.data.named:
        raise ValueError("federation.graphs=true: batches of texts have many lengths, which no recording has")
    if task.data.streamed:
        raise ValueError("federation.graphs=true: a recorded step reads its batch on the GPU; set data.place=device")
    return cuda_recorder()


def make_plan(config: Config, task: Task, ranks: int, measured: Sequence[float] = ()) -> Plan:
    width, cost = cohort_width(config, task), Cost.of(config.local, task.layout.numel, measured)
    return Plan.make(task.num_examples, width, config.federation.participation, ranks, cost)


def cohort_width(config: Config, task: Task) -> int:
    """As configured; as measured, for auto; or by the rule."""
    width = config.federation.cohort_width
    if width == "auto" and config.federation.measured_width:
        return config.federation.measured_width
    if isinstance(width, int) and width > 0:
        return width
    assert width != "auto", "a run measures before it plans"
    if any(not own.requires_grad for own in task.module.parameters()):
        return 1  # a frozen body is large, has no room for several clients' activations, and may not know vmap
    return default_width(task.layout.numel, _convolutional(config, task), _active(config, task), task.device.type)


def _convolutional(config: Config, task: Task) -> bool:
    """Whether the model has convolutions other than narrow ones, which go by hand as one of all clients in groups."""
    if not any(isinstance(module, nn.modules.conv._ConvNd) for module in task.module.modules()):
        return False
    stack = Stack.of(task.module, task.layout, task.objective) if _by_hand(config) else None
    return stack is None or not stack.narrow


def measure_width(config: Config, task: Task) -> int:
    """The cohort width with the quickest gradient per client, on this machine and now.

    One client after the other competes with several by vmap, or where the model is a stack of layers in groups.
    """
    oracle = make_oracle(config, task)
    size = min(config.local.passes()[1], len(task.data.train))
    costs = {}
    for width in (w for w in WIDTHS if w == 1 or w <= _active(config, task) // 2):
        theta = task.initial.repeat(width, 1)
        examples = task.data.train.take(torch.arange(size).repeat(width))
        examples = examples.to(task.device)
        inputs = task.data.prepare(examples.inputs, task.dtype)
        stacked = [t.view(width, size, *t.shape[1:]) for t in (inputs, examples.targets)]
        costs[width] = min(_seconds(oracle, theta, *stacked) for _ in range(4)) / width
    return min(costs, key=lambda width: costs[width])


def _active(config: Config, task: Task) -> int:
    return max(1, round(config.federation.participation * task.num_clients))


def _seconds(oracle: Oracle, theta: Tensor, inputs: Tensor, targets: Tensor) -> float:
    start = time.perf_counter()
    grad, _ = oracle(theta, inputs, targets)
    theta.sub_(grad, alpha=1e-6)
    float(theta[0, 0])  # a device has done all that was asked of it before when a number is back
    return time.perf_counter() - start
