"""What the site makes from the code, and that nobody is left out of it."""

import ast
import re

import pytest
import yaml

import fedddp
from fedddp.config.explain import every
from fedddp.core import registry
from tests.docs import blocks
from tests.docs.blocks import TREE

SITE = TREE / "docs" / "site"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    monkeypatch.syspath_prepend(str(SITE))


def written() -> dict[str, dict[str, str]]:
    families = yaml.safe_load((SITE / "methods.yaml").read_text())
    return {name: told for family in families for name, told in family["methods"].items()}


def test_every_method_says_its_idea_and_when_to_use_it():
    found = written()
    assert set(found) == set(registry.builtin("method")), "docs/site/methods.yaml has an entry for each built-in method"
    for name, told in found.items():
        assert {"idea", "use"} <= set(told) <= {"idea", "use", "holds"}, name
        assert all(text.endswith(".") for text in told.values()), name


def test_a_methods_page_has_everything(beside):
    import catalogue

    page = catalogue.page("bayes_admm", written()["bayes_admm"])
    for wanted in ("KL(q || q_server)", "`lam` (the posterior's natural parameters)", "lam: Mean [2, 910]"):
        assert wanted in page
    assert "| `method.rho` | `0.1` | float | weight of the KL divergence" in page
    assert "local=ivon" in page
    assert "| BayesADMM | after 10 77.2" in page, "its numbers, from the results"


def test_every_method_says_what_a_round_costs(beside):
    import catalogue

    assert set(catalogue.measured()) == set(registry.builtin("method")), "fedddp bench methods --out FILE adds a row"
    for name, cost in catalogue.measured().items():
        told = "\n".join(catalogue._cost(name))
        assert (cost.reason or f"**{catalogue.times(name)}**") in told
        assert "25,450 parameters" in told


def test_long_names_in_tables_may_break_between_words(beside):
    import hook

    html = "<td><code>federation.cohort_width</code></td><td><code>a = b_c</code></td><p><code>a_b</code> 3 kB</p>"
    made = hook.on_page_content(html, None, None, None)
    assert "<code>federation.<wbr>cohort_<wbr>width</code>" in made
    assert "a = b_c" in made
    assert "<code>a_b</code> 3\u00a0kB" in made


def test_what_is_said_of_bytes_is_counted(beside):
    import catalogue

    names = ("fedavg", "scaffold", "fedlap", "fedlap_cov", "fedcurv")
    sent = {name: catalogue.watched(name).bytes_up for name in names}
    assert sent["scaffold"] / sent["fedavg"] == pytest.approx(2, rel=0.01)
    assert sent["fedlap_cov"] / sent["fedlap"] == pytest.approx(2, rel=0.01)
    assert sent["fedcurv"] / sent["fedavg"] == pytest.approx(3, rel=0.01)


def test_every_setting_is_on_its_page(beside):
    import reference

    page = reference.settings()
    missing = {one.key for _, one in every() if f"`{one.key}`" not in page}
    assert not missing


def test_every_promised_name_is_on_the_page_once(beside):
    import reference

    named = [name for names in reference.GROUPS.values() for name in names.split()]
    assert sorted([*named, *reference.MODULES]) == sorted(fedddp.__all__)


def test_every_command_is_on_its_page(beside):
    import reference

    page = reference.commands()
    commands = [path.stem for path in (TREE / "fedddp" / "commands").glob("[a-z]*.py")]
    assert all(f"\n## {name}\n" in page for name in commands)


def test_a_tutorial_becomes_a_page(beside):
    import notebooks

    page = notebooks.pages(TREE / "docs" / "tutorials")["tutorials/first_federation.md"]
    assert page.startswith("# A first federation\n")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code) > 4
    for each in code:
        ast.parse(each)


def test_every_page_is_in_the_navigation():
    navigation = (SITE / "mkdocs.yml").read_text()
    docs = TREE / "docs"
    lost = [path for path in docs.rglob("*.md") if f" {path.relative_to(docs)}" not in navigation]
    assert not lost


def test_links_lead_somewhere():
    """Of the files themselves, which people read in the tree; launch/docs checks those of the site, made pages too."""
    made = re.compile(r"(^|/)choose/|reference/(python|settings|commands)\.md|tutorials/\w+\.md")
    for page in blocks.pages():
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            top = page.parent.name in ("docs",) and link in ("CONTRIBUTING.md", "CHANGELOG.md")
            if not link.startswith("http") and not made.search(link) and not top:
                assert (page.parent / link).exists(), f"{page.relative_to(TREE)}: {link}"


def test_the_readme_is_narrow():
    wide = [line for line in (TREE / "README.md").read_text().splitlines() if len(line) > 100]
    assert not wide


def test_pages_and_experiments_fit_120_columns():
    """But for tables, whose rows Markdown keeps in one line, and what is written from the results."""
    made = re.compile(r"<!-- (?!end)[^>]* -->\n.*?<!-- end -->", re.DOTALL)
    texts = {path: made.sub("", path.read_text()) for path in blocks.pages()}
    texts |= {path: path.read_text() for path in (TREE / "configs").rglob("*.yaml")}
    wide = [
        f"{path.relative_to(TREE)}: {line[:40]}"
        for path, text in texts.items()
        for line in text.splitlines()
        if len(line) > 120 and not line.startswith("|")
    ]
    assert not wide


def test_equations_break_where_there_is_a_gap(beside):
    import catalogue

    line = "server   lam <- " + "a" * 80 + ",    alpha = 1/(1 + rho K)"
    assert catalogue.fold(line).splitlines() == [line[:97], "         alpha = 1/(1 + rho K)"]
    assert catalogue.fold(line[:97]) == line[:97]
    assert catalogue.fold("b" * 130) == "b" * 130


def test_methods_made_from_a_definition_say_so(beside):
    """Whose paper's own text was not what they were written from."""
    import catalogue

    for name in ["ba_bfl", "ditto", "fald", "fedep", "fedgvi", "fedivon", "fedsep", "pfedbayes", "vr_fald"]:
        assert "econstructed from" in (catalogue.module(name).__doc__ or ""), name


def test_one_version_everywhere():
    version = fedddp.__version__
    assert f'version = "{version}"' in (TREE / "pyproject.toml").read_text()
    assert f"version: {version}\n" in (TREE / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (TREE / "CHANGELOG.md").read_text()
