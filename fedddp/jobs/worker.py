"""`python -m fedddp.jobs.worker FILE`: call the function that here.py left in the file, as one rank of torchrun's."""

import pickle
import sys
from pathlib import Path

from fedddp.runs.rank import attempt

if __name__ == "__main__":
    work, debug = pickle.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(attempt(work, debug))
