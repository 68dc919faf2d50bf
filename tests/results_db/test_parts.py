"""Small parts: knobs, intervals, leases, file systems, URLs, views, documentation, frames."""

import json
import math
import runpy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import results_db
from results_db import diagram, knobs
from results_db.engine import parse_url, safe_url
from results_db.errors import DatabaseUnreadable, NotFound
from results_db.filesystems import network_filesystem
from results_db.frames import to_frame, view_frame
from results_db.intervals import combine, throughput_interval
from results_db.leases import SILENCE_S, lease_is_dead
from results_db.queries import best, leaderboard
from results_db.records import Lease
from results_db.values import from_json, join_nonfinite, split_nonfinite, to_json
from results_db.view_columns import relation
from results_db.views import view_docs, view_statements
from search_spaces.parallel_config import KNOBS, ParallelConfig

ROOT = Path(__file__).parents[2]


def test_the_columns_are_the_knobs_of_the_search_space():
    assert knobs.KNOB_NAMES == KNOBS
    assert {knob.name: knob.default for knob in knobs.KNOBS} == ParallelConfig().model_dump()


CONFIGS = st.builds(
    ParallelConfig,
    dp=st.sampled_from([1, 2, 8]), tp=st.sampled_from([1, 4]), pp=st.sampled_from([1, 2]),
    tp_layout=st.sampled_from(["1d", "2d", "2.5d"]), virtual_stages=st.integers(1, 2),
    stage_layers=st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_layers=st.none() | st.integers(0, 4), compile=st.booleans(),
    sequence_parallel=st.booleans(), optimizer_offload=st.booleans(),
    zero_stage=st.integers(0, 3), dtype=st.sampled_from(["fp32", "bf16"]),
    reduce_dtype=st.sampled_from(["fp32", "bf16"]), micro_batch_size=st.integers(1, 4),
)  # fmt: skip


@given(CONFIGS)
def test_key_label_and_round_trip_agree_with_the_search_space(config):
    dumped = config.model_dump()
    assert knobs.config_key(dumped) == config.config_key
    columns = knobs.to_columns(dumped)
    assert columns["label"] == config.short()
    assert columns["world_size"] == config.world_size
    assert knobs.from_columns(columns) == dumped


STEP_TIMES = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=7)


@given(STEP_TIMES, st.floats(0.0, 2.0), st.integers(1, 50))
def test_intervals_contain_their_median(times, iqr_s, num_steps):
    trials = [throughput_interval(4096, time_s, iqr_s, num_steps) for time_s in times]
    for trial in [*trials, combine(trials)]:
        assert 0 <= trial.low <= trial.median <= trial.high
        assert math.isfinite(trial.high)
    assert combine(trials) == combine(trials[::-1])


@given(st.floats(0.01, 10.0), st.floats(0.001, 2.0), st.integers(1, 50))
def test_more_steps_narrow_an_interval(time_s, iqr_s, num_steps):
    wide = throughput_interval(4096, time_s, iqr_s, num_steps)
    narrow = throughput_interval(4096, time_s, iqr_s, 4 * num_steps)
    assert narrow.low >= wide.low
    assert narrow.high <= wide.high


@given(st.floats() | st.none())
def test_nonfinite_floats_survive(value):
    column, kind = split_nonfinite(value)
    assert column is None or math.isfinite(column)
    assert str(join_nonfinite(column, kind)) == str(value)


def test_json_is_standard():
    text = to_json({"b": (1, math.inf), "a": math.nan, "when": datetime(2026, 1, 1, tzinfo=UTC)})
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert found == from_json(text) == {
        "a": "nan", "b": [1, "inf"], "when": "2026-01-01 00:00:00+00:00",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("host", "is_alive", "silence_s", "is_dead"),
    [
        ("node0", True, 10 * SILENCE_S, False),  # swapping or stopped, yet there
        ("node0", False, 0.0, True),
        ("node1", False, 0.9 * SILENCE_S, False),  # nobody here can see that process
        ("node1", True, 1.1 * SILENCE_S, True),
    ],
)
def test_dead_leases(host, is_alive, silence_s, is_dead):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    lease = Lease(host="node0", pid=7, process_started_at=start, heartbeat_at=start)
    asked = []

    def pid_alive(pid, started_at):
        asked.append((pid, started_at))
        return is_alive

    now = start + timedelta(seconds=silence_s)
    assert lease_is_dead(lease, now, host, pid_alive) is is_dead
    assert asked == ([(7, start)] if host == "node0" else [])


