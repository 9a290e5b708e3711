from __future__ import annotations

import copy
import gc
import random
import weakref

import pytest
import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones.loaders.openclip import causal_tower, wrap
from poise.backbones.loaders.tiny import CONFIG, tiny_model
from poise.backbones.text import shared_prefix
from poise.backbones.text.packing import bucket_bounds, pack
from poise.backbones.text.shared_prefix import SharedPrefix
from poise.errors import InvalidOptionError
from poise.prompts import init_prompt, tokenise
from poise.types import Prompt
from tests.oracles.text import text_features

CPU = torch.device("cpu")
WORDS = [
    "cat",
    "dog",
    "great",
    "white",
    "shark",
    "airplane",
    "annual",
    "crop",
    "land",
    "of",
    "the",
    "a",
    "X1",
    "737-800",
]


def labels_of(count: int) -> list[str]:
    draw = random.Random(count)
    return [f"{' '.join(draw.choices(WORDS, k=draw.randint(1, 9)))} {i}" for i in range(count)]


@pytest.fixture(scope="module")
def model() -> CLIP:
    config = copy.deepcopy(CONFIG) | {"text_cfg": CONFIG["text_cfg"] | {"layers": 3, "ls_init_value": 0.7}}
    torch.manual_seed(1)
    model = CLIP(**config)
    torch.nn.init.normal_(model.token_embedding.weight, std=0.3)
    return model.double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoder(model):
    return wrap(copy.deepcopy(model), SimpleTokenizer(), {}, name="three", device=CPU, dtype=torch.float64)


