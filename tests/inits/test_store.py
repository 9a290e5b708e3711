"""A prompt comes back from disk as it was, and never into something it is not for."""

from __future__ import annotations

import dataclasses
import json
from collections import ChainMap

import pytest
import torch
from safetensors.torch import save_file

from poise.backbones import load_model
from poise.errors import InvalidCheckpointError
from poise.files import hash_names, read_tensors, save_tensors
from poise.inits import fpp
from poise.inits.convert import read_coop, read_maple
from poise.prompts.files import Facts, StoredPrompt, load, save
from poise.types import DualEncoder

LABELS = ("cat", "dog", "great white shark")


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def example(width: int = 64, tokens: int = 4, **facts: object) -> StoredPrompt:
    context = torch.randn(tokens, width, generator=torch.Generator().manual_seed(0))
    return StoredPrompt(
        {"context": context}, dataclasses.replace(Facts(kind="coop", model="tiny", template="X X X X {}."), **facts)
    )


def test_a_prompt_comes_back_as_it_was(tmp_path, encoder) -> None:
    save(tmp_path / "deep" / "p.safetensors", example())
    back = load(tmp_path / "deep" / "p.safetensors")
    assert back.facts == example().facts
    assert torch.equal(back.tensors["context"], example().tensors["context"])
    assert back.classes(encoder, LABELS).slots.tolist() == [[1, 2, 3, 4]] * 3
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("stored", "both"),
    [
        (example(width=48), ("48", "64")),
        (example(tokens=5), ("5", "4")),
        (example(model="pocket"), ("pocket", "tiny")),
        (example(labels_hash=hash_names(["dog", "cat"])), (hash_names(["dog", "cat"]), hash_names(LABELS))),
        (StoredPrompt({"context": torch.zeros(2, 4, 64)}, example().facts), ("2", "3")),
    ],
    ids=["width", "length", "model", "labels", "classes"],
)
def test_what_does_not_fit_is_refused_with_both_values(encoder, stored, both) -> None:
    with pytest.raises(InvalidCheckpointError) as refusal:
        stored.classes(encoder, LABELS)
    for value in both:
        assert value in str(refusal.value)


def test_other_files_are_refused(tmp_path) -> None:
    with pytest.raises(InvalidCheckpointError, match="no prompt file"):
        load(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InvalidCheckpointError, match="not a readable"):
        load(tmp_path / "text.safetensors")
    save_file({"weights": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpointError, match="weights"):
        load(tmp_path / "model.safetensors")
    save(tmp_path / "nan.safetensors", StoredPrompt({"context": torch.full((4, 64), torch.nan)}, example().facts))
    with pytest.raises(InvalidCheckpointError, match="not finite"):
        load(tmp_path / "nan.safetensors")


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"kind": "coop", "model": 3, "template": "X {}."}',
        "[" * 100_000,
        '{"kind": "coop", "model": "tiny", "template": "X {}.", "tokens": "two"}',
        '{"kind": "coop", "model": "tiny", "template": "X {}.", "more": 1}',
    ],
    ids=["empty", "cut", "list", "none", "number", "nested", "tokens", "unknown"],
)
def test_damaged_facts_are_refused(tmp_path, facts) -> None:
    path = tmp_path / "p.safetensors"
    save_file({"context": torch.zeros(4, 64)}, path, metadata={"format": "poise-prompt/1", "facts": facts})
    with pytest.raises(InvalidCheckpointError):
        load(path)


def test_a_context_of_another_shape_is_refused(tmp_path) -> None:
    save(tmp_path / "p.safetensors", StoredPrompt({"context": torch.zeros(64)}, example().facts))
    with pytest.raises(InvalidCheckpointError, match=r"shape \[64\]"):
        load(tmp_path / "p.safetensors")


