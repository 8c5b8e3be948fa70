"""NVFlare: TASK=/path/of/task.npz python with_nvflare.py CLIENTS, with nvflare_client.py beside it."""

import sys

import task
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

if __name__ == "__main__":
    clients = int(sys.argv[1])
    settings = {"min_clients": clients, "num_rounds": task.ROUNDS, "train_script": "nvflare_client.py"}
    recipe = FedAvgRecipe(name="with_nvflare", model=task.Net(), **settings)
    recipe.execute(SimEnv(num_clients=clients, num_threads=1))
