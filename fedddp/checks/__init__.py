"""The engine's promises, held against anybody's method, solver, split, data source or model: `fedddp check`.

A file for each kind has the checks and their order; `rows` has what a check may say.
"""
