"""Models: one file each, named after it, a class `Model`; the contract is in fedddp/core/model.py.

A module of your own needs no file here: `model.name=package.module:Class` (or `path/file.py:Class`) with
`model.args.*`.
"""
