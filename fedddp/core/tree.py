"""Memories are (nested) NamedTuples of tensors; these few functions are all that treats them alike."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

Tree = TypeVar("Tree")


def leaves(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor by its dotted name, in field order."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    named: dict[str, Tensor] = {}
    for name, child in zip(tree._fields, tree, strict=True):
        named |= leaves(child, f"{prefix}.{name}" if prefix else name)
    return named


def map_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with `function` applied to every tensor."""
    return rebuild(tree, {name: function(leaf) for name, leaf in leaves(tree).items()})


def rebuild(tree: Tree, named: Mapping[str, Tensor], prefix: str = "") -> Tree:
    """A tree of the same shape whose tensors are taken from `named`."""
    if isinstance(tree, Tensor):
        return named[prefix]  # type: ignore[return-value]
    children = (
        rebuild(child, named, f"{prefix}.{name}" if prefix else name)
        for name, child in zip(tree._fields, tree, strict=True)  # type: ignore[attr-defined,call-overload]
    )
    return type(tree)(*children)
