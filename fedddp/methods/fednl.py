"""FedNL (Safaryan et al. 2021; a baseline of HWA): Newton's method with Hessians learned by compressed changes.

    client   S_k <- compress(∇²loss_k(theta) - H_k),    l_k <- |∇²loss_k(theta) - H_k|,    H_k <- H_k + S_k
    server   g   <- Σ_k N_k ∇loss_k(theta)/Σ_k N_k + decay theta;    H <- H + Σ_k N_k S_k / N,    l <- mean of l_k
             theta <- theta - [H + decay I]⁻¹ g            with eigenvalues below `floor` raised to it: step = projected
             theta <- theta - (H + (l + decay) I)⁻¹ g      step = corrected

H and l are those from before this round's change, as published, or from after it (after = true: with nothing lost in
compression, that is Newton's method). For models of a few thousand parameters at most: a client remembers a matrix.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import exact_hessian, ggn_full
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods._channel import perturb
from fedddp.methods._hessian_compressors import Compressor
from fedddp.rounds import method
from fedddp.rounds.solver import Solver

CURVATURES = {"ggn": ggn_full, "hessian": exact_hessian}


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    hessian: Tensor  # [P, P] mean over all clients' estimates, by their examples
    rounds: Tensor  # [] number of rounds so far


class Clients(NamedTuple):
    hessian: Tensor  # [C, P, P] estimate of its mean loss's Hessian


class Method(method.Method[Server, Clients, Solver]):
    needs: ClassVar[type[Solver]] = Solver  # any: clients do not train

    compressor: str = "rank"  # of a Hessian's change: rank, top or identity
    rank: int = 1  # eigenvectors that a client sends with compressor=rank, at least 1
    top: int = 1000  # entries that a client sends with compressor=top, at least 1
    step: str = "corrected"  # how the Hessian is made safe: corrected (by its error's norm) or projected (by floor)
    floor: float = 1e-3  # least eigenvalue of the projected Hessian, above 0
    after: bool = False  # whether to step with the Hessian from after this round's change
    start: str = "exact"  # exact: in the first round clients send their Hessians whole, which count at once; or zero
    curvature: str = "ggn"  # ggn, which is never negative, or hessian; the same where outputs are linear in theta
    decay: float = 1e-3  # weight of ½|theta|² in the mean loss, at least 0
    noise: float = 0.0  # deviation of Gaussian noise on a client's gradient and Hessian, at least 0

    def __post_init__(self) -> None:
        check("method.rank", self.rank, self.rank >= 1, "at least 1")
        check("method.top", self.top, self.top >= 1, "at least 1")
        check("method.step", self.step, self.step in ("corrected", "projected"), "corrected or projected")
        check("method.floor", self.floor, self.floor > 0, "above 0")
        check("method.start", self.start, self.start in ("zero", "exact"), "zero or exact")
        check("method.curvature", self.curvature, self.curvature in CURVATURES, " or ".join(CURVATURES))
        check("method.decay", self.decay, self.decay >= 0, "at least 0")
        check("method.noise", self.noise, self.noise >= 0, "at least 0")
        self._compressor(1)

    def _compressor(self, round_: int) -> Compressor:
        if round_ == 0 and self.start == "exact":
            return Compressor("identity", 0)
        return Compressor(self.compressor, self.rank if self.compressor == "rank" else self.top)

    def init_server(self, task: Task) -> Server:
        size = task.layout.numel
        return Server(task.initial, task.initial.new_zeros(size, size), torch.zeros((), dtype=torch.long))

    def init_clients(self, count: int, task: Task, local: Solver) -> Clients:
        size = task.layout.numel
        return Clients(torch.zeros(count, size, size, dtype=task.dtype, device=task.device))

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Solver) -> tuple[Clients, Message]:
        count, theta = cohort.num_examples, server.theta.expand(len(cohort), -1)
        gradient = cohort.full_grad(theta) / count.unsqueeze(1)
        difference = CURVATURES[self.curvature](cohort, theta) / count.view(-1, 1, 1) - clients.hessian
        noisy = perturb(difference, self.noise, cohort, "curvature")
        arrived, fields = self._compressor(cohort.round).compress((noisy + noisy.mT) / 2, count)
        left = difference - arrived if self._uses_change(cohort.round) else difference
        message: Message = {
            "gradient": Mean(perturb(gradient, self.noise, cohort, "update"), weight=count),
            "missing": Mean(left.flatten(1).norm(dim=1), weight=count),
            **fields,
        }
        return Clients(clients.hessian + arrived), message

    def _uses_change(self, round_: int) -> bool:
        return self.after or (round_ == 0 and self.start == "exact")

    def admit(self, server: Server, task: Task) -> Server | None:
        """What it keeps is a mean over, or has a place for, the clients that were there."""
        return None

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        size, round_ = task.layout.numel, int(server.rounds)
        change = self._compressor(round_).arrived(total, size) / int(task.num_examples.sum())
        hessian = server.hessian + change
        used = hessian if self._uses_change(round_) else server.hessian
        gradient = total["gradient"] + self.decay * server.theta
        theta = server.theta - self._solve(used, total["missing"], gradient)
        return Server(theta, hessian, server.rounds + 1)

    def _solve(self, hessian: Tensor, missing: Tensor, gradient: Tensor) -> Tensor:
        unit = torch.eye(len(gradient), dtype=gradient.dtype, device=gradient.device)
        if self.step == "corrected":
            return torch.linalg.solve(hessian + (missing + self.decay) * unit, gradient)
        values, vectors = torch.linalg.eigh(hessian + self.decay * unit)
        return vectors @ ((vectors.T @ gradient) / values.clamp_min(self.floor))

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """What the step did not know of the clients' Hessians, in the mean over clients."""
        return {"hessian_missing": float(total["missing"])}
