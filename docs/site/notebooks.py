"""A tutorial, kept as text in the percent format, as a page."""

from pathlib import Path


def pages(folder: Path) -> dict[str, str]:
    return {f"tutorials/{path.stem}.md": page(path.read_text()) for path in sorted(folder.glob("*.py"))}


def page(text: str) -> str:
    """Its Markdown cells as they are, its code in fences."""
    cells = [cell.partition("\n") for cell in f"\n{text}".split("\n# %%")[1:]]
    return "\n\n".join(_cell("[markdown]" in head, body.strip("\n")) for head, _, body in cells) + "\n"


def _cell(prose: bool, body: str) -> str:
    if prose:
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
    return f"```python\n{body.strip()}\n```"
