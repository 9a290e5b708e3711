"""Zero-shot image classification with calibrated probabilities."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

import numpy as np
from typing_extensions import TypeVar

from poise.backbones.load import check_encoder, load_model
from poise.calibration import Calibration, Drawn, Evaluation, Tree
from poise.calibration.independent import IndependentCalibration
from poise.calibration.label_evaluation import LabelEvaluation
from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_VIEWS
from poise.errors import CalibrationImageError, InvalidOptionError, MissingDependencyError, WrongProcessError
from poise.inference import calibrating, evaluating
from poise.inference import independent as independent_labels
from poise.inference.answers import Predictions, of_image
from poise.inference.grouped import GroupedTuner, find_groups, joined, key_of
from poise.inference.guarantees import KNOWN_IMAGE, Guarantees, conditions_of, read, trusted_options
from poise.inference.heuristics import check_reject
from poise.inference.independent import LabelGuarantees, check_independent, independent_method
from poise.inference.option_checks import check_guarantees, check_structure, find_methods, find_views
from poise.inference.predictor import Predictor
from poise.inference.to_result import to_result
from poise.inits.kinds import check_template
from poise.methods import Method
from poise.options import AnswerOptions, ComputeOptions, Options, rows
from poise.progress import watched
from poise.prompts import DEFAULT_TEMPLATE, check_labels, tokenise
from poise.prompts.labels import check_negations
from poise.results import Failure, Result, Results, flat_rows
from poise.text import counted
from poise.threads import check_process
from poise.tuning import AnyTuner, Tuner, make_tuner
from poise.types import Answer, DualEncoder, Prompt
from poise.views import ViewRecipe

if TYPE_CHECKING:
    import pandas

Methods = str | Method | Sequence[str | Method]
M_co = TypeVar("M_co", bound=Methods, covariant=True, default=str)  # decides what a call returns


class Classifier(Generic[M_co]):
    """Zero-shot image classification with test-time prompt tuning.

    The labels are encoded once, by the constructor. Calls have no side effects: the same image, labels, options and
    seed give the same answer, independent of the file's name and of the other images in the call (up to rounding).

    Args:
        labels: class names without duplicates. Probabilities are relative to these labels and sum to 1. Or lists of
            them by group, {"animal": ["cat", "dog"], "place": ["indoor", "outdoor"]}: each group is then answered by
            itself (`Result.groups`).
        model: a name from `poise.list_models`, or a loaded model.
        method: how the prompt is tuned for each image: a name from `poise.list_methods`, with post-hoc steps after it
            if wanted ("kld+cats | cots"), or a `poise.Method`; or a list of them.
        parents: a tree of the labels: the parent of each label and node, such as {"tabby cat": "cat", "cat": "animal"},
            or a path for each label, such as "animal > cat > tabby cat". With ``max_error``, the answer is then the
            most specific node that is sure enough, and with ``coverage``, sets contain nodes.
        groups: the name of each label's group, where ``labels`` is one list.
        independent: whether any number of the labels may apply, so that each has a probability of its own. The method
            is then zero-shot. A model with a softmax needs a calibration for that.
        template: prompt with ``{}`` for the label. None: "a photo of a {}.", or the template of the prompt file that
            ``init`` names.
        context: which words of the template are tuned: those "before" or "after" the label, "around" it, "none" of
            them, or "auto" (those before it if there are any).
        init: where tuning starts: "template" (its words), "fpp" or "fpp-shift" (fitted here, without data), the file
            of a prompt from `poise fit` or `poise convert`, or a prompt.
        views: views per image, the plain image included; "auto": those of the calibration. The paper has 64.
        augmix: mix the augmented views with AugMix, as the published protocol does on fine-grained datasets.
        seed: seed of the random views.
        device: "auto" (CUDA, else MPS, else the CPU), "cpu", "cuda", "cuda:1", "mps", "openvino", or a torch.device.
        dtype: "auto" (float16 on CUDA, else float32) or a dtype of `poise.load_model`.
        logit_scale: the factor from cosine to logit, of a model whose checkpoint has none; see `poise.load_model`.
        batch_size: images computed together; None: by device.
        on_long_label: "error" rejects labels that are longer than the model reads; "truncate" cuts them and warns.
        one_label: accept a single label, whose probability is then 1 for any image.
        calibration: what `calibrate` returned, or its file. Probabilities are then calibrated, and `Result.set_at`
            works. Model, labels, method and views must be those of the calibration.
        coverage: each result contains a prediction set, which contains the correct label for this share of images.
        max_error: each result contains a decision to answer or to abstain; at most this share of the answers is wrong.
        precision: with independent labels and their calibration, `Result.outcomes` has a yes for labels so that at
            least this share of each label's yes is right.
        recall: likewise, a no so that at least this share of the images with a label gets none.
        reject: give the label "unknown" to images whose `Result.match` is below this number (heuristic); None: never.
            No number suits all labels and models; docs/unknown.md says how to choose one.

    Raises:
        InvalidCalibrationError: The calibration is of another classifier, or does not allow what is asked for.
        InvalidLabelsError: Labels are missing, blank, repeated or too long.
        InvalidOptionError, UnknownNameError: An option or a name is not valid.

    Example:
        >>> import numpy as np
        >>> classify = Classifier(["cat", "dog"], model="tiny", views=4, device="cpu")
        >>> image = np.zeros((32, 32, 3), np.uint8)
        >>> result = classify(image)
        >>> result.label in classify.labels, round(sum(result.probabilities.values()), 6)
        (True, 1.0)
        >>> classify.predict_proba([image, image]).shape
        (2, 2)
    """

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, Sequence[str]],
        model: str | DualEncoder = DEFAULT_MODEL,
        method: M_co = DEFAULT_METHOD,  # type: ignore[assignment]  # the default of the type variable is str
        *,
        parents: Mapping[str, str | None] | Sequence[str] = (),
        groups: Sequence[str] = (),
        independent: bool = False,
        template: str | None = None,
        context: str = "auto",
        init: str | Path | Prompt = "template",
        views: int | Literal["auto"] = DEFAULT_VIEWS,
        augmix: bool = False,
        seed: int = 0,
        device: Any = "auto",
        dtype: Any = "auto",
        logit_scale: float | None = None,
        batch_size: int | None = None,
        on_long_label: Literal["error", "truncate"] = "error",
        one_label: bool = False,
        calibration: str | Path | Calibration | IndependentCalibration | None = None,
        coverage: float | None = None,
        max_error: float | None = None,
        precision: float | None = None,
        recall: float | None = None,
        reject: float | None = None,
    ) -> None:
        given = dict(locals())  # the options as they were given
        # Check all that does not depend on the model before loading it.
        if independent:
            method, views = independent_method(method), 1  # type: ignore[assignment]
        views = find_views(views, batch_size, calibration)
        fewest = 1 if one_label or independent else 2
        self.groups = find_groups(labels, groups, fewest)
        flat = [label for part in self.groups.values() for label in part] if self.groups else labels
        self.labels = check_labels(flat, fewest=fewest)  # type: ignore[arg-type]  # a mapping gives groups
        if independent or self.groups:
            check_negations(self.labels)
        check_structure(self.groups, parents, calibration, independent=independent)
        self.tree = Tree(self.labels, parents) if parents else None
        self.reject = check_reject(reject, self.labels)
        self.methods = find_methods(method, views)
        self._several = not isinstance(method, str | Method)
        if not isinstance(init, Prompt):
            check_template(str(init), template)
        check_guarantees(calibration, coverage, max_error, reject)
        stored = None if calibration is None else read(calibration)
        check_independent(independent, stored, precision, recall)
        if isinstance(model, str):
            model = load_model(model, device=device, dtype=dtype, logit_scale=logit_scale)
        self.encoder = check_encoder(model)
        understood = {
            "labels": self.labels,
            "parents": self.tree.paths if self.tree else (),
            "groups": tuple(name for name, part in self.groups.items() for _ in part),
            "model": self.encoder.name,
            "method": tuple(row.name for row in self.methods),
            "init": "prompt" if isinstance(init, Prompt) else str(init),
            "views": views,
            "device": str(device),
            "dtype": str(dtype),
        }
        asked = {row.name: given[row.name] for row in rows(AnswerOptions, ComputeOptions)}
        self.options = Options(**{**asked, **understood})
        self._init = init
        self._prepare()
        self.guarantees: Guarantees | None = None
        self.label_guarantees: LabelGuarantees | None = None
        if independent:
            useless = {"coverage": coverage, "max_error": max_error, "reject": reject}
            self.label_guarantees = LabelGuarantees(self, stored, precision, recall, useless)
        elif stored is not None:
            now = conditions_of(self, like=stored.conditions.fingerprint)
            self.guarantees = Guarantees(stored, now, self.methods, coverage, max_error)

    @classmethod
    def from_calibration(cls, calibration: str | Path | Calibration, **options: Any) -> Classifier[Any]:
        """Return the classifier that a calibration was made with, and with the method that it recommends.

        Args:
            calibration: what `calibrate` returned, or its file; labels, model, template, init, views, AugMix and seed
                are taken from it. A model that would be downloaded has to be given in ``options``.
            options: options of `Classifier`, such as ``coverage``, ``max_error`` or ``device``; they replace those of
                the calibration, which must be valid for them.

        Example:
            >>> import numpy as np
            >>> classify = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu")
            >>> images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
            >>> calibration = classify.calibrate(images, ["cat", "dog"] * 10)
            >>> Classifier.from_calibration(calibration, coverage=0.8, device="cpu").labels
            ('cat', 'dog')
        """
        stored = read(calibration)
        known = {**trusted_options(stored, options), "method": stored.recommended}
        return cls(**{**known, **options, "calibration": stored})

    @property
    def recipe(self) -> ViewRecipe:
        """How images are cut into views."""
        return ViewRecipe(self.options.views, self.options.seed, self.options.augmix)

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is a sequence of str, and is meant first
        self: _One, images: list[Any] | tuple[Any, ...], *, details: bool = False
    ) -> list[Result]: ...

    @overload
    def __call__(self: _One, images: Any, *, details: bool = False) -> Result: ...

    @overload
    def __call__(self: _Several, images: list[Any] | tuple[Any, ...], *, details: bool = False) -> list[Results]: ...

    @overload
    def __call__(self: _Several, images: Any, *, details: bool = False) -> Results: ...

    def __call__(self, images: Any, *, details: bool = False) -> Any:
        """Classify one image, or a list of them.

        Args:
            images: a path, encoded bytes, a PIL image, a NumPy array or a uint8 tensor [3, H, W]; or a list of them.
            details: whether to return intermediate results (`Result.details`).

        Returns:
            A `Result`, or a dict of results by method if ``method`` is a list; a list of them for a list of images.

        Raises:
            UnreadableImageError: An image can't be read. `each` yields a `Failure` instead.
            CalibrationImageError: An image is one of the calibration images; likewise.
        """
        if isinstance(images, list | tuple):
            return [self._shown(results) for results in self._answered(images, details=details)]
        return self._shown(next(self._answered([images], details=details)))

    def each(self, images: Iterable[Any], *, details: bool = False) -> Iterator[Results | Failure]:
        """Yield one outcome per image, in order: a dict of results by method, or a `Failure` with the reason.

        Args:
            images: as of a call.
            details: whether results have ``details``.

        Example:
            >>> import numpy as np
            >>> classifier = Classifier(["cat", "dog"], model="tiny", views=2, device="cpu")
            >>> [type(outcome).__name__ for outcome in classifier.each([np.zeros((8, 8, 3), np.uint8), "missing.png"])]
            ['dict', 'Failure']
        """
        if self.label_guarantees:
            self.label_guarantees.check()
        for outcome in self.predictions(images, details=details):
            yield self.results(outcome, details=details)

    def results(self, outcome: Predictions | Failure, *, details: bool = False) -> Results | Failure:
        """Return the results of what `predictions` yields for an image."""
        if isinstance(outcome, Failure):
            return outcome
        known = self.guarantees or self.label_guarantees
        if known and of_image(outcome).key in known.images:
            return Failure(of_image(outcome).source, CalibrationImageError.code, KNOWN_IMAGE)
        if self.label_guarantees:
            return {name: self.label_guarantees.result(part, self.labels) for name, part in outcome.items()}
        if self.groups:
            return {row.name: self._joined(outcome, row.name, details) for row in self.methods}
        return {name: self._result(part, name, details) for name, part in outcome.items()}

    def predictions(self, images: Iterable[Any], *, details: bool = False) -> Iterator[Predictions | Failure]:
        """Yield the methods' answers as arrays (`poise.types.Answer`) by method, before calibration.

        Args:
            images: as of a call.
            details: whether to compute all views, also where no method reads them.
        """
        return self.predictor.run(images, views=self.read_recipe(details=details))

    def read_recipe(self, *, details: bool = False) -> ViewRecipe:
        """How images are cut into the views that the methods read: zero-shot reads the plain view only."""
        reads_views = any(method.reads_views for method in self.methods)
        return self.recipe if details or reads_views else ViewRecipe(1, self.recipe.seed)

    @overload
    def predict_proba(self: _One, images: Iterable[Any]) -> np.ndarray: ...  # type: ignore[overload-overlap]

    @overload
    def predict_proba(self: _Several, images: Iterable[Any]) -> dict[str, np.ndarray]: ...

    def predict_proba(self, images: Iterable[Any]) -> np.ndarray | dict[str, np.ndarray]:
        """Return the probabilities [N, C] of N images, columns in the order of ``labels``.

        If ``method`` is a list, the result is a dict of such arrays by method.

        Raises:
            UnreadableImageError: An image can't be read.
        """
        names = [method.name for method in self.methods]
        rows = list(self._answered(images))
        values = [[[row[name].probabilities[label] for label in self.labels] for row in rows] for name in names]
        probs = np.array(values).reshape(len(names), len(rows), len(self.labels))
        return dict(zip(names, probs, strict=True)) if self._several else probs[0]

    def frame(self, images: Iterable[Any]) -> pandas.DataFrame:
        """Return a data frame with one row per image and method, in order.

        Its columns are those of `poise classify --format csv`: source, method, label, confidence and so on, and
        ``p(LABEL)`` for each label. An image that can't be read has a row with ``error.code`` and ``error.message``.

        Args:
            images: as in a call.

        Raises:
            MissingDependencyError: pandas is not installed.

        Example:
            >>> import numpy as np
            >>> classify = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu")
            >>> frame = classify.frame([np.zeros((32, 32, 3), np.uint8), b"no image"])
            >>> frame["error.code"].isna().tolist(), round(float(frame.loc[0, ["p(cat)", "p(dog)"]].sum()), 6)
            ([True, False], 1.0)
        """
        try:
            import pandas
        except ImportError:
            raise MissingDependencyError.of("A data frame", "pandas", "data") from None
        return pandas.DataFrame([row for outcome in self.each(images) for row in flat_rows(outcome, self.labels)])

    @overload
    def calibrate(  # type: ignore[overload-overlap]  # a str is a sequence of str, and is meant first
        self,
        images: Sequence[Any],
        labels: Sequence[str],
        *,
        coverage: float | Sequence[float] = (),
        max_error: float | Sequence[float] = (),
        confidence: float = 0.95,
        drawn: Drawn | None = None,
        progress: bool = False,
    ) -> Calibration: ...

    @overload
    def calibrate(
        self,
        images: Sequence[Any],
        labels: Sequence[Sequence[str]],
        *,
        confidence: float = 0.95,
        progress: bool = False,
    ) -> IndependentCalibration: ...

    def calibrate(
        self,
        images: Sequence[Any],
        labels: Sequence[Any],
        *,
        coverage: float | Sequence[float] = (),
        max_error: float | Sequence[float] = (),
        confidence: float = 0.95,
        drawn: Drawn | None = None,
        progress: bool = False,
    ) -> Calibration | IndependentCalibration:
        """Compare and calibrate the methods on labelled images of your own task.

        Images should be drawn like those to be classified later; then, and only then, the guarantees hold.

        Args:
            images: as in a call; images that can't be read are left out with a warning, copies of an image too.
            labels: the correct label of each image, one of ``self.labels``; labels without an image give a warning. Of
                independent labels: a list of labels per image, which may be empty; copies of an image count once, with
                all their labels.
            coverage: wanted coverage of prediction sets, such as 0.9, or several.
            max_error: wanted share of wrong answers, such as 0.05, or several.
            confidence: probability with which certified thresholds hold.
            drawn: how the images were drawn, if by `poise.calibration.plan_labels`; None: all at random.
            progress: whether to show progress on stderr.

        Raises:
            InvalidCalibrationError: There are too few images for the wanted guarantees (said before any work), one
                image has two labels, or a method learns from the images before.

        Example:
            >>> import numpy as np
            >>> classify = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu")
            >>> images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
            >>> calibration = classify.calibrate(images, ["cat", "dog"] * 10, coverage=[0.9])
            >>> calibrated = Classifier(
            ...     ["cat", "dog"], model="tiny", method="zero-shot", device="cpu", calibration=calibration)
            >>> len(calibrated(np.zeros((32, 32, 3), np.uint8)).set_at(0.9)) in (1, 2)
            True
        """
        if self.options.independent:
            if coverage or max_error or drawn is not None:
                raise InvalidOptionError(
                    "coverage, max_error and drawn are for labels of which one applies.", hint="Leave them out."
                )
            shown = partial(watched, quiet=not progress)
            return independent_labels.calibrate(self, images, labels, confidence=confidence, watched=shown)
        return calibrating.calibrate(
            self,
            images,
            labels,
            coverage=coverage,
            max_error=max_error,
            confidence=confidence,
            drawn=drawn,
            watched=partial(watched, quiet=not progress),
        )

    @overload
    def evaluate(  # type: ignore[overload-overlap]  # likewise
        self,
        images: Sequence[Any],
        labels: Sequence[str],
        *,
        threshold: float | None = None,
        unlabelled: Sequence[Any] = (),
        progress: bool = False,
    ) -> Evaluation: ...

    @overload
    def evaluate(
        self, images: Sequence[Any], labels: Sequence[Sequence[str]], *, progress: bool = False
    ) -> LabelEvaluation: ...

    def evaluate(
        self,
        images: Sequence[Any],
        labels: Sequence[Any],
        *,
        threshold: float | None = None,
        unlabelled: Sequence[Any] = (),
        progress: bool = False,
    ) -> Evaluation | LabelEvaluation:
        """Evaluate a calibrated classifier on labelled images that it was not calibrated on.

        Accuracy and calibration error, and if the classifier was given ``coverage`` or ``max_error``, what the
        prediction sets and the decisions keep of their promise; all with 95 % confidence intervals. Images of the
        calibration and images that can't be read are left out and counted.

        Args:
            images: as in a call.
            labels: the correct label of each image, one of ``self.labels``; of independent labels, a list per image.
            threshold: a confidence of one's own, below which the classifier abstains; one label each.
            unlabelled: further images from the same source, which sharpen the accuracy (PPI++); one label each.
            progress: whether to show progress on stderr.

        Raises:
            InvalidOptionError: The classifier has no calibration, or an image has another label.
            InvalidCalibrationError: No image is left.

        Example:
            >>> import numpy as np
            >>> options = {"model": "tiny", "method": "zero-shot", "device": "cpu"}
            >>> images = list(np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8))
            >>> calibration = Classifier(["cat", "dog"], **options).calibrate(images[:20], ["cat", "dog"] * 10)
            >>> classify = Classifier(["cat", "dog"], **options, calibration=calibration, coverage=0.8)
            >>> found = classify.evaluate(images, ["cat", "dog"] * 20)
            >>> len(found), found.left_out
            (20, {'that the calibration was made with': 20, 'without an answer': 0})
            >>> sorted(found.metrics()["zero-shot"])[:4]
            ['accuracy', 'brier', 'coverage', 'ece']
        """
        watch = partial(watched, quiet=not progress)
        if not self.options.independent:
            return evaluating.evaluate(self, images, labels, threshold=threshold, unlabelled=unlabelled, watched=watch)
        if len(unlabelled) or threshold is not None:
            raise InvalidOptionError(
                "Unlabelled images or a threshold were given.",
                hint="They are for labels of which one is correct; leave them out.",
            )
        return independent_labels.evaluate(self, images, labels, watched=watch)

    def __copy__(self) -> Classifier[M_co]:
        """Return a classifier that shares the model."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        raise WrongProcessError(
            "A classifier can't be copied with its model, nor sent to another process.",
            hint="Make one there from the same arguments; `copy.copy` shares the model within a process.",
        )

    def __repr__(self) -> str:
        labels, methods = reprlib.repr(self.labels), ", ".join(method.name for method in self.methods)
        model = f"model '{self.encoder.name}', method {methods}, on {self.encoder.device}"
        return f"Classifier({counted(len(self.labels), 'label')}: {labels}; {model})"

    def _prepare(self, tuner: AnyTuner | None = None) -> None:
        """Make the predictor and, unless the labels, template and methods of ``tuner`` are the same, the tuner."""
        check_process()
        self.tuner = tuner or self._make_tuner()
        if self._tunes() and not self.tuner.texts.classes.slots.shape[1]:
            raise InvalidOptionError("context='none' leaves no words to tune.", hint="Omit it, or use zero-shot.")
        self.predictor = Predictor(self.encoder, self.tuner, self.recipe, batch_size=self.options.batch_size or 0)

    def _make_tuner(self) -> AnyTuner:
        if self.groups:
            return GroupedTuner({name: self._tuner_of(labels) for name, labels in self.groups.items()})
        return self._tuner_of(self.labels)

    def _tuner_of(self, labels: tuple[str, ...]) -> AnyTuner:
        chosen, init = self.options, self._init
        context = chosen.context
        if context == "auto" and init == "template" and not self._tunes():
            context = "none"  # nothing is tuned, so the template "{}" is valid, too
        template, on_long_label = chosen.template or DEFAULT_TEMPLATE, chosen.on_long_label
        classes = tokenise(self.encoder, labels, template, context=context, on_long_label=on_long_label)
        if isinstance(init, Prompt):
            return Tuner(self.encoder, classes, self.methods, init)
        return make_tuner(self.encoder, classes, self.methods, init=str(init), on_long_label=on_long_label)

    def _result(self, answer: Answer[np.ndarray], method: str, details: bool) -> Result:
        kept = self.labels, self.encoder, self.guarantees, self.reject
        return to_result(answer, method, *kept, details, self.tree)

    def _joined(self, answers: Predictions, method: str, details: bool) -> Result:
        kept = self.encoder, None, self.reject
        return joined(
            {
                name: to_result(answers[key_of(name, method)], method, labels, *kept, details)
                for name, labels in self.groups.items()
            }
        )

    def _answered(self, images: Iterable[Any], *, details: bool = False) -> Iterator[Results]:
        """Yield the results of each image, or raise the error of the first image without."""
        for outcome in self.each(images, details=details):
            if isinstance(outcome, Failure):
                raise outcome.error()
            yield outcome

    def _shown(self, results: Results) -> Result | Results:
        return results if self._several else results[self.methods[0].name]

    def _tunes(self) -> bool:
        return any(method.tunes for method in self.methods)


_One = Classifier[str] | Classifier[Method]
_Several = Classifier[Sequence[str | Method]]
