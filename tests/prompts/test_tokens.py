from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones import load_model
from poise.errors import InvalidLabelsError, InvalidOptionError, InvalidTemplateError
from poise.prompts import check_labels, init_prompt, tokenise

SIMPLE = SimpleTokenizer()
START, END = SIMPLE.sot_token_id, SIMPLE.eot_token_id


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([], "empty"),
        ("cat", "list of strings"),
        (None, "NoneType"),
        (["cat", " ", "dog", "\t"], "index 1; 3"),
        (["cat", "___"], "index 1"),
        (["cat", 3, None], r"1: 3 \(int\); 2: None \(NoneType\)"),
        (["cat", "dog", "cat"], "'cat' at indices 0, 2"),
        (["polar_bear", "polar bear"], "'polar bear' at indices 0, 1"),
    ],
)
def test_labels_that_cannot_be(labels, words):
    with pytest.raises(InvalidLabelsError, match=words):
        check_labels(labels)


@given(st.lists(st.text(min_size=1).filter(lambda text: text.replace("_", " ").strip()), min_size=1, max_size=5))
def test_labels_come_back_unchanged_or_are_doubled(labels):
    spoken = [label.replace("_", " ") for label in labels]
    if len(set(spoken)) == len(spoken):
        assert check_labels(labels) == tuple(labels)
    else:
        with pytest.raises(InvalidLabelsError, match="Duplicate"):
            check_labels(labels)


def test_the_published_sentence(encoder):
    classes = tokenise(encoder, ["cat", "great_white_shark"])
    assert classes.labels == ("cat", "great_white_shark")
    for row, text in enumerate(["a photo of a cat.", "a photo of a great white shark."]):
        expected = [START, *SIMPLE.encode(text), END]
        assert classes.ids[row, : classes.lengths[row]].tolist() == expected
    assert classes.slots.tolist() == [[1, 2, 3, 4]] * 2
    assert classes.shared == 5
    prompt = init_prompt(encoder, classes)
    assert torch.equal(prompt.context[0], encoder.embed(torch.tensor([320, 1125, 539, 320])))
    assert not prompt.context.requires_grad


def test_words_after_and_around_the_name(encoder):
    template = "a bad {} in the dark."
    after = tokenise(encoder, ["cat", "great white shark"], template, context="after")
    assert after.shared == 3
    assert after.slots.tolist() == [[4, 5, 6], [6, 7, 8]]
    around = tokenise(encoder, ["cat", "great white shark"], template, context="around")
    assert around.slots.tolist() == [[1, 2, 4, 5, 6], [1, 2, 6, 7, 8]]
    words = [SIMPLE.encode(word)[0] for word in ("in", "the", "dark")]
    for classes in (after, around):
        assert classes.ids.gather(1, classes.slots)[:, -3:].tolist() == [words, words]


def test_only_some_tokens(encoder):
    classes = tokenise(encoder, ["cat"], tokens=2)
    assert classes.slots.tolist() == [[1, 2]]
    assert classes.shared == 5
    for tokens in (0, 5, "2"):
        with pytest.raises(InvalidOptionError, match=r"1\.\.4"):
            tokenise(encoder, ["cat"], tokens=tokens)


def test_no_words_at_all(encoder):
    classes = tokenise(encoder, ["cat"], "{}", context="none")
    assert classes.slots.shape == (1, 0)
    assert classes.shared == 1
    with pytest.raises(InvalidTemplateError, match="no words to tune"):
        tokenise(encoder, ["cat"], "{}")


def test_a_long_label_is_named_and_counted(encoder):
    long = "shark " * 71
    with pytest.raises(InvalidLabelsError, match=r"shark.*\(78 tokens\).*77 tokens") as error:
        tokenise(encoder, ["cat", long])
    assert repr(long[:57] + "...") in str(error.value)  # recognisable, but not all of it
    assert len(str(error.value)) < 300
    assert tokenise(encoder, ["shark " * 70]).lengths.tolist() == [77]


def test_a_long_label_may_be_cut(encoder):
    with pytest.warns(UserWarning, match=r"77 tokens: 'shark .*\(97 tokens\)"):
        classes = tokenise(encoder, ["cat", "shark " * 90], on_long_label="truncate")
    assert classes.lengths.tolist() == [8, 77]
    assert classes.ids[1, -1] == END
    with pytest.raises(InvalidLabelsError, match="before the name"):
        tokenise(encoder, ["shark " * 90], "{} in a photo.", on_long_label="truncate")
    with pytest.raises(InvalidOptionError, match="error, truncate"):
        tokenise(encoder, ["cat"], on_long_label="cut")


@pytest.mark.parametrize(("template", "context"), [("a photo of an{}", "auto"), ("{}ish thing", "after")])
def test_words_that_merge_with_the_name(encoder, template, context):
    with pytest.raises(InvalidTemplateError, match="merges"):
        tokenise(encoder, ["cat", "dog"], template, context=context)


def test_one_label(encoder):
    assert len(tokenise(encoder, ["cat"])) == 1


def test_rows_drop_padding(encoder):
    classes = tokenise(encoder, ["cat", "great white shark on a very long table"])
    assert classes.rows(0, 1).ids.shape == (1, 8)


def test_the_tokenizer_is_called_as_often_for_ten_thousand_labels_as_for_two(encoder, monkeypatch):
    counts, run = [], encoder.token_ids
    for count in (2, 10_000):
        calls = []
        monkeypatch.setattr(encoder, "token_ids", lambda texts, calls=calls: calls.append(len(texts)) or run(texts))
        labels = [f"thing number {i}" for i in range(count)]
        assert len(tokenise(encoder, labels, "a photo of a {} here.", context="around")) == count
        counts.append(len(calls))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "labels",
    [("Cat", "dog", "cat"), ("caf\u00e9", "cafe\u0301"), ("salt &amp; pepper", "salt & pepper"), ("ice x", "ice  x")],
    ids=["case", "accents", "entity", "spaces"],
)
def test_labels_that_become_the_same_tokens_are_refused(labels) -> None:
    encoder = load_model("tiny", device="cpu")
    with pytest.raises(InvalidLabelsError, match="as the same tokens"):
        tokenise(encoder, labels)
    assert len(tokenise(encoder, labels, repeats=True)) == len(labels)
