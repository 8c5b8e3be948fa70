"""FedLap-Cov ("Connecting Federated ADMM to Bayes", Eq. 14 and 21): damped PVI by Laplace's approximation.

    client   w_k <- argmin f_k(w) + <v_k, w> - ½ wᵀV_k w + ½ |w - w_server|²_S,    S_k <- H_k(w_k) - V_k + S
             v_k <- v_k + damping (S_k w_k - S w_server),    V_k <- V_k + damping (S_k - S)
    server   S <- delta + Σ_k V_k,    w_server <- S⁻¹ Σ_k v_k

This is pvi's step with the solver laplace, H_k the GGN of the client's own data: V_k stays positive semidefinite for
damping ≤ 1.
"""

from fedddp.methods import pvi


class Method(pvi.Method):
    pass
