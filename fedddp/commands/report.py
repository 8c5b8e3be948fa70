"""finished runs as a table, csv or a web page: mean ± deviation over seeds, beside published numbers"""

import argparse
import sys
from pathlib import Path

from fedddp.core.progress import waiting

FORMATS = ("table", "md", "csv", "html")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="all runs below are read")
    parser.add_argument(
        "--by", type=_words, default=["method"], metavar="KEY,...", help="first columns (default: method)"
    )
    parser.add_argument("--at", type=_rounds, default=[], metavar="ROUND,...", help="also after these rounds")
    parser.add_argument(
        "--metric", type=_words, default=[], metavar="NAME,...", help="default: accuracy, nll, ece or rmse"
    )
    parser.add_argument(
        "--best-over",
        type=_words,
        default=[],
        metavar="KEY,...",
        help="keep the best of these by the first metric on held-out data",
    )
    parser.add_argument("--target", type=float, metavar="ACCURACY", help="rounds until it is reached")
    parser.add_argument("--window", type=_window, default=1, metavar="ROUNDS", help="... by a running mean of so many")
    parser.add_argument("--every-run", action="store_true", help="... no number unless every run of a row reaches it")
    parser.add_argument("--best-of-three", action="store_true", help="the best of three rounds, not their mean")
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of --out, or table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write here (html: report.html in the first DIR)")


def call(arguments: argparse.Namespace) -> int:
    from fedddp import reports

    kind, out = _where(arguments)
    reading = reports.Reading(arguments.best_of_three, arguments.window, arguments.every_run)
    asked = (arguments.by, arguments.at, arguments.metric, arguments.best_over, arguments.target, reading)
    with waiting("reading runs"):
        made = reports.make(arguments.folders, *asked)
    title = ", ".join(folder.name or str(folder) for folder in arguments.folders)
    if out is None:
        print(reports.written(made, kind, title))
        return 0
    try:
        with waiting("writing the report"):
            reports.write(made, out, title, kind)
    except OSError as error:  # others may read these runs, but not write beside them
        print(reports.written(made, "table" if kind == "html" else kind, title))
        print(f"fedddp: {out}: cannot be written ({error.strerror}); name another file with --out", file=sys.stderr)
        return int(arguments.out is not None)
    print(out)
    return 0


def _where(arguments: argparse.Namespace) -> tuple[str, Path | None]:
    """The format and the file; each follows from the other if it is not given."""
    out: Path | None = arguments.out
    suffix = out.suffix.lstrip(".") if out else ""
    kind = arguments.format or (suffix if suffix in FORMATS else "table")
    return kind, out or (arguments.folders[0] / "report.html" if kind == "html" else None)


def _window(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _rounds(text: str) -> list[int]:
    rounds = [int(word) for word in _words(text)]
    if any(r < 1 for r in rounds):
        raise argparse.ArgumentTypeError(f"{text}: rounds are counted from 1")
    return rounds
