"""The one loop, on problems whose text tower is the identity: features are the context, so steps are easy to follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from poise import methods
from poise.encoding.class_texts import joined
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.objectives import Sum
from poise.tuning.episodic import ContextProblem
from poise.tuning.gradient import Features, ObjectiveGradient
from poise.tuning.loop import Scope, adapt, parted
from poise.types import Answer, Objective, Outputs, Prompt

IMAGES, VIEWS, CLASSES, WIDTH = 3, 6, 4, 5


class Identity:
    """Stands in for `ClassTexts`: a context [n, C, D] is its own text features. Counts the calls."""

    init_rms = 0.5

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def features(self, prompt: Prompt) -> Tensor:
        self.calls.append(("features", len(prompt)))
        return prompt.context

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        return images @ texts.mT

    def pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        self.calls.append(("pullback", len(prompt)))
        return Prompt(cotangent)

    def pullback_to_init(self, cotangent: Tensor) -> Prompt:
        self.calls.append(("pullback_to_init", len(cotangent)))
        return Prompt(cotangent)


class OwnGradient(ContextProblem):
    """Takes the gradient of the texts as that of the context, which it is here."""

    def gradient(self, cotangent: Features, text_gradient: Prompt) -> Prompt:
        assert torch.equal(cotangent.texts.nan_to_num(), text_gradient.context.nan_to_num())
        return Prompt(cotangent.texts)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def start(
    texts: Identity, method: Method, objective: Sum | None, *, scope: Scope = Scope.SHARED, count: int = IMAGES
) -> ContextProblem:
    """The problem of the first images, at one context for all of them."""
    images, context = random(IMAGES, VIEWS, WIDTH)[:count], random(1, CLASSES, WIDTH, seed=1)
    if scope is Scope.PER_IMAGE:
        context = context.repeat(count, 1, 1)
    logits = texts.logits(images, context)
    untuned = Outputs(images, context.expand(count, -1, -1), logits, logits)
    gradient = None if objective is None else ObjectiveGradient(objective)
    return OwnGradient(
        method,
        gradient,
        texts,
        untuned,
        Prompt(context),
        Prompt(context),
        Features(context),
        scope,  # type: ignore[arg-type]
    )


def solve(problems: Sequence[ContextProblem], texts: Identity) -> list[Answer[Tensor]]:
    """The answers of problems that are solved together."""
    adapt(problems, texts)  # type: ignore[arg-type]
    return [problem.answers([problem.method])[problem.method.name] for problem in problems]


def plain(method: Method) -> tuple[Tensor, Tensor, Tensor]:
    """Contexts, losses and logits of each image, by autograd and AdamW's formulas, one image at a time."""
    images, contexts, losses, answers = random(IMAGES, VIEWS, WIDTH), [], [], []
    lr = 0.5 * float(method.lr.removesuffix("rms")) if isinstance(method.lr, str) else method.lr
    for image in images:
        context, mean, square, row = random(1, CLASSES, WIDTH, seed=1), 0.0, 0.0, []
        reference = (image @ context[0].mT)[None]
        for step in range(1, method.steps + 1):
            context.requires_grad_()
            loss = method.objective()(Outputs(image[None], context, (image @ context[0].mT)[None], reference))
            (gradient,) = torch.autograd.grad(loss.sum(), context)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            scale = (square / (1 - 0.999**step)).sqrt() + 1e-8
            context = (1 - lr * method.weight_decay) * context.detach() - lr * mean / (1 - 0.9**step) / scale
            row.append(loss.item())
        contexts.append(context[0])
        losses.append(row)
        answers.append(image @ context[0].mT)
    return torch.stack(contexts), torch.tensor(losses, dtype=torch.float64), torch.stack(answers)


CHOSEN = [
    methods.get("tpt", steps=2, lr=0.03),
    methods.get("c-tpt", steps=1, lr=0.01, weight_decay=0.5),
    methods.get("kld+cats", steps=4, lr="0.1rms"),
]


