from __future__ import annotations

import dataclasses
import json

import pytest

from poise.errors import InvalidOptionError, UnknownNameError
from poise.evaluate.config import RunConfig, build, override, read
from poise.evaluate.storage.run_folder import differences
from poise.text import file_name

SMALL = {"model": "tiny", "datasets": "a,b", "methods": "tpt", "seeds": "1,2"}


def test_flags_and_toml_mean_the_same(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"\ndatasets = ["a", "b"]\nmethods = ["tpt"]\nseeds = [1, 2]\n')
    (from_file,) = read(file)
    assert build(from_file) == build(SMALL)


def test_unknown_key_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'views'"):
        build({**SMALL, "veiws": 3})


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("views", 0, "at least 1"),
        ("views", "many", "type int"),
        ("limit", True, "type int"),
        ("augmix", "onn", "Did you mean 'on'"),
        ("view_engine", "gpu", "Known: auto, batched, pil"),
        ("seeds", "1,x", "whole numbers"),
        ("seeds", "1,1", "twice"),
        ("datasets", "", "empty"),
        ("model", 3, "type str"),
        ("options", "lr", "type dict"),
    ],
)
def test_bad_values_are_refused(key, value, match):
    with pytest.raises((InvalidOptionError, UnknownNameError), match=match):
        build({**SMALL, key: value})


def test_auto_is_zero_for_numbers():
    config, _ = build({**SMALL, "batch_size": "auto", "limit": "all"})
    assert (config.batch_size, config.limit) == (0, 0)


def test_assignments_reach_tables_and_keep_types():
    values = override(SMALL, ["views=8", "options.kld+cats.lr=0.003", "augmix=off", "seeds=[4]"])
    config, _ = build(values)
    assert config.views == 8
    assert config.options == {"kld+cats": {"lr": 0.003}}
    assert config.augmix == "off"
    assert config.seeds == (4,)
    assert "options" not in SMALL


def test_a_dot_sets_a_key_of_any_table():
    config, _ = build(override(SMALL, ["framework=dynaprompt", "framework_options.size=5", "options.a.b.lr=0.1"]))
    assert config.framework_options == {"size": 5}
    assert config.options == {"a.b": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("framwork_options.size=5", "Did you mean 'framework_options'"),
        ("views.x=3", "no table.*framework_options"),
        ("options.all=3", r"options\.all.*is 3"),
        ("options.all.lr.x=3", None),
        ("seeds=1979-05-27", "whole numbers"),
        ("views=" + "[" * 5000, "type int"),
    ],
)
def test_assignments_that_cannot_be_are_refused(text, match):
    if match is not None:
        with pytest.raises((InvalidOptionError, UnknownNameError), match=match):
            build(override(SMALL, [text]))
    else:
        assert build(override(SMALL, [text]))[0].options == {"all.lr": {"x": 3}}  # refused where methods are looked up


def test_a_temperature_is_a_number():
    for given in (1.25, "1.25"):
        config, _ = build({**SMALL, "temperature": given, "framework_options": {"size": 5}})
        assert config.framework_options == {"size": 5, "temperature": 1.25}
    for given in ("warm", [1]):
        with pytest.raises(InvalidOptionError, match="a number above 0"):
            build({**SMALL, "temperature": given})


@pytest.mark.parametrize("text", ["views", "=3"])
def test_a_text_without_key_or_value_is_no_assignment(text):
    with pytest.raises(InvalidOptionError, match="not an assignment"):
        override(SMALL, [text])


def test_several_runs_in_one_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"\n[[runs]]\nname = "one"\n[[runs]]\nname = "two"\nviews = 4\n')
    assert read(file) == [{"model": "tiny", "name": "one"}, {"model": "tiny", "name": "two", "views": 4}]


