"""Study files: precedence, errors, and that whatever is read can be written and read again."""

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_spaces.parallel_config import KNOBS, ParallelConfig
from trainer.contract import MeasureSpec
from tuner.config import (
    SpaceSection,
    StudyConfig,
    find_study_file,
    load_study_config,
    parse_override,
    parse_study_text,
    parse_value,
    study_config_from,
)
from tuner.errors import ConfigError

MODEL = {"model": {"source": "gpt2-124m"}}


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def problem(**document: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        study_config_from(MODEL | document)
    return str(caught.value)


def test_a_model_alone_is_a_study() -> None:
    config = load_study_config(model="gpt2-124m")
    assert config.search.searcher == "cbo"
    assert config.search.max_trials == 24
    assert config.cluster is None
    assert config.space.domains() == {}


def test_the_file_overrides_defaults_and_options_override_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[model]\nsource = 'gpt2-124m'\n[search]\nmax_trials = 5\nseed = 7\nmax_retries = 4",
    )
    config = load_study_config(path, ["search.seed=8", "search.max_retries=5"], max_trials=6)
    assert (config.search.max_trials, config.search.seed, config.search.max_retries) == (6, 8, 5)
    assert config.search.confirm_top == 3


def test_an_option_left_out_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nsource = 'gpt2-124m'\n[search]\nmax_trials = 5")
    assert load_study_config(path, max_trials=None, model=None) == load_study_config(path)


def test_space_section_has_every_knob() -> None:
    assert set(SpaceSection.model_fields) == {*KNOBS, "use_all_devices", "constraint"}


def test_a_domain_is_a_scalar_or_a_list_without_repeats() -> None:
    space = study_config_from(MODEL | {"space": {"tp": 2, "pp": [1, 2, 1], "compile": False}}).space
    assert space.domains() == {"tp": (2,), "pp": (1, 2), "compile": (False,)}


def test_words_stand_for_what_toml_cannot_write() -> None:
    space = {"stage_layers": ["even", [5, 7]], "recompute_layers": ["all", 2]}
    config = study_config_from(MODEL | {"space": space})
    assert config.space.stage_layers == (None, (5, 7))
    assert config.space.recompute_layers == (None, 2)
    assert tomllib.loads(config.to_toml())["space"]["stage_layers"] == ["even", [5, 7]]
    assert parse_study_text(config.to_toml()) == config


