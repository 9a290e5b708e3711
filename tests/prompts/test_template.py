from __future__ import annotations

import pytest

from poise.errors import InvalidOptionError, InvalidTemplateError
from poise.prompts import Template


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a photo of a {}.", ("a photo of a ", "", ".")),
        ("a photo of a {c}.", ("a photo of a ", "", ".")),
        ("{} in a photo!", ("", " in a photo", "!")),
        ("a photo of a {}, a type of pet.", ("a photo of a ", ", a type of pet", ".")),
        ("{}", ("", "", "")),
        ("art of the {}", ("art of the ", "", "")),
        ("is this a {}?", ("is this a ", "", "?")),
    ],
)
def test_parts(text, parts):
    template = Template.parse(text)
    assert (template.before, template.after, template.tail) == parts
    assert template.fill("cat") == text.replace("{}", "cat").replace("{c}", "cat")


@pytest.mark.parametrize("text", ["", "a photo", "{} and {}", "{} and {c}", "a {x}", "a {0}", "a {} {", "{{}}"])
def test_one_place_for_the_name(text):
    with pytest.raises(InvalidTemplateError, match="exactly one") as error:
        Template.parse(text)
    assert repr(text) in str(error.value)


def test_a_template_is_text():
    with pytest.raises(InvalidTemplateError, match="int"):
        Template.parse(3)


@pytest.mark.parametrize(
    ("text", "context", "sides"),
    [
        ("a photo of a {}.", "auto", (True, False)),
        ("{} in a photo.", "auto", (False, True)),
        ("a {} in a photo.", "auto", (True, False)),
        ("a {} in a photo.", "around", (True, True)),
        ("a {} in a photo.", "after", (False, True)),
        ("{}.", "none", (False, False)),
    ],
)
def test_which_words_are_tuned(text, context, sides):
    assert Template.parse(text).sides(context) == sides


@pytest.mark.parametrize(
    ("text", "context", "words"),
    [
        ("{}.", "auto", "no words to tune"),
        ("{}!", "auto", "context='none'"),
        ("{} here", "before", "before the class name"),
        ("a {}.", "after", "after the class name"),
        ("a {}.", "around", "after the class name"),
    ],
)
def test_a_side_without_words(text, context, words):
    with pytest.raises(InvalidTemplateError, match=words):
        Template.parse(text).sides(context)


def test_an_unknown_context():
    with pytest.raises(InvalidOptionError, match="auto, before, after, around, none"):
        Template.parse("a {}").sides("left")