def test_a_published_coop_checkpoint(tmp_path, encoder) -> None:
    path = tmp_path / "model.pth.tar-50"
    content = {"ctx": torch.randn(4, 64), "token_prefix": torch.zeros(3, 1, 64), "token_suffix": torch.zeros(3, 72, 64)}
    torch.save({"state_dict": content, "epoch": 50}, path)
    for position, slots in {"end": [1, 2, 3, 4], "middle": [1, 2, 4, 5], "front": [2, 3, 4, 5]}.items():
        stored = read_coop(path, "tiny", position=position)
        assert stored.classes(encoder, LABELS).slots[0].tolist() == slots
        assert torch.equal(stored.tensors["context"], content["ctx"])
    with pytest.raises(InvalidCheckpointError, match=r"proj\.weight"):
        read_maple(path, "tiny")


def test_class_specific_contexts_need_their_labels(tmp_path, encoder) -> None:
    path = tmp_path / "csc.pth.tar"
    torch.save({"state_dict": {"ctx": torch.randn(3, 4, 64)}}, path)
    with pytest.raises(InvalidCheckpointError, match="class-specific"):
        read_coop(path, "tiny")
    stored = read_coop(path, "tiny", labels_hash=hash_names(LABELS))
    assert len(stored.classes(encoder, LABELS)) == 3
    with pytest.raises(InvalidCheckpointError):
        stored.classes(encoder, LABELS[::-1])


def test_a_published_maple_checkpoint(tmp_path) -> None:
    path = tmp_path / "maple.pth.tar"
    state = {"prompt_learner.ctx": torch.randn(2, 64), "prompt_learner.proj.weight": torch.randn(48, 64)}
    state |= {"prompt_learner.proj.bias": torch.randn(48)}
    for layer in range(2):
        state[f"prompt_learner.compound_prompts_text.{layer}"] = torch.randn(2, 64)
        state[f"prompt_learner.compound_prompt_projections.{layer}.weight"] = torch.randn(48, 64)
        state[f"prompt_learner.compound_prompt_projections.{layer}.bias"] = torch.randn(48)
    torch.save({"state_dict": state}, path)
    stored = read_maple(path, "tiny")
    assert {name: list(tensor.shape) for name, tensor in stored.tensors.items()} == {
        "context": [2, 64],
        "deep": [2, 2, 64],
        "weight": [3, 48, 64],
        "bias": [3, 48],
    }
    assert torch.equal(stored.tensors["weight"][2], state["prompt_learner.compound_prompt_projections.1.weight"])
    del state["prompt_learner.compound_prompt_projections.1.bias"]
    torch.save({"state_dict": state}, path)
    with pytest.raises(InvalidCheckpointError, match="fit together"):
        read_maple(path, "tiny")


def trained(state: dict[str, torch.Tensor], **more: object) -> dict[str, object]:
    """A checkpoint as the published trainer writes it: beside the weights, its optimiser and its schedule object."""
    parameter = torch.nn.Parameter(torch.zeros(4, 64))
    optimiser = torch.optim.SGD([parameter], 2e-3, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 50)
    parameter.sum().backward()
    optimiser.step()  # so that the optimiser has a state
    schedule.step()
    warm_up = {"successor": schedule, "warmup_epoch": 1, "base_lrs": [2e-3], "last_epoch": 50}
    return {"state_dict": state, "epoch": 50, "optimizer": optimiser.state_dict(), "scheduler": warm_up} | more


def test_published_checkpoints_hold_a_schedule(tmp_path) -> None:
    context = torch.randn(4, 64)
    torch.save(trained({"ctx": context}), tmp_path / "coop.pth.tar-50")
    assert torch.equal(read_coop(tmp_path / "coop.pth.tar-50", "tiny").tensors["context"], context)
    names = {"ctx": (2, 64), "proj.weight": (48, 64), "proj.bias": (48,)}
    state = {f"prompt_learner.{name}": torch.randn(shape) for name, shape in names.items()}
    torch.save(trained(state), tmp_path / "maple.pth.tar-5")
    assert torch.equal(read_maple(tmp_path / "maple.pth.tar-5", "tiny").tensors["context"], state["prompt_learner.ctx"])


