"""What MkDocs calls: pages made from the code, the tutorials and the top's own files join those that are written."""

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TREE = HERE.parents[1]
TOP = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages that people look for at the top of the tree
sys.path.insert(0, str(HERE))  # MkDocs runs this file by its path

import catalogue  # noqa: E402
import notebooks  # noqa: E402
import reference  # noqa: E402

from fedddp.core.progress import waiting  # noqa: E402

BUILDING = ExitStack()
NAME = re.compile(r"(?<=<td><code>)[\w.]+(?=</code>)")
UNIT = re.compile(r"(\d) (?=(?:[kMG]?B|[m]?s|×|%)\b|[×%])")


def on_pre_build(config: Any) -> None:
    BUILDING.enter_context(waiting("building the site"))


def on_post_build(config: Any) -> None:
    BUILDING.close()


def on_build_error(error: Exception) -> None:
    BUILDING.close()


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """A number stays in one line with its deviation and its unit; a long name in a table may break between words."""
    html = NAME.sub(lambda found: re.sub(r"([_.])", r"\1<wbr>", found[0]), html)
    return UNIT.sub("\\1\u00a0", html.replace(" ± ", "\u00a0±\u00a0"))


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made = {**reference.pages(), **catalogue.pages(), **notebooks.pages(TREE / "docs" / "tutorials")}
    made |= {name: (TREE / name).read_text().replace("](docs/", "](") for name in TOP}
    made["site.css"] = (HERE / "site.css").read_text()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    choose = next(entry for entry in config.nav if "Choose" in entry)
    choose["Choose"] = catalogue.navigation()
    return files
