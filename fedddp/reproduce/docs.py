"""The tables of a Markdown file, written from the results between two comments, so that no number is copied by hand.

<!-- reproduce: NAME -->
...
<!-- end -->
"""

import re
from pathlib import Path

from fedddp.core.files import write_text
from fedddp.reproduce import protocol
from fedddp.reproduce.results import Results
from fedddp.reproduce.state import markdown, notes, summary

REGION = re.compile(r"(<!-- reproduce: (\S+) -->\n).*?(\n?<!-- end -->)", re.DOTALL)


def rewrite(path: Path, results: Results) -> None:
    write_text(path, filled(path.read_text(), results))


def filled(text: str, results: Results) -> str:
    """The text with every region anew; the region `list` is a line for each table and figure."""
    return REGION.sub(lambda found: f"{found[1]}{_region(found[2], results)}\n<!-- end -->", text)


def _region(name: str, results: Results) -> str:
    if name == "list":
        return "\n".join(
            [
                "| name | table or figure | how far |",
                "|---|---|---|",
                *(_line(each, results) for each in protocol.names()),
            ]
        )
    chosen = protocol.read(name)
    found = results.get(name, {})
    said = "\n".join(f"- {note}" for note in notes(chosen, found))
    return f"{markdown(chosen, found)}\n\n{said}" if chosen.columns else said


def _line(name: str, results: Results) -> str:
    chosen = protocol.read(name)
    return f"| `{name}` | {chosen.about} | {summary(chosen, results.get(name, {}))} |"
