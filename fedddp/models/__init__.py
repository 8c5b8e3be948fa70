"""Models: one file each, a dataclass `Model` with its settings and `build(shape, classes) -> nn.Module`.

`shape` is that of one input as the model sees it, `classes` the number of outputs (1 for regression). A module of
your own needs no file here: `model.name=package.module:Class` (or `path/file.py:Class`) with `model.args.*`.
"""
