"""How good a model is: on the test set, for every client, as a posterior; and how far its answers can be trusted."""