def test_a_file_builds_on_another(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "all.toml").write_text('name = "all"\nviews = 8\nmethods = ["tpt", "kld"]\n')
    (tmp_path / "two.toml").write_text('[[runs]]\nname = "one"\n[[runs]]\nname = "two"\nviews = 4\n')
    row = tmp_path / "rows" / "row.toml"
    row.write_text('base = "../all.toml"\nmethods = ["kld"]\n')
    assert read(row) == [{"views": 8, "methods": ["kld"]}]  # the base's name stays the base's
    row.write_text('base = "../two.toml"\nbase_run = "two"\nname = "row"\n')
    assert read(row) == [{"views": 4, "name": "row"}]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('base = "none.toml"', r"no file '.*none.toml'.*relative"),
        ('base = "two.toml"', "several runs.*one, two"),
        ('base = "nameless.toml"', "several runs.*none has a name"),
        ('base = "two.toml"\nbase_run = "tow"', "Did you mean 'two'"),
        ('base = "row.toml"', "has a base itself"),
        ('base_run = "two"', "without 'base'"),
    ],
)
def test_a_base_that_cannot_be_is_refused(tmp_path, text, match):
    (tmp_path / "two.toml").write_text('[[runs]]\nname = "one"\n[[runs]]\nname = "two"\n')
    (tmp_path / "nameless.toml").write_text("[[runs]]\nviews = 4\n[[runs]]\nviews = 8\n")
    (tmp_path / "row.toml").write_text(text)
    with pytest.raises((InvalidOptionError, UnknownNameError), match=match):
        read(tmp_path / "row.toml")
    with pytest.raises(InvalidOptionError, match="is a folder"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["a = ", "runs = 3", "\xff", "a = 1979-05-27", "a = " + "[" * 5000])
def test_broken_files_are_refused(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidOptionError):
        read(file)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidOptionError, match="no configuration file"):
        read(tmp_path / "none.toml")


def test_hash_sees_every_field_but_the_names():
    base = RunConfig(datasets=("a",), calibrate=100)
    changed = {str: "other", int: 77, float: 0.7, tuple: ("other",), dict: {"tpt": {"lr": 1.0}}, type(None): 20.0}
    for entry in dataclasses.fields(RunConfig):
        value = changed[type(getattr(base, entry.name))]
        other = dataclasses.replace(base, **{entry.name: value})
        assert (other.digest() == base.digest()) == (entry.name in {"name", "title"}), entry.name


def test_run_id_is_the_name_or_model_and_hash():
    assert RunConfig(name="table1").run_id == "table1"
    first, second = RunConfig(model="ViT-B-16/openai"), RunConfig(model="ViT-B-16/openai", views=3)
    assert first.run_id.startswith("ViT-B-16-openai-")
    assert first.run_id != second.run_id
    assert "/" not in RunConfig(name="../up").run_id


@pytest.mark.parametrize("text", ["wds:/a/b", "folder:x y", "../..", "ä", "plain-1.0"])
def test_slugs_are_safe_and_distinct(text):
    assert file_name(text).strip("abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
    assert not file_name(text).startswith(".")
    assert file_name(text) != file_name(text + ":")


def test_differences_show_both_values():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["a.c: 3 -> 2"]
    assert differences({"a": 1}, {}) == ["a: null -> 1"]


def test_hashed_survives_json():
    config = RunConfig(datasets=("a",), options={"tpt": {"lr": 0.1}})
    assert json.loads(json.dumps(config.hashed())) == config.hashed()


def test_calibration_images_are_part_of_the_configuration_only_if_there_are_any() -> None:
    plain, levels = RunConfig(datasets=("dtd",)), {"calibrate", "coverage", "max_error"}
    assert not levels & set(plain.hashed())
    config, _ = build({"datasets": "dtd", "calibrate": 100, "coverage": 0.8})
    assert levels <= set(config.hashed())
    assert config.digest() != plain.digest()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"calibrate": 58}, r"'calibrate' is 58.*at least 9 images.*at most 0.05 at least 59"),
        ({"calibrate": 60, "coverage": 0.99}, "a coverage of 0.99 need at least 99"),
        ({"calibrate": 100, "framework": "dynaprompt"}, "depend on the images before"),
        ({"calibrate": 100, "coverage": 1.5}, "coverage is 1.5"),
        ({"calibrate": -1}, "'calibrate' is -1"),
        ({"coverage": 0.8}, "there are no calibration images"),
    ],
)
def test_calibration_that_can_not_work_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        build({"datasets": "dtd", **values})
