"""One run: configuration, building, rounds and records, evaluation, predictions, the lock on its folder."""
