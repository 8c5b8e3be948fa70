"""VR-FALD* (Plassier et al. 2023): FALD with control variates, which take away drift and most gradient noise.

    phase 1  c       <- Σ_k ∇f_k(theta) / N at the state theta of each chain, over all examples
    phase 2  theta_k <- as in fald, with ∇loss_k(theta_k; batch) - ∇loss_k(theta; batch) + c for each gradient
             theta   <- Σ_k N_k theta_k / N

Without noise the pooled optimum stays where it is, for any number of local steps and any batches: there c and the
prior's gradient cancel. Reconstructed from the definition; the anchor is renewed in every round rather than at random.
"""

import torch
from torch import Tensor

from fedddp.clients.cohort import Batch, Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods import fald
from fedddp.methods.fald import Server
from fedddp.rounds.method import Clients, Phase
from fedddp.rounds.solver import SamplingSolver


class Method(fald.Method):
    def init_server(self, task: Task) -> Server:
        server = super().init_server(task)
        return server._replace(slope=torch.zeros_like(server.chains.now))

    def phase(self, server: Server, index: int) -> Phase | None:
        phases = [
            Phase(self._slope_step, self._keep_slope, (server.chains.now,)),
            Phase(self.client_step, self.server_step, (server.slope,)),
        ]
        return phases[index] if index < len(phases) else None

    def _slope_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: SamplingSolver
    ) -> tuple[Clients, Message]:
        count = cohort.num_examples
        each = [cohort.full_grad(state.expand(len(cohort), -1)) for state in server.chains.now]
        return clients, {"slope": Mean(torch.stack(each, 1) / count.view(-1, 1, 1), weight=count)}

    def _keep_slope(self, server: Server, total: Totals, task: Task) -> Server:
        return server._replace(slope=total["slope"])

    def _steps(self, number: int, server: Server, clients: Clients, cohort: Cohort, local: SamplingSolver) -> Tensor:
        anchor, slope = server.chains.now[number], server.slope[number]

        def turn(_: Tensor, grad: Tensor, batch: Batch) -> Tensor:
            there, _ = cohort.oracle(anchor.expand_as(grad), *batch)
            return grad - there + slope

        return super()._steps(number, server, clients, cohort.steered(turn), local)
