"""DENSE (Zhang et al. 2022): the clients' ensemble distilled into one model on inputs that a generator makes up.

    client   theta_k <- solver on f_k from theta
    server   teacher = Σ_k N_k logits_k / Σ_k N_k,    theta <- Σ_k N_k theta_k / Σ_k N_k,    and then, `epochs` times:
             a new generator learns to make inputs x that the teacher takes for random labels y and the student not:
                 CE(teacher(x), y) - diversity · KL(teacher(x) | student(x)) where their answers differ
             theta learns KL(teacher | student) at a temperature, in `passes` over all batches made so far

No data is used. Where the server holds validation points they choose among the epochs. The published term on statistics
of BatchNorm has no meaning for models without it. Every rank does the server's work alike. The
defaults suit small networks on a processor; the published generators are larger.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check, check_count
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Message, Totals
from fedddp.local import adam, sgd
from fedddp.methods._descent import score_of
from fedddp.methods._generator import generator
from fedddp.methods._layers import outputs
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PointSolver

Logits = Callable[[Tensor], Tensor]


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    rounds: Tensor  # [] so far: names the server's random stream


class Method(method.Method[Server, Clients]):
    undivided: ClassVar[str] = "whose server learns from what the clients' whole models answer"
    epochs: int = 40  # batches to make, from 1, each by a generator of its own: many small ones teach more
    passes: int = 10  # passes over all batches made so far, after each new one, at least 1: cheap beside making one
    generator_steps: int = 30  # steps of the generator for each batch, at least 1
    batch_size: int = 64  # examples of a made-up batch, from 2 to 100,000
    latent: int = 256  # random numbers that a made-up input is made from, at least 1
    width: int = 16  # channels of the generator's last layer, at least 1
    generator_lr: float = 0.001  # learning rate of the generator's Adam, above 0
    diversity: float = 0.5  # weight of the disagreement of teacher and student in the generator's loss, at least 0
    lr: float = 0.001  # learning rate of the student's SGD, above 0; with 0.01 networks without normalisation diverge
    momentum: float = 0.9  # momentum of the student's SGD, in [0, 1)
    temperature: float = 20.0  # temperature of the distillation's softmax, above 0

    def __post_init__(self) -> None:
        for name in ("epochs", "passes", "generator_steps", "latent", "width"):
            check_count(f"method.{name}", getattr(self, name), most=100_000)
        check_count("method.batch_size", self.batch_size, least=2, most=100_000)
        check("method.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        for name in ("generator_lr", "lr", "temperature"):
            check(f"method.{name}", getattr(self, name), getattr(self, name) > 0, "above 0")
        check("method.diversity", self.diversity, self.diversity >= 0, "at least 0")

    def init_server(self, task: Task) -> Server:
        if type(task.objective) is not CrossEntropy or task.data.tokens:
            raise ValueError("method.name=dense: makes up inputs of classes; use it for classification of numbers")
        return Server(task.initial, torch.zeros((), dtype=torch.int64))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        message: Message = {"theta": Gather(fit.theta), "examples": Gather(cohort.num_examples)}
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        weight = total["examples"] / total["examples"].sum()

        here = [(w, theta) for w, theta in zip(weight, total["theta"], strict=True) if w > 0]

        def teacher(inputs: Tensor) -> Tensor:
            return torch.stack([w * outputs(task, theta, inputs) for w, theta in here]).sum(0)

        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(task.streams.key("generator", int(server.rounds), 0))
            theta = self._distil(task, teacher, weight @ total["theta"])
        return Server(theta, server.rounds + 1)

    def _distil(self, task: Task, teacher: Logits, theta: Tensor) -> Tensor:
        """The student, by validation the best it has been."""
        solver = sgd.Solver(lr=self.lr, momentum=self.momentum)
        state, best = solver.blank(1, task), theta.clone()
        made: list[tuple[Tensor, Tensor]] = []
        for _ in range(self.epochs):
            inputs = self._make_up(task, teacher, theta)
            made.append((inputs, teacher(inputs).detach()))
            for number in torch.cat([torch.randperm(len(made)) for _ in range(self.passes)]).tolist():
                solver.step(theta[None], self._slope(task, theta, *made[number])[None], state, self.lr)
            if task.data.validation is None or score_of(task, theta) > score_of(task, best):
                best = theta.clone()
        return best

    def _slope(self, task: Task, theta: Tensor, inputs: Tensor, wanted: Tensor) -> Tensor:
        """Gradient of T² KL(teacher | student)."""
        leaf = theta.detach().requires_grad_()
        student = (outputs(task, leaf, inputs) / self.temperature).log_softmax(1)
        loss = F.kl_div(student, (wanted / self.temperature).softmax(1), reduction="batchmean") * self.temperature**2
        return torch.autograd.grad(loss, leaf)[0]

    def _make_up(self, task: Task, teacher: Logits, theta: Tensor) -> Tensor:
        """The batch with the least loss on the way of a new generator, which also chooses its noise."""
        network = generator(task.data.input_shape, self.latent, self.width).to(task.device, task.dtype)
        layout, size = Layout.of(network), self.batch_size * self.latent
        noise, labels = torch.randn(size), torch.randint(task.data.classes, (self.batch_size,)).to(task.device)
        free = torch.cat([layout.flatten(dict(network.named_parameters())), noise.to(task.device, task.dtype)])
        solver = adam.Solver(lr=self.generator_lr, beta1=0.5)
        zeros = torch.zeros_like(free)[None]
        state = adam.Moments(zeros, zeros.clone(), torch.zeros(1, device=task.device))
        best, least = free, float("inf")
        for _ in range(self.generator_steps):
            leaf = free.detach().requires_grad_()
            weights, noise = leaf.split([layout.numel, size])
            inputs = functional_call(network, layout.views(weights), (noise.view(self.batch_size, -1),))
            loss = self._strangeness(teacher(inputs), outputs(task, theta, inputs), labels)
            if loss.item() < least:
                best, least = inputs.detach(), loss.item()
            solver.step(free[None], torch.autograd.grad(loss, leaf)[0][None], state, solver.lr)
        return best

    def _strangeness(self, teacher: Tensor, student: Tensor, labels: Tensor) -> Tensor:
        """What a generator lowers: inputs of the wanted labels on which the student still errs."""
        differ = (teacher.argmax(1) != student.argmax(1)).to(teacher.dtype)
        apart = F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True).sum(1)
        return F.cross_entropy(teacher, labels) - self.diversity * (apart * differ).mean()
