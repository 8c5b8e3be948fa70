"""FedAdam (Reddi et al. 2021): Adam at the server, on the mean client change.

client   theta_k <- solver on f_k from theta
server   Δ <- Σ_k N_k (theta - theta_k) / Σ_k N_k;   m <- beta1 m + (1 - beta1) Δ
         s <- beta2 s + (1 - beta2) Δ²;   theta <- theta - lr m/(√s + tau)
"""

from typing import ClassVar

from fedddp.methods._server_optimiser import Forgetting


class Method(Forgetting):
    rule: ClassVar[str] = "adam"