@pytest.mark.parametrize("scope", list(Scope))
def test_problems_side_by_side_equal_one_image_at_a_time(scope: Scope) -> None:
    texts = Identity()
    problems = [start(texts, method, method.objective(), scope=scope) for method in CHOSEN]
    for method, answer in zip(CHOSEN, solve(problems, texts), strict=True):
        context, losses, logits = plain(method)
        torch.testing.assert_close(answer.prompt.context, context, atol=1e-12, rtol=0)
        torch.testing.assert_close(answer.losses, losses, atol=1e-12, rtol=0)
        torch.testing.assert_close(answer.logits, logits[:, 0], atol=1e-11, rtol=0)
        assert torch.equal(answer.view_labels, logits.argmax(-1))
        assert torch.equal(answer.text_features, answer.prompt.context)
        assert answer.fallback.tolist() == [False] * IMAGES
    assert all(problem.scope is Scope.PER_IMAGE for problem in problems)


def test_problems_share_every_pass_and_leave_when_they_are_done() -> None:
    texts = Identity()
    adapt([start(texts, method, method.objective()) for method in CHOSEN], texts)  # type: ignore[arg-type]
    sizes = [9, 6, 3, 3]  # three problems of three images, two, and one for two more steps
    first = [("pullback_to_init", 9), ("features", 9)]
    assert texts.calls == first + [(name, size) for size in sizes[1:] for name in ("pullback", "features")]


def test_nothing_to_tune_is_the_answer_of_the_init() -> None:
    texts = Identity()
    adapt([], texts)  # type: ignore[arg-type]
    problem = start(texts, methods.get("tpt", steps=3), None)
    (answer,) = solve([problem], texts)
    assert texts.calls == []
    assert answer.losses.shape == (IMAGES, 0)
    assert torch.equal(answer.logits, problem.untuned.logits[:, 0])
    assert torch.equal(answer.prompt.context, random(1, CLASSES, WIDTH, seed=1).expand(IMAGES, -1, -1))
    assert answer.fallback.tolist() == [False] * IMAGES


def test_a_relative_learning_rate_is_computed_only_where_something_is_tuned() -> None:
    class Zeros(Identity):
        init_rms = 0.0  # nothing can be relative to it

    relative = methods.get("tpt", lr="0.1rms")
    assert start(Zeros(), relative, None).steps == 0
    with pytest.raises(InvalidOptionError, match="RMS 0"):
        start(Zeros(), relative, relative.objective())
    assert start(Zeros(), methods.get("tpt", lr=0.25), relative.objective()).optimiser.lr == 0.25


@dataclass(frozen=True)
class Poisoned(Objective):
    """Each image's logits, with a value or a gradient that is not finite for image 1 from the step ``after`` on."""

    where: str
    seen: list[int]
    after: int = 1

    def __call__(self, out: Outputs) -> Tensor:
        value = out.logits.square().mean((1, 2))
        self.seen.append(1)
        if len(self.seen) < self.after:
            return value
        one = value[1:2]
        steep = (one - one.detach()).abs().sqrt()  # 0, with an infinite derivative times 0
        return torch.cat([value[:1], one + (torch.inf if self.where == "value" else steep), value[2:]])


