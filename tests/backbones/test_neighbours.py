"""Zero-shot answers equal those of open_clip's and transformers' own code on the same checkpoint."""

from __future__ import annotations

import json

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from poise.backbones import load_model
from poise.errors import InvalidLabelsError, InvalidOptionError
from poise.prompts import init_prompt, tokenise
from poise.testing import check_backbone
from poise.types import Prompt
from poise.views import plan_views
from poise.views.pil.crops import make_views
from tests.backbones.saved import OPEN_CLIP, save_clip, save_open_clip, save_siglip, siglip_tokenizer

LABELS = ["cat", "great white shark", "a dog", "annual crop land of the north"]


def pictures(size: int, count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def our_logits(encoder, views: torch.Tensor, template: str = "a photo of a {}.") -> torch.Tensor:
    classes = tokenise(encoder, LABELS, template)
    text = encoder.encode_classes(classes, init_prompt(encoder, classes))
    return encoder.logits(encoder.encode_images(views[:, None]), text)[:, 0]


@pytest.fixture(scope="module", params=list(OPEN_CLIP))
def open_clip_folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_open_clip(request.param, folder)
    return folder


def test_open_clip(open_clip_folder):
    name = f"local-dir:{open_clip_folder}"
    model = open_clip.create_model(name)
    encoder = load_model(name, device="cpu")
    assert encoder.image.mean == (0.5, 0.4, 0.3)
    assert encoder.image.resize == "squash"
    views = pictures(encoder.image.size)
    model.eval()
    tokens = open_clip.get_tokenizer(name)([f"a photo of a {label}." for label in LABELS])
    with torch.no_grad():
        theirs, _ = model.get_logits(views, tokens)
    ours = our_logits(encoder, views)
    assert (ours - theirs).abs().max() <= 1e-4
    assert (ours.softmax(-1) - theirs.softmax(-1)).abs().max() <= 1e-5
    check_backbone(encoder)


def test_open_clip_with_a_hugging_face_tokenizer(tmp_path):
    save_open_clip("siglip", tmp_path)
    siglip_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"] |= {"hf_tokenizer_name": "here", "tokenizer_kwargs": {"clean": "canonicalize"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    name = f"local-dir:{tmp_path}"
    model = open_clip.create_model(name).eval()
    encoder = load_model(name, device="cpu")
    views = pictures(32)
    with torch.no_grad():
        theirs, _ = model.get_logits(
            views, open_clip.get_tokenizer(name)([f"a photo of a {label}." for label in LABELS])
        )
    assert (our_logits(encoder, views).softmax(-1) - theirs.softmax(-1)).abs().max() <= 1e-5


def test_quick_gelu_is_read_from_the_configuration(tmp_path):
    for kind in ("vit", "quickgelu"):
        save_open_clip(kind, tmp_path / kind)  # the same seed: the weights are equal
    one, other = (our_logits(load_model(f"local-dir:{tmp_path / kind}"), pictures(32)) for kind in ("vit", "quickgelu"))
    assert (one - other).abs().max() > 1e-3


def test_transformers_siglip(tmp_path):
    import transformers

    model = save_siglip(tmp_path)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    assert encoder.fixed_length
    assert encoder.bias == pytest.approx(-7.0)
    views = pictures(32)
    texts = [f"this is a photo of {label}." for label in LABELS]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        texts, padding="max_length", max_length=64, return_tensors="pt"
    )
    with torch.no_grad():
        theirs = model(input_ids=inputs["input_ids"], pixel_values=views).logits_per_image
    ours = our_logits(encoder, views, "this is a photo of {}.")
    assert (ours.softmax(-1) - theirs.softmax(-1)).abs().max() <= 1e-5
    assert (ours.sigmoid() - theirs.sigmoid()).abs().max() <= 1e-5
    check_backbone(encoder)


def test_siglip_with_its_own_tokenizer(tmp_path):
    pieces = pytest.importorskip("sentencepiece", reason="SigLIP's own tokenizer needs sentencepiece")
    from transformers import SiglipTokenizer

    sentences = ["a photo of a cat in the great white room", "this dog saw a shark, the quick brown fox jumps"] * 20
    with (tmp_path / "trained.model").open("wb") as file:
        pieces.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=60,
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    tokenizer = SiglipTokenizer(str(tmp_path / "trained.model"), model_max_length=64, model_input_names=["input_ids"])
    model = save_siglip(tmp_path / "model", tokenizer=tokenizer)
    encoder = load_model(f"transformers:{tmp_path / 'model'}", device="cpu")
    ids = tokenizer([f"a photo of a {label}." for label in LABELS], padding="max_length", return_tensors="pt").input_ids
    views = pictures(32)
    with torch.no_grad():
        theirs = model(input_ids=ids, pixel_values=views).logits_per_image
    assert (our_logits(encoder, views).sigmoid() - theirs.sigmoid()).abs().max() <= 1e-5


