"""hold a method, solver, split, data source or model to the engine's promises"""

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    about = "a name of `fedddp list`, path/file.py:Class or package.module:Class; then settings"
    parser.add_argument("words", nargs="+", metavar="WHAT key=value", help=about)
    parser.add_argument("--ranks", type=int, default=4, help="most ranks to compare (default: 4)")
    parser.add_argument("--kind", choices=["method", "local", "split", "data", "model"], help="where a name is several")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.checks import every
    from fedddp.checks.rows import Sheet

    named = [word for word in arguments.words if "=" not in word]
    if len(named) != 1:
        raise ValueError(f"{' '.join(named) or 'nothing'}: name one thing to check; settings are written key=value")
    sheet = Sheet(debug=arguments.debug)
    settings = [word for word in arguments.words if "=" in word]
    every.check(sheet, named[0], settings, arguments.kind or "", arguments.ranks)
    if sheet.failed:
        print(f"\n{len(sheet.failed)} of {len(sheet.rows)} failed: {', '.join(sheet.failed)}")
    return 1 if sheet.failed else 0
