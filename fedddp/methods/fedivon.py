"""FedIvon (Pal et al. 2024): IVON at the clients, and the product of their posteriors at the server.

    client   q_k = N(m_k, 1/s_k) <- argmin E_q[f_k/τ] + KL(q || N(0, 1/delta)),    s_k = (N_k h_k + τ delta)/τ, by IVON
    server   s <- Σ_k s_k,    m <- Σ_k s_k m_k / s;    with some clients in a round K times their mean

A client's precision is N_k times the curvature h_k of an example, so that the product weighs h_k by the shares of
examples N_k/N. This is ba_bfl with barycentre=conflation and plain weights. As written the prior counts K times: on
Gaussian clients one round gives the pooled posterior under N(0, 1/(K delta)), and with prior=share that under
N(0, 1/delta). Reconstructed from the definition; the paper's text was not at hand.
"""

from fedddp.methods import ba_bfl


class Method(ba_bfl.Method):
    barycentre: str = "conflation"  # how the server merges: conflation as published, or any other of ba_bfl's
    weights: str = "plain"  # of the clients in it: examples or plain (every client alike)