@pytest.mark.parametrize("save", [save_siglip, lambda folder: save_open_clip("siglip", folder)])
def test_the_general_path_takes_batched_gradients_and_contexts_per_class(tmp_path, save):
    save(tmp_path)
    scheme = "transformers" if (tmp_path / "config.json").exists() else "local-dir"
    encoder = load_model(f"{scheme}:{tmp_path}", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS)
    start = init_prompt(encoder, classes).context
    context = start.clone().requires_grad_()
    features = encoder.encode_classes(classes, Prompt(context))
    directions = torch.randn(3, *features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (batched,) = torch.autograd.grad(features, context, directions, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(features, context, direction, retain_graph=True)[0] for direction in directions]
    assert batched.abs().max() > 0
    assert (batched - torch.stack(alone)).abs().max() <= 1e-10
    each = encoder.encode_classes(classes, Prompt(start[:, None].expand(-1, len(LABELS), -1, -1)))
    assert (each - features).abs().max() <= 1e-12
    with pytest.raises(InvalidOptionError, match="causal"):
        encoder.encode_classes(classes, Prompt(start, text_layers=start[:, None]))


@pytest.mark.parametrize("size", [(35, 32), (32, 39), (33, 32), (37, 32)])
def test_transformers_clip_reads_images_of_odd_sizes_as_its_own_processor_does(tmp_path, size):
    import transformers

    model = save_clip(tmp_path)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image, processor = Image.fromarray(noise), transformers.AutoProcessor.from_pretrained(tmp_path)
    inputs = processor(text=[f"a photo of a {x}." for x in LABELS], images=image, padding=True, return_tensors="pt")
    views = make_views(image, encoder.image, plan_views(image.size, views=1))
    with torch.no_grad():
        theirs = model(**inputs).logits_per_image
    assert (views[0] - inputs["pixel_values"][0]).abs().max() <= 1e-5
    assert (our_logits(encoder, views).softmax(-1) - theirs.softmax(-1)).abs().max() <= 1e-5


def test_transformers_clip(tmp_path):
    model = save_clip(tmp_path, merges=None)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    from transformers import AutoTokenizer

    views = pictures(32)
    texts = [f"a photo of a {label}." for label in LABELS]
    inputs = AutoTokenizer.from_pretrained(tmp_path)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(pixel_values=views, **inputs).logits_per_image
    ours = our_logits(encoder, views)
    assert (ours.softmax(-1) - theirs.softmax(-1)).abs().max() <= 1e-5
    check_backbone(encoder)
    with pytest.raises(InvalidLabelsError, match="end-of-text"):
        tokenise(encoder, ["cat <|endoftext|>"])


@pytest.mark.parametrize("save", [save_clip, save_siglip])
def test_transformers_own_pipeline(tmp_path, save):
    from torchvision.transforms.functional import normalize, to_tensor
    from transformers import pipeline

    save(tmp_path)
    theirs = pipeline("zero-shot-image-classification", model=str(tmp_path), device="cpu")
    picture = Image.effect_noise((32, 32), 80).convert("RGB")  # the model's own size: no resizing is compared here
    answer = theirs(picture, candidate_labels=LABELS, hypothesis_template="a photo of a {}.")
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    view = normalize(to_tensor(picture), encoder.image.mean, encoder.image.std)[None]
    logits = our_logits(encoder, view)[0]
    ours = logits.sigmoid() if encoder.fixed_length else logits.softmax(-1)
    assert {row["label"]: row["score"] for row in answer} == pytest.approx(
        dict(zip(LABELS, ours.tolist(), strict=True)), abs=1e-5
    )


def test_tiny_conforms_and_is_the_same_every_time():
    encoder = load_model("tiny", device="cpu")
    check_backbone(encoder)
    again = load_model("tiny", device="cpu")
    assert torch.equal(our_logits(encoder, pictures(32)), our_logits(again, pictures(32)))


def test_loading_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    load_model("tiny", device="cpu")
    assert torch.equal(before, torch.get_rng_state())