def random_prompt(classes, images: int, width: int = 64, *, per_class: bool = False, deep: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(images + len(classes))
    tokens = classes.slots.shape[1]
    shape = (images, len(classes), tokens, width) if per_class else (images, tokens, width)
    context = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    layers = torch.randn(images, deep, tokens, width, generator=generator, dtype=torch.float64) if deep else None
    return Prompt(context, None if layers is None else layers.requires_grad_())


def scalar(features: torch.Tensor) -> torch.Tensor:
    """A scalar that depends on all features: cross-entropy against the neighbouring row, spread and a linear term."""
    logits = 20 * features @ features.roll(1, 1).transpose(1, 2)
    spread = (features - features.mean(1, keepdim=True)).norm(dim=-1).mean()
    linear = (features * torch.linspace(-1, 1, features.shape[-1], dtype=features.dtype)).sum()
    return -logits.log_softmax(-1).diagonal(dim1=1, dim2=2).mean() + spread + linear


def compare(encoder, model, classes, prompt: Prompt) -> None:
    fast = encoder.encode_classes(classes, prompt)
    slow = text_features(model, classes, prompt)
    assert (fast - slow).abs().max() <= 1e-10
    parts = list(prompt.parts().values())
    fast_loss, slow_loss = scalar(fast), scalar(slow)
    assert (fast_loss - slow_loss).abs() <= 1e-10 * max(1.0, slow_loss.abs().item())
    for one, other in zip(torch.autograd.grad(fast_loss, parts), torch.autograd.grad(slow_loss, parts), strict=True):
        assert (one - other).abs().max() <= 1e-10


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_equals_the_plain_loop(encoder, model, count, images):
    classes = tokenise(encoder, labels_of(count))
    compare(encoder, model, classes, random_prompt(classes, images))


def test_equals_the_plain_loop_with_300_classes(encoder, model):
    classes = tokenise(encoder, labels_of(300))
    assert len(pack(classes, class_specific=False, device=CPU).buckets) > 1
    compare(encoder, model, classes, random_prompt(classes, 1))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("context", ["before", "after", "around"])
def test_context_anywhere(encoder, model, context, images):
    classes = tokenise(encoder, labels_of(7), "a photo of a {} on the table.", context=context)
    compare(encoder, model, classes, random_prompt(classes, images))


@pytest.mark.parametrize("context", ["before", "after", "around"])
def test_a_context_for_each_class(encoder, model, context):
    classes = tokenise(encoder, labels_of(7), "a photo of a {} on the table.", context=context)
    compare(encoder, model, classes, random_prompt(classes, 2, per_class=True))


@pytest.mark.parametrize("deep", [1, 2])
def test_deep_prompts(encoder, model, deep):
    classes = tokenise(encoder, labels_of(7), tokens=2)
    compare(encoder, model, classes, random_prompt(classes, 2, deep=deep))


def test_a_name_first(encoder, model):
    classes = tokenise(encoder, labels_of(5), "{} in a photo.")
    compare(encoder, model, classes, random_prompt(classes, 2))


def test_no_context_at_all(encoder, model):
    classes = tokenise(encoder, labels_of(5), "{}", context="none")
    prompt = init_prompt(encoder, classes)
    assert prompt.context.shape == (1, 0, 64)
    assert (encoder.encode_classes(classes, prompt) - text_features(model, classes, prompt)).abs().max() <= 1e-10


def test_the_initial_prompt_is_the_sentence_itself(encoder, model):
    labels = labels_of(7)
    classes = tokenise(encoder, labels)
    tokens = SimpleTokenizer()([f"a photo of a {label}." for label in labels])
    expected = model.encode_text(tokens, normalize=True)
    assert (encoder.encode_classes(classes, init_prompt(encoder, classes))[0] - expected).abs().max() <= 1e-12


def test_images_do_not_mix(encoder):
    classes = tokenise(encoder, labels_of(7))
    prompt = random_prompt(classes, 3)
    together = encoder.encode_classes(classes, prompt)
    apart = torch.cat([encoder.encode_classes(classes, Prompt(prompt.context[i : i + 1])) for i in range(3)])
    assert (together - apart).abs().max() <= 1e-12


def test_batched_gradients_through_one_graph(encoder):
    classes = tokenise(encoder, labels_of(7))
    prompt = init_prompt(encoder, classes)
    context = prompt.context.requires_grad_()
    features = encoder.encode_classes(classes, Prompt(context))
    directions = torch.randn(5, *features.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (batched,) = torch.autograd.grad(features, context, directions, is_grads_batched=True, retain_graph=True)
    for direction, row in zip(directions, batched, strict=True):
        (alone,) = torch.autograd.grad(features, context, direction, retain_graph=True)
        assert (alone - row).abs().max() <= 1e-12


def test_vmap_over_prompts(encoder):
    classes = tokenise(encoder, labels_of(4))
    prompt = random_prompt(classes, 3).context.detach()
    mapped = torch.func.vmap(lambda context: encoder.encode_classes(classes, Prompt(context[None]))[0])(prompt)
    assert (mapped - encoder.encode_classes(classes, Prompt(prompt))).abs().max() <= 1e-12


def test_no_weight_gets_a_gradient(encoder):
    classes = tokenise(encoder, labels_of(3))
    prompt = random_prompt(classes, 1)
    encoder.encode_classes(classes, prompt).sum().backward()
    assert prompt.context.grad is not None
    assert not encoder.text.table.weight.requires_grad


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_narrow_dtypes(dtype, tolerance):
    exact = wrap(tiny_model(), SimpleTokenizer(), {}, name="t", device=CPU, dtype=torch.float64)
    narrow = wrap(tiny_model(), SimpleTokenizer(), {}, name="t", device=CPU, dtype=dtype)
    classes = tokenise(exact, labels_of(7))
    prompt = random_prompt(classes, 2)
    features = narrow.encode_classes(classes, Prompt(prompt.context.detach().float().requires_grad_()))
    assert features.dtype == torch.float32
    assert (features.double() - exact.encode_classes(classes, prompt)).abs().max() <= tolerance


def test_deep_prompts_that_cannot_be(encoder):
    after = tokenise(encoder, labels_of(3), "a photo of a {} on the table.", context="after")
    with pytest.raises(InvalidOptionError, match="before the class name"):
        encoder.encode_classes(after, random_prompt(after, 1, deep=1))
    before = tokenise(encoder, labels_of(3))
    with pytest.raises(InvalidOptionError, match="at most 2"):
        encoder.encode_classes(before, random_prompt(before, 1, deep=3))


def test_a_wrong_number_of_vectors_is_refused(encoder):
    classes = tokenise(encoder, ["cat"])
    with pytest.raises(InvalidOptionError, match=r"\[4, 64\]"):
        encoder.encode_classes(classes, Prompt(torch.zeros(1, 3, 64)))


def test_buckets_save_tokens_only_where_it_pays():
    assert bucket_bounds([3, 4, 5]) == [(0, 3)]
    lengths = [3] * 900 + [13] * 100
    assert bucket_bounds(lengths) == [(0, 900), (900, 1000)]


def test_packing_is_remembered_while_a_label_set_exists(model, monkeypatch):
    packed = []
    monkeypatch.setattr(shared_prefix, "pack", lambda *given, **more: packed.append(1) or pack(*given, **more))
    shared = SharedPrefix(causal_tower(model))
    encoder = wrap(tiny_model(), SimpleTokenizer(), {}, name="t", device=CPU, dtype=torch.float64)
    sets = [tokenise(encoder, [f"label {i}"]) for i in range(6)]
    for _ in range(2):
        for each in sets:
            shared(each, init_prompt(encoder, each))
    assert len(packed) == 6
    left = [weakref.ref(each) for each in sets]
    del sets, each
    gc.collect()
    assert [each() for each in left] == [None] * 6
