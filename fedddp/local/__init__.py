"""Local solvers: one file each, named after it, a class `Solver`; the contract is fedddp/rounds/solver.py."""
