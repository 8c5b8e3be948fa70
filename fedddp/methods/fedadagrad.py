"""FedAdagrad (Reddi et al. 2021): Adagrad at the server, on the mean client change.

client   theta_k <- solver on f_k from theta
server   Δ <- Σ_k N_k (theta - theta_k) / Σ_k N_k;   m <- beta1 m + (1 - beta1) Δ
         s <- s + Δ²;   theta <- theta - lr m/(√s + tau)
"""

from typing import ClassVar

from fedddp.methods._server_optimiser import Adaptive


class Method(Adaptive):
    rule: ClassVar[str] = "adagrad"
    lr: float = 0.1
    beta1: float = 0.0
