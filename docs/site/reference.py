"""The reference, from the code: what Python imports, every setting, every command."""

import argparse
from collections.abc import Iterator

from catalogue import table

import fedddp
from fedddp.cli import _parser as command_line
from fedddp.config.explain import ABOUT, NAMED, of_class, of_run, of_section
from fedddp.core import registry
from fedddp.core.registry import SECTIONS

GROUPS = {  # what is promised, in the order of a reader's questions
    "Running": "run federation sweep load report configure forget join Run Posterior Rounds Result RunFailed",
    "A method of one's own": "Method Server Clients Phase Cohort Batch Message Sum Mean Gather Totals Task Family",
    "A solver of one's own": "Solver PointSolver PosteriorSolver SamplingSolver Fit PosteriorFit Samples Nothing",
    "Data, splits and models of one's own": "Source Dataset Examples Split Shards Model",
}
MODULES = {"gaussian"}  # promised as a whole


def pages() -> dict[str, str]:
    return {
        "reference/python.md": python(),
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
    }


def python() -> str:
    """Every name of `fedddp.__all__`, once."""
    lines = ["# Python", "", "`fedddp.__all__` is what is promised; everything else may move."]
    for title, names in GROUPS.items():
        lines += ["", f"## {title}", ""]
        for name in names.split():
            lines += [f"::: {fedddp._MODULE[name]}.{name}", "    options: {heading_level: 3}", ""]
    lines += ["## Gaussians", ""]
    for name in sorted(MODULES):
        lines += [f"::: fedddp.core.{name}", "    options: {heading_level: 3}", ""]
    return "\n".join(lines) + "\n"


def settings() -> str:
    """Every key there is, with the classes that have it."""
    lines = [
        "# Settings",
        "",
        "Every key of a configuration: its default, its type, and its meaning with unit and range. "
        "`fedddp explain KEY` says the same in a terminal; a method's are on [its own page](../choose/index.md), too.",
        "",
        *table(of_run()),
    ]
    for section, about in ABOUT.items():
        lines += ["", f"## {section}", "", f"{about.capitalize()}.", "", *_section(section)]
    return "\n".join(lines) + "\n"


def _section(section: str) -> Iterator[str]:
    if section in SECTIONS:
        named = NAMED["name"].format(section=section)
        yield from (f"`{section}.name`: {named}.", "")
    plain = of_section(section)
    if plain:
        yield from table(plain)
    if section not in SECTIONS:
        return
    for name in registry.builtin(section):
        rows = of_class(section, registry.find(section, name))
        yield from ("", f"### {section}={name}", "", registry.describe(section, name), "")
        yield from table(rows) if rows else ["No settings."]


def commands() -> str:
    """What `--help` says of each."""
    parser = command_line()
    choices = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = ["# Commands", "", "`fedddp COMMAND --help` says the same. [Exit codes](exit_codes.md) have a page."]
    for name, command in choices.items():
        command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
        lines += ["", f"## {name}", "", "```text", command.format_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"
