"""`python -m fedddp.jobs.worker FILE`: call the function that here.py left in the file, as one rank of torchrun's."""

import pickle
import sys

from fedddp.runs.rank import attempt

if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        sys.path += [place for place in pickle.load(file) if place not in sys.path]  # where its classes are found
        work, debug = pickle.load(file)
    sys.exit(attempt(work, debug))