@pytest.mark.parametrize("where", ["value", "gradient"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_is_not_finite_in_any_step_is_answered_by_the_init(where: str, after: int) -> None:
    texts = Identity()
    method = methods.get("tpt", steps=3, lr=0.03)
    problem = start(texts, method, Sum(((1.0, Poisoned(where, [], after)),)))
    sound = start(texts, method, Sum(((1.0, Poisoned(where, [], 99)),)))
    answer, other = (solve([each], texts)[0] for each in (problem, sound))
    assert answer.fallback.tolist() == [False, True, False]
    assert answer.losses[1, : after - 1].isfinite().all()
    assert answer.losses[[0, 2]].isfinite().all()
    for tuned, init, well in (
        (answer.logits, problem.untuned.logits[:, 0], other.logits),
        (answer.view_labels, problem.untuned.logits.argmax(-1), other.view_labels),
        (answer.text_features, problem.untuned.text_features, other.text_features),
        (answer.prompt.context, problem.init_prompt.context.expand(IMAGES, -1, -1), other.prompt.context),
    ):
        assert torch.equal(tuned[1], init[1])
        assert torch.equal(tuned[[0, 2]], well[[0, 2]])


def test_logits_that_are_not_finite_are_answered_by_the_init() -> None:
    """The last step's parameters are finite, and the text tower's answer to them is not."""

    class Breaks(Identity):
        def features(self, prompt: Prompt) -> Tensor:
            texts = super().features(prompt).clone()
            texts[2, 0] = torch.inf
            return texts

    texts, method = Breaks(), methods.get("tpt", steps=1, lr=0.03)
    (answer,) = solve([start(texts, method, method.objective())], texts)
    assert answer.fallback.tolist() == [False, False, True]
    assert answer.logits.isfinite().all()
    assert answer.target_probs.isfinite().all()


def test_only_the_plain_view_of_the_answer_has_to_be_finite() -> None:
    class LastViews(OwnGradient):
        def outputs(self, features: Features) -> Outputs:
            out = super().outputs(features)
            if self.losses:  # after the only step
                out.logits[0, 0, 2] = torch.nan
                out.logits[1, 1, 2] = torch.nan
            return out

    texts, method = Identity(), methods.get("tpt", steps=1, lr=0.03)
    one = start(texts, method, method.objective())
    problem = LastViews(**{field.name: getattr(one, field.name) for field in fields(one)})
    (answer,) = solve([problem], texts)
    assert answer.fallback.tolist() == [True, False, False]


@dataclass(frozen=True)
class MeanFeatures(Features):
    """Several rows for the one image there is."""

    def per_image(self, rows: Tensor) -> Tensor:
        return rows.mean(0, keepdim=True)


class SeveralPrompts(ContextProblem):
    """One image tunes several contexts, and answers with the mean."""

    def follow(self, texts: Tensor) -> MeanFeatures:
        return MeanFeatures(texts)

    def outputs(self, features: Features) -> Outputs:
        count, out = len(features.texts), super().outputs(features)
        return replace(out, reference_logits=out.reference_logits.expand(count, -1, -1))

    def prompt(self) -> Prompt:
        return Prompt(self.parameters.context.mean(0, keepdim=True))


@pytest.mark.parametrize("broken", [False, True])
def test_several_prompts_of_one_image_answer_together_or_not_at_all(broken: bool) -> None:
    class Texts(Identity):
        def pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
            gradient = super().pullback(prompt, cotangent)
            if broken and len(self.calls) == 3:  # the second and last step, of the second row alone
                gradient.context[1] = torch.nan
            return gradient

        def features(self, prompt: Prompt) -> Tensor:
            return super().features(prompt).nan_to_num()  # so that only the parameters show it

    texts, method = Texts(), methods.get("tpt", steps=2, lr=0.03)
    one = start(texts, method, method.objective(), count=1)
    rows = one.parameters.map(lambda part: part.repeat(2, 1, 1))
    features = MeanFeatures(rows.context)
    problem = SeveralPrompts(method, one.objective, texts, one.untuned, one.init_prompt, rows, features)  # type: ignore[arg-type]
    (answer,) = solve([problem], texts)
    assert answer.fallback.tolist() == [broken]
    _, losses, logits = plain(method)
    torch.testing.assert_close(answer.losses, losses[:1], atol=1e-12, rtol=0)
    expected = one.untuned.logits if broken else logits[:1]
    torch.testing.assert_close(answer.logits, expected[:, 0], atol=1e-11, rtol=0)
    assert torch.equal(answer.view_labels, expected.argmax(-1))


def test_parts_are_the_inverse_of_joining() -> None:
    prompts = [Prompt(torch.randn(rows, 2, 3), text_layers=torch.randn(rows, 1, 2, 3)) for rows in (1, 3, 2)]
    for part, prompt in zip(parted(joined(prompts), [1, 3, 2]), prompts, strict=True):
        assert part.parts().keys() == prompt.parts().keys()
        assert all(torch.equal(part.parts()[name], tensor) for name, tensor in prompt.parts().items())
