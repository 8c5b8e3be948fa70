"""A setting's meaning is the comment behind its field."""

from dataclasses import dataclass, field

from fedddp.core.meanings import meanings


@dataclass
class Wide:
    rate: float = 0.1  # how fast; above 0
    many: list[int] = field(
        default_factory=list,
    )  # which ones
    silent: int = 0
    text: str = "# none"
    # a line of its own says nothing about the next
    last: int = 1  # the last


class Narrow(Wide):
    rate: float = 0.5
    many: list[int] = field(default_factory=list)  # others
    own: int = 2  # its own


def test_the_comment_behind_the_field_is_its_meaning():
    found = meanings(Wide)
    assert found == {"rate": "how fast; above 0", "many": "which ones", "silent": "", "text": "", "last": "the last"}


def test_a_changed_default_keeps_the_meaning_and_a_new_comment_replaces_it():
    found = meanings(Narrow)
    assert found["rate"] == "how fast; above 0"
    assert found["many"] == "others"
    assert found["own"] == "its own"


def test_a_class_inside_a_function_has_them_too():
    class Inside:
        here: int = 0  # even here

    assert meanings(Inside) == {"here": "even here"}


def test_a_class_without_source_has_none():
    scope: dict[str, type] = {}
    exec("class Typed:\n    at_a_prompt: int = 0  # lost\n", scope)
    assert meanings(scope["Typed"]) == {}
