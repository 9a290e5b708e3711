"""The estimator passes scikit-learn's checks that apply to it, and works in its tools and in MAPIE."""

from __future__ import annotations

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from PIL import Image
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.utils import estimator_checks

import poise
from poise.errors import CalibrationImageError, InvalidLabelsError, InvalidOptionError
from poise.sklearn import ZeroShotClassifier

# scikit-learn itself chooses only the first for an estimator whose X is not a table of numbers (no `two_d_array`).
# The rest hold for it as well; those that are not here classify numbers.
APPLY = (
    "check_estimator_cloneable",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_dont_overwrite_parameters",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_fit_returns_self",
    "check_estimators_overwrite_params",
    "check_estimators_unfitted",
    "check_fit_check_is_fitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_readonly_memmap_input",
    "check_requires_y_none",
    "check_set_params",
    "check_valid_tag_types",
)
NAMES = ("dog", "cat", "cup")  # not sorted


def make(**more) -> ZeroShotClassifier:
    return ZeroShotClassifier(NAMES, **{"model": "tiny", "method": "zero-shot", "views": 1, "device": "cpu", **more})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Paths as an array [N, 1], and class names that the model's answers often are."""
    folder = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    paths = []
    for at in range(60):
        paths.append(str(folder / f"{at}.png"))
        Image.fromarray(numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(paths[-1])
    answers = make().fit(paths).predict(paths)
    truth = np.where(numbers.random(60) < 0.7, answers, np.resize(np.array(NAMES), 60))
    return np.array(paths)[:, None], truth.astype(str)


@pytest.mark.parametrize("name", APPLY)
def test_the_checks_of_scikit_learn_that_apply(name):
    getattr(estimator_checks, name)("ZeroShotClassifier", make())


def test_the_checks_that_scikit_learn_chooses_pass():
    with pytest.warns(UserWarning, match="Can't test estimator"):  # X is not a table of numbers
        results = estimator_checks.check_estimator(make(), on_skip=None)
    assert {result["status"] for result in results} == {"passed"}


def test_it_answers_as_the_classifier_does(images):
    paths = images[0][:6]
    estimator = make(method="kld+cats", views=4).fit(paths)
    plain = poise.Classifier(sorted(NAMES), "tiny", "kld+cats", views=4, device="cpu")
    np.testing.assert_allclose(estimator.predict_proba(paths), plain.predict_proba(list(paths.ravel())), atol=1e-6)
    assert estimator.classes_.tolist() == sorted(NAMES)
    assert estimator.predict(paths).tolist() == [plain(path).label for path in paths.ravel()]
    arrays = np.stack([np.asarray(Image.open(path)) for path in paths.ravel()])
    np.testing.assert_allclose(estimator.predict_proba(arrays), estimator.predict_proba(paths), atol=1e-6)


def test_names_from_y_and_clones(images):
    paths, truth = images
    estimator = clone(make().set_params(labels=None)).fit(paths, truth)
    assert estimator.classes_.tolist() == sorted(set(truth))
    assert 0 <= estimator.score(paths, truth) <= 1


def test_calibrated_classifier(images):
    paths, truth = images
    frozen = FrozenEstimator(make().fit(paths))
    found = CalibratedClassifierCV(frozen, method="temperature").fit(paths, truth)
    probabilities = found.predict_proba(paths)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    assert found.classes_.tolist() == sorted(NAMES)


def test_prediction_sets_of_mapie(images):
    paths, truth = images
    sets = SplitConformalClassifier(make().fit(paths), confidence_level=0.9, prefit=True).conformalize(paths, truth)
    _, inside = sets.predict_set(paths)
    assert inside.shape[:2] == (60, 3)
    at = np.searchsorted(sorted(NAMES), truth)
    assert inside[np.arange(60), at, 0].mean() >= 0.9  # on the same images, by construction


def test_calibration_of_poise_and_a_search(images):
    paths, truth = images
    estimator = make(calibrate=True).fit(paths[:50], truth[:50])
    np.testing.assert_allclose(estimator.predict_proba(paths[50:]).sum(1), 1, atol=1e-6)
    with pytest.raises(CalibrationImageError):  # no guarantee holds for them
        estimator.predict(paths[:3])
    search = GridSearchCV(make(), {"template": ["a photo of a {}.", "a {}."]}, cv=2).fit(paths, truth)
    assert search.best_params_["template"] in ("a photo of a {}.", "a {}.")


def test_what_is_wrong_is_said(images):
    paths, _ = images
    with pytest.raises(InvalidLabelsError, match="Neither labels nor y"):
        make().set_params(labels=None).fit(paths)
    with pytest.raises(InvalidOptionError, match="needs y"):
        make(calibrate=True).fit(paths)
    with pytest.raises(InvalidOptionError, match="An array of shape"):
        make().fit(paths).predict(np.zeros((3, 5)))
    with pytest.raises(NotFittedError):
        make().predict(paths)
