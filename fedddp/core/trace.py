"""Where an error comes from: the line of the user's own code, and the whole trace."""

import sysconfig
import traceback
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def spot(error: BaseException) -> str:
    """`my/method.py:14 in client_step`: the innermost line of the user's own code, or of ours if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    ours = [frame for frame in frames if PACKAGE in Path(frame.filename).parents]
    theirs = [frame for frame in frames if frame not in ours and not frame.filename.startswith(OTHERS)]
    for frame in reversed(theirs or ours or frames):
        return f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
    return ""


def told(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero (my/method.py:14 in client_step)`."""
    where = spot(error)
    return f"{type(error).__name__}: {error}" + (f" ({where})" if where else "")


def whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _short(name: str) -> str:
    """Relative to the current folder or to the package's, if it is below."""
    path = Path(name)
    for base in (Path.cwd(), PACKAGE.parent):
        if base in path.parents:
            return str(path.relative_to(base))
    return name