class Evil:
    def __reduce__(self) -> object:
        return (print, ("ran",))


@pytest.mark.parametrize(
    "foreign",
    [Evil(), torch.optim.Adam([torch.zeros(1)]), torch.nn.Linear(1, 1), ChainMap],
    ids=["call", "optimiser", "module", "class"],
)
def test_a_checkpoint_that_holds_other_objects_is_refused_and_not_run(tmp_path, capsys, foreign) -> None:
    torch.save(trained({"ctx": torch.zeros(4, 64)}, config=foreign), tmp_path / "evil.pth.tar")
    with pytest.raises(InvalidCheckpointError, match="plain weights"):
        read_coop(tmp_path / "evil.pth.tar", "tiny")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": [1, 2]}, {"state_dict": None}, 3])
def test_a_checkpoint_without_named_tensors_is_refused(tmp_path, content) -> None:
    torch.save(content, tmp_path / "other.pth.tar")
    with pytest.raises(InvalidCheckpointError, match="no tensors"):
        read_coop(tmp_path / "other.pth.tar", "tiny")


def test_damaged_checkpoints_are_refused(tmp_path) -> None:
    torch.save(trained({"ctx": torch.zeros(4, 64)}), tmp_path / "good.pth.tar")
    good, bad = (tmp_path / "good.pth.tar").read_bytes(), tmp_path / "bad.pth.tar"
    for end in range(0, len(good), 97):
        bad.write_bytes(good[:end])
        with pytest.raises(InvalidCheckpointError, match="damaged"):
            read_coop(bad, "tiny")
    refused = 0
    for at in range(0, len(good), 97):
        bad.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            context = read_coop(bad, "tiny").tensors["context"]
        except InvalidCheckpointError:
            refused += 1
        else:  # no checksum is read, so a byte of the weights changes one number, and one of the padding nothing
            assert context.shape == (4, 64)
            assert int((context != 0).sum()) <= 1
    assert refused


def test_checkpoints_of_several_gpus_are_read(tmp_path) -> None:
    """DataParallel puts its name in front of the others."""
    context = torch.randn(4, 64)
    torch.save({"state_dict": {"module.prompt_learner.ctx": context}}, tmp_path / "parallel.pth.tar")
    assert torch.equal(read_coop(tmp_path / "parallel.pth.tar", "tiny").tensors["context"], context)


def test_a_prompt_belongs_to_one_model_not_only_to_its_name(tmp_path, encoder) -> None:
    stored = example(model_fingerprint=encoder.fingerprint())
    save(tmp_path / "p", stored)
    assert load(tmp_path / "p").facts == stored.facts
    assert len(load(tmp_path / "p").classes(encoder, ["cat", "dog"])) == 2
    with pytest.raises(InvalidCheckpointError, match=f"fingerprint is '00ff', but '{encoder.fingerprint()}' is needed"):
        example(model_fingerprint="00ff").classes(encoder, ["cat", "dog"])


def test_a_prompt_file_without_a_fingerprint_is_still_read(tmp_path, encoder) -> None:
    save(tmp_path / "p", example())
    tensors, metadata = read_tensors(tmp_path / "p")
    facts = json.loads(metadata["facts"])
    del facts["model_fingerprint"]
    save_tensors(tmp_path / "p", tensors, metadata | {"facts": json.dumps(facts)})
    assert load(tmp_path / "p").facts.model_fingerprint == ""
    assert len(load(tmp_path / "p").classes(encoder, ["cat", "dog"])) == 2


def test_fitted_prompts_record_the_fingerprint(encoder) -> None:
    assert Facts.of(encoder, kind="coop", template="a {}.").model_fingerprint == encoder.fingerprint()
    stored = fpp.fit(encoder, ["cat", "dog"], recipe=fpp.Flatness(steps=1))
    assert stored.facts.model_fingerprint == encoder.fingerprint()
