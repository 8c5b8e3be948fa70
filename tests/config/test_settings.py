"""Every key of every section, times values of every type and range: a configuration, or one line that names the key.

The keys are read from the schema itself, so a new one is covered the day it is added.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedddp.config import loading as configuration
from fedddp.config.schema import BESIDE, PLAIN, typed
from fedddp.core import registry
from fedddp.core.settings import kinds

LONGEST = 400  # letters of a line


@dataclass(frozen=True)
class Key:
    section: str
    name: str  # of the section's class, where it has one
    key: str
    kind: Any

    @property
    def full(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    def __str__(self) -> str:
        return f"{self.section}={self.name}, {self.full}"


def keys() -> list[Key]:
    found = [Key("", "", "seed", int)]
    for section in registry.SECTIONS:
        extra = kinds(BESIDE[section]) if section in BESIDE else {}
        for name in registry.builtin(section):
            own = extra | kinds(registry.find(section, name))
            found += [Key(section, name, key, kind) for key, kind in own.items()]
    for section, schema in PLAIN.items():
        found += [Key(section, "", key, kind) for key, kind in kinds(schema).items()]
    return found


KEYS = keys()
PLAIN_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 10**20, 10**400]),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e-320, 5e-324, 1e-38, 3.5e38, 1e300, 0.5, 1.0, -1.0]),
    st.text(max_size=8),
    st.sampled_from(
        ["", "???", "${oc.env:HOME}", "${", "${seed}", "0.5", "nan", "-inf", "é\u2028ß", "a\nb", "x" * 500]
    ),
)
VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=2),
    max_leaves=4,
)
ODD = [  # as YAML or a shell hands them over
    *("", "null", "~", "yes", "off", "1e3", "1e400", "0x10", "010", "1_000", "1:30", ".inf", "-.inf", ".nan", "nan"),
    *(
        "???",
        "${oc.env:HOME}",
        "${oc.env:HOME,x}",
        "a${seed}b",
        "${",
        "$",
        "[1,2",
        "[1, -1]",
        "[0]",
        "[]",
        "{}",
        "{a: 1}",
    ),
    *("[[1], [2]]", "[1e9]", "[null]", "'", '"', "'yes'", "&a [*a]", "*a", "!!set {a}", "!!binary aGk=", "2001-01-01"),
    *("\x00", "é", "#", "a: b", "a b", "=", "1=2", "100000000000000000000", "-1", "0", "1", "2.5", "1e-320", "1e300"),
    *("9" * 5000, "[" * 200, "x" * 1000, "true", "auto", "none", "!!python/object/apply:os.system [ls]"),
]
WORDS = st.one_of(st.sampled_from(ODD), VALUES.map(str), st.text(max_size=10))
QUICK = settings(max_examples=1000, deadline=10_000, derandomize=True, suppress_health_check=list(HealthCheck))


@QUICK
@given(key=st.sampled_from(KEYS), text=WORDS)
def test_a_word_is_taken_or_refused_in_one_line_that_names_its_key(key, text):
    hold(key, None, [*_named(key), f"{key.full}={text}"])


@QUICK
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_a_value_in_a_file_is_taken_or_refused_in_one_line_that_names_its_key(key, value, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "layer.yaml"
    named = {"name": key.name} if key.name else {}
    layer = {key.section: named | {key.key: value}} if key.section else {key.key: value}
    layer |= dict(word.split("=") for word in _beside(key))
    file.write_text(yaml.safe_dump(layer))
    hold(key, str(file), [])


@pytest.mark.parametrize("text", ODD)
def test_every_key_holds_against_what_yaml_makes_of(text):
    """The odd ones, for one key of every type."""
    for key in {str(key.kind): key for key in KEYS}.values():
        hold(key, None, [*_named(key), f"{key.full}={text}"])


CLASSES = {f"{key.section}={key.name}": key for key in KEYS if key.section}
NASTY = [
    None,
    True,
    -1,
    2**70,
    2.5,
    math.nan,
    math.inf,
    1e-320,
    1e300,
    "",
    "text",
    "???",
    "${oc.env:HOME}",
    [1],
    {"a": 1},
]


@pytest.mark.parametrize("name", CLASSES)
def test_every_single_key_of(name):
    """Not one is left out: the nasty values, by the function that `load` gives every section to."""
    section, _, own = name.partition("=")
    schema = registry.find(section, own) if own else PLAIN[section]
    for key, kind in kinds(schema).items():
        for value in NASTY:
            try:
                found = typed(section, schema, {key: value})[1][key]
            except ValueError as error:
                one_line(str(error), f"{section}.{key}")
            else:
                assert is_a(kind, found), f"{section}.{key} is {found!r}, not {kind}"


@pytest.mark.parametrize("value", [5, 2.5, True, [1], "nothing", [{"name": "x"}], "???", "${oc.env:HOME}"])
@pytest.mark.parametrize("section", [*registry.SECTIONS, *PLAIN, "methods"])
def test_a_section_that_is_none_is_said(section, value, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({section: value}))
    with pytest.raises(ValueError, match=section) as refused:
        configuration.load(str(file))
    one_line(str(refused.value), section)


def test_the_generator_sees_every_kind_of_key():
    assert {"int", "float", "bool", "str"} <= {key.kind.__name__ for key in KEYS if isinstance(key.kind, type)}
    assert len(KEYS) > 300
    assert any(key.full == "federation.rounds" for key in KEYS)


def hold(key: Key, experiment: str | None, words: list[str]) -> None:
    try:
        found = configuration.load(experiment, words)
    except ValueError as error:
        one_line(str(error), key.full)
        return
    value = found[key.full]
    assert is_a(key.kind, value), f"{key.full} is {value!r}, not {key.kind}"


def one_line(text: str, key: str) -> None:
    assert len(text.splitlines()) == 1, text
    assert len(text) < LONGEST, text
    assert key in text, text


def is_a(kind: Any, value: Any) -> bool:
    """Of the declared type; numbers are finite and fit into 64 bits."""
    if kind is Any:
        return not isinstance(value, float) or math.isfinite(value)
    if get_origin(kind) is UnionType:
        return any(is_a(one, value) for one in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(is_a(get_args(kind)[0], one) for one in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(is_a(get_args(kind)[1], one) for one in value.values())
    if kind in (None, NoneType):
        return value is None
    if kind is float:
        return isinstance(value, float) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def _named(key: Key) -> list[str]:
    return [*([f"{key.section}={key.name}"] if key.name else []), *_beside(key)]


def _beside(key: Key) -> list[str]:
    """A method that fits, for a solver."""
    return [f"method={_fitting(key.name)}"] if key.section == "local" else []


@cache
def _fitting(solver: str) -> str:
    kind = registry.find("local", solver)()
    return next(m for m in registry.builtin("method") if not registry.find("method", m)().mismatch(kind))


def test_files_of_the_generator_are_read(tmp_path: Path) -> None:
    """So that a mistake in the tests above cannot hide behind a refusal."""
    file = tmp_path / "layer.yaml"
    file.write_text(yaml.safe_dump({"local": {"name": "sgd", "lr": 0.25}}))
    assert configuration.load(str(file), [])["local.lr"] == 0.25
