"""Numbers as people read them, configurations as people type them, new study files, log lines."""

import datetime
import logging
import math
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.model_io import preset_names
from search_spaces.parallel_config import KNOBS, ParallelConfig
from tuner.cli import formats, main
from tuner.cli.init import study_template
from tuner.cli.knobs import parse_config, parse_knobs
from tuner.config import StudyConfig, parse_study_text
from tuner.config.problems import sections_of
from tuner.errors import UsageError
from tuner.log import configure_logging

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.throughput(512_000.4), "512,000"),
        (formats.throughput(123.45), "123.5"),
        (formats.throughput(1.234), "1.23"),
        (formats.throughput(None), "–"),  # noqa: RUF001
        (formats.step_time(2.5), "2.5 s"),
        (formats.step_time(0.0123), "12.3 ms"),
        (formats.step_time(2e-6), "2 µs"),
        (formats.step_time(12345.6), "12346 s"),
        (formats.duration(75), "01:15"),
        (formats.duration(3900), "1 h 05 min"),
        (formats.duration(90000), "1 d 01 h"),
        (formats.duration(-3), "00:00"),
        (formats.memory(3 * 2**29), "1.50 GiB"),
        (formats.memory(5 * 2**20), "5 MiB"),
        (formats.percent(0.256), "25.6 %"),
        (formats.ratio(1.336), "1.34x"),
        (formats.flops(1.915e14), "192 TFLOP/s"),
        (formats.flops(5e6), "5 MFLOP/s"),
        (formats.parameters(124_439_808), "124M"),
        (formats.parameters(8_030_261_248), "8.03B"),
        (formats.count(1234567), "1,234,567"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


def test_moments_are_in_the_users_zone() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert formats.moment(moment) == moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _configs() -> st.SearchStrategy[ParallelConfig]:
    def values(name: str) -> st.SearchStrategy[Any]:
        annotation = ParallelConfig.model_fields[name].annotation
        if annotation is bool:
            return st.booleans()
        if name == "stage_layers":
            return st.none() | st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple)
        if name == "recompute_layers":
            return st.none() | st.integers(0, 99)
        if annotation is int:
            return st.integers(1, 3 if name == "zero_stage" else 999)
        return st.sampled_from(get_args(annotation))

    knobs = {name: values(name) for name in KNOBS}
    return st.fixed_dictionaries({}, optional=knobs).map(ParallelConfig.model_validate)


@given(_configs())
def test_the_short_form_of_a_configuration_is_read_back(config: ParallelConfig) -> None:
    assert parse_config(config.short()) == config


@given(_configs())
def test_assignments_are_read_back(config: ParallelConfig) -> None:
    items = [f"{name}={_typed(name, value)}" for name, value in config.model_dump().items()]
    assert parse_config(",".join(items)) == config


def _typed(name: str, value: Any) -> str:
    if value is None:
        return "all" if name == "recompute_layers" else "even"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower()


@given(st.text())
def test_any_text_is_a_configuration_or_a_usage_error(text: str) -> None:
    try:
        config = parse_config(text)
    except UsageError:
        return
    assert isinstance(config, ParallelConfig)


def test_short_names_take_an_equals_sign_too() -> None:
    expected = {"micro_batch_size": 4, "zero_stage": 1, "stage_layers": (3, 5)}
    assert parse_knobs("mbs=4 zero=1 stage_layers=[3, 5]") == expected


def test_a_new_study_file_runs_as_it_is_and_explains_every_key() -> None:
    text = study_template("gpt2-124m")
    assert parse_study_text(text).model.source == "gpt2-124m"
    for name, section in sections_of(StudyConfig).items():
        block = text.partition(f"\n[{name}]")[2].partition("\n[")[0]
        keys = set(section.model_fields) if name != "cluster" else {"preset", "path", "devices"}
        missing = [key for key in keys - {"options"} if f"{key} = " not in block]
        assert not missing, name


@pytest.mark.parametrize("section", sections_of(StudyConfig))
def test_every_commented_key_of_a_new_study_file_is_legal(section: str) -> None:
    text = study_template("gpt2-124m")
    block = text.partition(f"\n[{section}]")[2].partition("\n[")[0]
    lines = [line.removeprefix("# ") for line in block.splitlines()[1:] if " = " in line]
    for line in lines:
        value = tomllib.loads(line)
        document = {"model": {"source": "gpt2-124m"}} | {section: value}
        if section == "model":
            document = {"model": value}
        if section == "trainer":
            document[section] = {"adapter": "report", "command": "run"} | value
        StudyConfig.model_validate(document)
        assert "#" in line


def test_init_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--model", "llama-tiny"]) == 0
    assert "tuner run study.toml" in capsys.readouterr().err
    assert parse_study_text(Path("study.toml").read_text()).model.source == "llama-tiny"
    assert main(["init"]) == 2
    assert main(["init", "--force"]) == 0
    assert parse_study_text(Path("study.toml").read_text()).model.source == "gpt2-124m"


@pytest.mark.parametrize("name", preset_names())
def test_init_knows_every_preset(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--model", name, "-o", "-"]) == 0
    assert parse_study_text(capsys.readouterr().out).model.source == name


def test_there_are_examples() -> None:
    assert {"demo.toml", "gpt2-124m-2-ranks.toml"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_have_legal_points(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    has_options = "\noptions = " in path.read_text()  # which another searcher would not know
    searcher = [] if has_options else ["--searcher", "random"]
    assert main(["run", str(path), "--dry-run", "--json", *searcher]) == 0
    assert '"num_legal_points": 0' not in capsys.readouterr().out
    assert path.read_text().startswith("# ")


@pytest.fixture
def restore_logging() -> Any:
    loggers = [logging.getLogger(), *map(logging.getLogger, ("tuner", "results_db"))]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.parametrize(
    ("verbosity", "ours", "theirs"),
    [(-1, logging.ERROR, logging.ERROR), (0, logging.WARNING, logging.WARNING),
     (1, logging.INFO, logging.WARNING), (2, logging.DEBUG, logging.INFO),
     (9, logging.DEBUG, logging.INFO)],
)  # fmt: skip
def test_verbosity_chooses_levels(
    restore_logging: None, verbosity: int, ours: int, theirs: int
) -> None:
    configure_logging(verbosity)
    assert logging.getLogger("tuner").level == ours
    assert logging.getLogger("somebody.else").getEffectiveLevel() == theirs


def test_log_lines_go_to_standard_error_as_it_is_now(
    restore_logging: None, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(0)
    configure_logging(0)
    log = logging.getLogger("tuner.part")
    log.info("not shown")
    try:
        math.sqrt(-1)
    except ValueError:
        log.warning("shown %s", "once", exc_info=True)
    captured = capsys.readouterr()
    assert captured.err == "warning: shown once\n"
    assert captured.out == ""
    configure_logging(1)
    try:
        math.sqrt(-1)
    except ValueError:
        log.warning("again", exc_info=True)
    text = capsys.readouterr().err
    assert text.startswith("warning: again [tuner.part]\nTraceback")
