"""what a key, a section, a method or an experiment means"""

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    about = (
        "a key (method.rho), a section (federation), a name (method=bayes_admm) or an experiment; default: all sections"
    )
    parser.add_argument("words", nargs="*", metavar="WHAT", help=about)


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config.explain import explain

    print("\n\n".join(explain(word) for word in arguments.words or [""]))
    return 0