def test_one_flat_list_is_one_split() -> None:
    config = study_config_from(MODEL | {"space": {"stage_layers": [5, 7]}})
    assert config.space.stage_layers == ((5, 7),)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"search": {"max_trails": 3}},
            "unknown key `search.max_trails` in the study (did you mean ",
        ),
        ({"search": {"max_trails": 3}}, "keys of [search]: searcher, max_trials, "),
        ({"max_trials": 3}, "`max_trials` belongs in [search]"),
        ({"serach": {}}, "did you mean `search`?"),
        ({"space": {"tpp": 1}}, "did you mean `tp`?"),
        ({"search": {"baseline": {"tpp": 1}}}, "keys of [search.baseline]: dp, tp, tp_layout"),
        ({"training": {"dtype": "fp8"}}, "is \"fp8\", but should be one of 'fp32', 'bf16', 'fp16'"),
        ({"search": {"max_trials": 0}}, "is 0, but should be greater than or equal to 1"),
        ({"search": {"max_trials": "many"}}, '`search.max_trials` in the study is "many"'),
        ({"search": {"max_trials": True}}, "is true, but should be an integer"),
        ({"search": 3}, "`search` in the study is 3, but should be a section of keys and values"),
        ({"space": {"tp": [1, 0]}}, "`space.tp[1]` in the study is 0"),
        ({"space": {"tp": []}}, "should be a value or a list of at least one value"),
        ({"space": {"recompute": "some"}}, "one of 'none', 'selective', 'full'"),
        ({"measure": {"deadline_s": float("nan")}}, "should be a finite number"),
        ({"cluster": {"preset": "frontier", "path": "x"}}, "not both preset and path"),
        (
            {"cluster": {"preset": "frontier", "memory_gib": 4}},
            "not both preset and keys of its own",
        ),
        ({"name": "a b"}, "letters, digits"),
        ({"search": {"seed": 2**63}}, "`search.seed` in the study is beyond the 64 bits"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_legal_ones(
    document: dict[str, Any], expected: str
) -> None:
    text = problem(**document)
    assert expected in text
    assert "\n" not in text


def test_the_place_of_a_wrong_value_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nsource = 'gpt2-124m'\n[search]\nseed = -1")
    with pytest.raises(ConfigError, match=r"`search.seed` in .*study.toml is -1"):
        load_study_config(path)
    with pytest.raises(ConfigError, match=r"`search.max_trials` in --max-trials is 0"):
        load_study_config(model="gpt2-124m", max_trials=0)
    with pytest.raises(ConfigError, match=r"`search.seed` in --set is -1"):
        load_study_config(path, ["search.seed=-1"])


def test_unreadable_files_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no study file"):
        load_study_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_study_config(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_study_config(tmp_path / "binary.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_study_config(write(tmp_path, "[model"))
    with pytest.raises(ConfigError, match="no model is named"):
        load_study_config(write(tmp_path, ""))


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = "[model]\nsource = 'm/config.json'\n[cluster]\npath = 'c.toml'\n[store]\nurl = 'r.db'"
    config = load_study_config(write(tmp_path, text))
    assert config.model.source == str(tmp_path / "m/config.json")
    assert config.cluster is not None
    assert config.cluster.path == str(tmp_path / "c.toml")
    assert config.store.url == f"sqlite:///{tmp_path}/r.db"


def test_names_urls_and_options_are_not_paths_of_the_file(tmp_path: Path) -> None:
    text = "[model]\nsource = 'gpt2-124m'\n[store]\nurl = 'postgresql://host/db'"
    config = load_study_config(write(tmp_path, text))
    assert (config.model.source, config.store.url) == ("gpt2-124m", "postgresql://host/db")
    config = load_study_config(write(tmp_path, text), model="m/config.json", store="sqlite:///r.db")
    assert (config.model.source, config.store.url) == ("m/config.json", "sqlite:///r.db")


def test_the_environment_changes_only_the_default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_study_config(model="x").store.url == "sqlite:///tuner_runs/results.db"
    monkeypatch.setenv("TUNER_STORE", "sqlite:///other.db")
    assert load_study_config(model="x").store.url == "sqlite:///other.db"
    assert load_study_config(model="x", store="sqlite:///mine.db").store.url == "sqlite:///mine.db"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0.5", 0.5),
        ("true", True),
        ("full", "full"),
        ('"8"', "8"),
        ("[1, 2]", [1, 2]),
        ("[none, full]", ["none", "full"]),
        ("[1, all]", [1, "all"]),
        ("gpt2-124m", "gpt2-124m"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_override_values_are_toml_or_bare_words(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_overrides_need_a_key_and_a_value() -> None:
    assert parse_override("search.seed = 3") == ("search.seed", 3)
    for text in ("search", "=3", "a..b=3"):
        with pytest.raises(ConfigError, match="key=value"):
            parse_override(text)
    with pytest.raises(ConfigError, match="`model` is not a section"):
        load_study_config(None, ["model=gpt2", "model.source=x"])


def test_a_baseline_takes_the_precision_of_the_recipe() -> None:
    document = MODEL | {"training": {"dtype": "bf16"}, "search": {"baseline": {"tp": 2}}}
    config = study_config_from(document)
    assert config.search.baseline == ParallelConfig(tp=2, dtype="bf16")
    assert parse_study_text(config.to_toml()) == config
    document["search"] = {"baseline": {"dtype": "fp32", "stage_layers": [5, 7]}}
    assert study_config_from(document).search.baseline == ParallelConfig(stage_layers=(5, 7))


def test_measure_is_the_trainers_message() -> None:
    config = study_config_from(MODEL | {"measure": {"measured_steps": 3}})
    assert config.measure_spec() == MeasureSpec(measured_steps=3)


def test_sequence_length_follows_the_device_unless_it_is_given() -> None:
    config = study_config_from(MODEL)
    assert config.with_device_defaults("cpu", 1024).training.sequence_length == 64
    assert config.with_device_defaults("cuda", 4096).training.sequence_length == 1024
    assert config.with_device_defaults("cpu", 64).training.sequence_length == 64
    given = study_config_from(MODEL | {"training": {"sequence_length": 512}})
    assert given.with_device_defaults("cpu", 64) == given


def test_secrets_stay_out_of_the_stored_text() -> None:
    document = MODEL | {
        "store": {"url": "postgresql+psycopg://me:hunter2@host/db?sslpassword=hunter3&a=1"},
        "launcher": {
            "address": "ray://me:hunter4@host:10001",
            "options": {"env": {"API_KEY": "hunter5"}, "max_tokens": 3},
        },
    }
    config = study_config_from(document)
    assert "hunter" not in config.to_toml()
    stored = parse_study_text(config.to_toml())
    assert stored.store.url == "postgresql+psycopg://me@host/db?sslpassword=&a=1"
    assert stored.launcher.options == {"env": {}, "max_tokens": 3}


def test_hash_is_of_what_is_asked_not_of_name_or_store() -> None:
    config = study_config_from(MODEL)
    renamed = study_config_from(MODEL | {"name": "x", "store": {"url": "y"}})
    assert config.config_hash() == renamed.config_hash() != _seeded(3).config_hash()
    search = config.search.model_copy(update={"baseline_name": "the old one"})
    assert config.model_copy(update={"search": search}).config_hash() == config.config_hash()
    assert config.config_hash() == parse_study_text(config.to_toml()).config_hash()


def _seeded(seed: int) -> StudyConfig:
    return study_config_from(MODEL | {"search": {"seed": seed}})


def test_study_files_are_found_by_name(tmp_path: Path) -> None:
    assert find_study_file(tmp_path) is None
    (tmp_path / "tuner.toml").touch()
    assert find_study_file(tmp_path) == tmp_path / "tuner.toml"
    (tmp_path / "study.toml").touch()
    assert find_study_file(tmp_path) == tmp_path / "study.toml"


def _keys() -> st.SearchStrategy[str]:
    known = {*StudyConfig.model_fields}
    for name in ("model", "training", "cluster", "space", "search", "measure", "launcher", "store"):
        section = StudyConfig.model_fields[name].annotation
        known |= set(getattr(section, "model_fields", {}))
    return st.sampled_from(sorted(known | {"baseline", "options", "preset"})) | st.text(max_size=5)


_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full", "fp32", "1d", "even", "all", "cpu", "gpt2-124m"])
    | st.dates()
)
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys(), inner, max_size=3)
)
_sections = st.dictionaries(
    _keys(), st.dictionaries(_keys(), _values, max_size=3) | _values, max_size=4
)


def study_or_error(document: Any) -> None:
    """The law: a study that survives being written and read, or one clear sentence."""
    config = sentence = None
    try:
        config = study_config_from(document)
    except ConfigError as error:
        sentence = error.message
    if config is None:
        assert sentence
        assert "\n" not in sentence
        return
    text = config.to_toml()
    assert parse_study_text(text).to_toml() == text


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_sections, st.booleans())
def test_any_table_is_a_study_or_a_config_error(document: dict[str, Any], named: bool) -> None:
    study_or_error(MODEL | document if named else document)


@settings(max_examples=200, deadline=None)
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_study_or_a_config_error(text: str) -> None:
    for candidate in (text, f"[model]\nsource = 'x'\n{text}"):
        with contextlib.suppress(ConfigError):
            parse_study_text(candidate)


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text())
def test_any_override_is_a_study_or_a_config_error(key: str, value: str) -> None:
    try:
        config = load_study_config(None, [f"{key}={value}", f"name={value}"], model="gpt2-124m")
    except ConfigError:
        return
    assert parse_study_text(config.to_toml()) == config


@given(
    st.text(min_size=1).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(-9, 9)),
)
def test_written_text_is_read_back_exactly(source: str, options: dict[str, Any]) -> None:
    document = {"model": {"source": source.replace("://", "")}, "launcher": {"options": options}}
    config = study_config_from(document)
    stored = parse_study_text(config.to_toml())
    assert stored.model == config.model
    assert stored.launcher.options.items() <= config.launcher.options.items()
