"""Speed as ratios, measured side by side in one run: fedddp, a plain hand-written loop, and the arithmetic alone.

All do the same work on the same ranks in turn (the same clients, epochs, batches sizes and settings), and each
prints the accuracy it reaches, so that equal work is visible.
"""
