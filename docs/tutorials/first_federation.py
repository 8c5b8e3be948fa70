# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first federation
#
# Two hospitals with data of their own, a module of your own, and a posterior over its weights. Nothing need be on
# disk beforehand.

# %%
import torch
from torch import nn

import fedddp

torch.manual_seed(0)
inputs = torch.randn(600, 5)
targets = (inputs @ torch.randn(5, 3)).argmax(1)
hospitals = {"rome": (inputs[:150], targets[:150]), "oslo": (inputs[150:400], targets[150:400])}
test = (inputs[400:], targets[400:])
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))

# %% [markdown]
# BayesADMM on two processes. The parameters of `net` are where the federation starts.

# %%
run = fedddp.run(model=net, clients=hospitals, test=test, method="bayes_admm", rounds=10, ranks=2, quiet=True)
run.metrics[["accuracy", "nll", "ece"]].tail(3)

# %%
run.clients

# %% [markdown]
# The posterior, and predictions averaged over its samples: how sure the model is, and how much of its doubt is
# disagreement between samples.

# %%
print(run.posterior.mean.shape, run.posterior.sample(3).shape)
found = run.predict(test[0][:5])
found["probabilities"], found["entropy"], found["mutual_information"]


# %% [markdown]
# A method of your own: what a client does, and what the server makes of the sum. Annotated fields are settings.


# %%
class Trimmed(fedddp.Method):
    """Federated averaging whose clients move at most `reach` away from the server."""

    reach: float = 1.0

    def client_step(self, server, clients, cohort, local):
        fit = local.minimise(cohort, server.theta, clients.solver)
        away = fit.theta - server.theta
        away *= (self.reach / away.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
        message = {"away": fedddp.Mean(away, weight=cohort.num_examples)}
        return fedddp.Clients(fit.memory), message

    def server_step(self, server, total, task):
        return fedddp.Server(server.theta + total["away"])


mine = fedddp.run(model=net, clients=hospitals, test=test, method=Trimmed(reach=0.5), rounds=10, ranks=2, quiet=True)
mine.summary["accuracy"], run.summary["accuracy"]

# %% [markdown]
# Round by round, to stop when it is good enough.

# %%
with fedddp.federation(model=net, clients=hospitals, test=test, method="fedavg", rounds=30) as federation:
    for result in federation:
        if result.metrics["accuracy"] > 0.9:
            break
result.round, result.metrics["accuracy"]