MOUNTS = """/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/local tmpfs rw 0 0
//srv/with\\040space /mnt/my\\040share cifs rw 0 0
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/x.db", None),
        ("/home/ann/x.db", "nfs4"),
        ("/home/local/x.db", None),
        ("/mnt/my share/x.db", "cifs"),
        ("/homestead/x.db", None),
    ],
)
def test_network_file_systems_are_named(path, kind):
    assert network_filesystem(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("results_db.engine.network_filesystem", lambda path: "nfs4")
    results_db.open(tmp_path / "x.db").close()
    assert "network file system (nfs4)" in caplog.text


def test_urls_are_shown_without_secrets():
    url = parse_url("postgresql://ann:s3cret@host/db?sslpassword=other&sslmode=require")
    shown = safe_url(url)
    assert "s3cret" not in shown
    assert "other" not in shown
    assert "ann" in shown
    assert "sslmode=require" in shown
    assert url.drivername == "postgresql+psycopg"
    assert parse_url("sqlite:////a/b.db").database == "/a/b.db"
    with pytest.raises(DatabaseUnreadable):
        parse_url("oracle://x/y")


def test_the_schema_page_is_current():
    assert diagram.main(["--check"]) == 0
    assert set(view_docs()) == set(view_statements())


def test_a_stale_schema_page_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(diagram, "TARGET", tmp_path / "docs" / "schema.md")
    assert diagram.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert diagram.main([]) == 0
    assert diagram.main(["--check"]) == 0


def test_every_view_column_has_a_type(store):
    with store.database.read() as connection:
        for name in view_statements():
            assert len(relation(connection, name).columns) > 2


def test_frames_are_tidy(store, fill_sample):
    fill_sample(store)
    frame = view_frame(store, "trial_summary", study="gpt2-1-node")
    assert len(frame) == 14
    assert frame["trial"].dtype == "Int64"
    assert str(frame["finished_at"].dtype).endswith("UTC]")
    assert frame["compile"].dtype == "boolean"
    assert frame.loc[frame["status"] == "running", "tokens_per_s"].isna().all()
    assert set(view_frame(store, "models")["num_parameters"]) == {10**12}
    records = to_frame(store.trials(store.get_study("gpt2-1-node").id))
    assert {"number", "tp", "tokens_per_s", "failure_kind", "status"} <= set(records.columns)
    board = to_frame(leaderboard(store, "gpt2-1-node"))
    assert list(board["position"]) == sorted(board["position"])
    assert board.groupby("position")["tokens_per_s"].is_monotonic_decreasing.all()
    assert best(store, "gpt2-1-node").tokens_per_s == board["tokens_per_s"].max()
    for wrong in ({"name": "nope"}, {"name": "models", "study": "x"}):
        with pytest.raises(NotFound):
            view_frame(store, **wrong)


def test_python_and_sql_rank_alike(store, fill_sample):
    fill_sample(store)
    for study in store.list_studies():
        rows = leaderboard(store, study.id)
        frame = view_frame(store, "leaderboard", study=study.name)
        by_key = frame.set_index("config_key")
        for row in rows:
            assert by_key.loc[row.config_key, "position"] == row.position
            assert by_key.loc[row.config_key, "trial"] == row.trial_number
        fastest = sorted(rows, key=lambda row: -row.tokens_per_s)[:3]
        top = leaderboard(store, study.id, limit=3)
        assert sorted(top, key=lambda row: -row.tokens_per_s) == fastest
        assert top[0] == rows[0]
        first = view_frame(store, "best_configs", study=study.name)
        assert set(first["config_key"]) == {row.config_key for row in rows if row.position == 1}


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its code cells, one after the other, as a script."""
    notebook = json.loads((ROOT / "docs" / "database" / "example.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(script))
    assert len(found["board"]) > 0
