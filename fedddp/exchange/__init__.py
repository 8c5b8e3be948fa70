"""Sums over ranks: what clients may send, exact fixed-point all-reduce, the process group, shared memory."""
