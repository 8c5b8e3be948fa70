"""Splits of the training examples over clients: one file each, named after it, a class `Split`.

The contract is in fedddp/core/shards.py; _dealing.py has what several splits share.
"""
