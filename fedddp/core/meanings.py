"""What each setting means: the comment behind its field, read from the source of the class or of its ancestors.

    rho: float = 0.1  # the penalty's weight; above 0

is the one place where a setting's meaning, unit and range are written. `fedddp explain`, `fedddp show --explain`,
errors about a key and the documentation all read it from here, for the classes of other people, too.
"""

import ast
import inspect
import io
import tokenize
from functools import cache
from typing import Any


def meanings(kind: type[Any]) -> dict[str, str]:
    """The comment of each annotated field. One that only changes a default has that of the class it derives from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= {key: text for key, text in _own(one).items() if text or key not in found}
    return found


def meaning(kind: type[Any], key: str) -> str:
    return meanings(kind).get(key, "")


@cache
def _own(kind: type[Any]) -> dict[str, str]:
    """Of the fields that stand in the class itself; of one typed at a prompt nothing is known."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
        body = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    if not isinstance(body, ast.ClassDef):
        return {}
    comments = _comments(source)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = " ".join(comments[line] for line in inside if line in comments)
    return found


def _comments(source: str) -> dict[int, str]:
    """The comment behind the code of each line, by number."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokens
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
    }
