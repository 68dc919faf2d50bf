"""Files as the other tools write them (columns from their sources) become studies of ours."""

import json

import pytest

import results_db
from results_db.checks import check
from results_db.errors import AlreadyExists, DatabaseUnreadable, InvalidRecord, NotFound
from results_db.importers import IMPORTERS, Recipe, import_results
from results_db.queries import leaderboard

RECIPE = Recipe(
    model_name="gpt2-xl", num_parameters=1_500_000_000, num_layers=48, sequence_length=1024,
    global_batch_size=512,
)  # fmt: skip

PADDLE = """job_id,dp_degree,mp_degree,pp_degree,vpp_degree,micro_batch_size,sharding_degree,\
sharding_stage,use_recompute,recompute_granularity,throughput,max_mem_usage,error_info
1,4,1,2,1,2,1,1,False,full,93000.5,66000,
2,2,2,2,2,1,1,1,True,core_attn,70000,31000,
3,1,1,2,1,1,4,2,False,full,81000,40000,
4,8,1,1,1,16,1,1,False,full,,OOM,out of memory
5,8,1,1,1,1,1,1,False,full,,,ValueError: bad shape
"""

FLAGSCALE = """idx,data_parallel_size,tensor_model_parallel_size,pipeline_model_parallel_size,\
context_parallel_size,expert_model_parallel_size,sequence_parallel,micro_batch_size,\
use_distributed_optimizer,num_layers_per_virtual_pipeline_stage,recompute_granularity,\
recompute_method,recompute_num_layers,performance,max_mem,error
1,4,2,1,1,1,True,4,True,,,,,1500.25,61000.5,
2,2,2,2,1,1,True,2,False,6,full,uniform,3,1800.0,40000,
3,8,1,1,1,1,,8,True,,,,,,OOM,"OOM|CUDA out of memory"
4,1,8,1,1,1,,1,True,,selective,,,,20000,RuntimeError: NCCL error
"""

NANOTRON = """name,nodes,seq_len,mbs,batch_accum,gbs,mTFLOPs,hTFLOPs,tok/s/gpu,Bandwidth (GB/s),\
Mem Alloc (GB),Mem Res (GB)
1.1B_dp8_tp1_pp1_zero0,1,2048,4,16,512,210.5,240.1,31000.5,200.1,40.5,60.25
1.1B_dp2_tp2_pp2_zero1,1,2048,2,128,512,180.5,200.1,25000.0,200.1,30.5,41.0
no layout here,1,2048,2,128,512,1,1,100,1,1,1
1.1B_dp9_tp1_pp1,1,2048,4,16,512,1,1,100,1,1,1
1.1B_dp4_tp2_pp1,1,2048,64,2,512,0,0,OOM,0,0,0
"""


@pytest.fixture
def store(tmp_path):
    with results_db.open(tmp_path / "results.db") as opened:
        yield opened


def import_text(store, tmp_path, tool, text, recipe=RECIPE):
    path = tmp_path / f"{tool}.csv"
    path.write_text(text)
    report = import_results(store, tool, str(path), tool, recipe)
    assert check(store) == []
    return report, store.trials(store.get_study(tool).id)


def test_paddle(store, tmp_path):
    report, trials = import_text(store, tmp_path, "paddle", PADDLE)
    assert (report.num_trials, report.num_completed, report.skipped) == (5, 3, [])
    first, second, third, fourth, fifth = trials
    assert first.trial.knobs["dp"] == 4
    assert first.trial.knobs["pp"] == 2
    assert first.trial.knobs["zero_stage"] == 0
    assert first.measurement.tokens_per_s == pytest.approx(93000.5)
    assert first.measurement.step_time_s == pytest.approx(512 * 1024 / 93000.5)
    assert first.measurement.peak_memory_bytes == 66000 * 2**20
    assert first.measurement.num_microbatches == 64
    assert second.trial.knobs["recompute"] == "selective"
    assert second.trial.knobs["pipeline_schedule"] == "interleaved"
    assert (third.trial.knobs["dp"], third.trial.knobs["zero_stage"]) == (4, 2)
    assert (fourth.trial.status, fourth.failure.kind) == ("infeasible", "oom")
    assert fifth.failure.message == "ValueError: bad shape"
    best = leaderboard(store, "paddle")[0]
    assert best.label == "tp1 pp2 dp4 mbs2"
    assert best.config_key == first.trial.config_key


def test_flagscale(store, tmp_path):
    report, trials = import_text(store, tmp_path, "flagscale", FLAGSCALE)
    assert (report.num_trials, report.num_completed) == (4, 2)
    first, second, third, fourth = trials
    assert first.measurement.step_time_s == pytest.approx(1.50025)
    assert first.measurement.tokens_per_s == pytest.approx(512 * 1024 / 1.50025)
    assert first.trial.knobs["sequence_parallel"] is True
    assert first.trial.knobs["zero_stage"] == 1
    assert first.measurement.peak_memory_bytes == 61_000_500_000
    assert second.trial.knobs["virtual_stages"] == 4
    assert (second.trial.knobs["recompute"], second.trial.knobs["recompute_layers"]) == ("full", 3)
    assert third.failure.kind == "oom"
    assert "NCCL" in fourth.failure.message
    unknown, _ = import_text_again(store, tmp_path)
    assert unknown.num_trials == 3
    assert "num-layers" in unknown.skipped[0]


def import_text_again(store, tmp_path):
    recipe = Recipe(sequence_length=1024, global_batch_size=512)
    path = tmp_path / "flagscale.csv"
    return import_results(store, "flagscale", str(path), "again", recipe), None


def test_nanotron(store, tmp_path):
    report, trials = import_text(store, tmp_path, "nanotron", NANOTRON)
    assert (report.num_trials, report.num_completed) == (3, 2)
    assert len(report.skipped) == 2
    first, second, third = trials
    assert first.measurement.tokens_per_s == pytest.approx(31000.5 * 8)
    assert first.measurement.model_flops_per_s_per_device == pytest.approx(210.5e12)
    assert first.measurement.peak_memory_bytes == int(60.25 * 2**30)
    assert second.trial.knobs["zero_stage"] == 1
    assert second.trial.knobs["tp"] == second.trial.knobs["pp"] == 2
    assert third.failure.kind == "oom"


def test_deepspeed(store, tmp_path):
    folder = tmp_path / "autotuning_results"
    for name, config, metrics, log in (
        ("z0_gas1_tmbspg1", {"zero_optimization": {"stage": 0}}, {"throughput": 80.0}, ""),
        ("z1_gas1_tmbspg2",
         {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
          "bf16": {"enabled": True}},
         {"throughput": 120.0, "latency": 0.2, "FLOPS_per_gpu": 5e13}, ""),
        ("z2_gas1_tmbspg64", {"zero_optimization": {"stage": 2}}, None,
         "x\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"),
        ("z3_gas1_tmbspg4", {"zero_optimization": {"stage": 3}}, None, "KeyError: 'loss'\n"),
    ):  # fmt: skip
        place = folder / name
        place.mkdir(parents=True)
        config |= {"train_micro_batch_size_per_gpu": int(name.split("tmbspg")[1]),
                   "gradient_accumulation_steps": 1}  # fmt: skip
        experiment = {"name": name, "num_gpus": 4, "num_nodes": 2, "ds_config": config}
        (place / "exp.json").write_text(json.dumps(experiment))
        (place / "stderr.log").write_text(log)
        if metrics:
            (place / "metrics.json").write_text(json.dumps(metrics))
    broken = folder / "z9"
    broken.mkdir()
    (broken / "exp.json").write_text("{ torn")
    report = import_results(store, "deepspeed", str(folder), "deepspeed", RECIPE)
    assert check(store) == []
    assert (report.num_trials, report.num_completed, len(report.skipped)) == (4, 2, 1)
    first, second, third, fourth = store.trials(store.get_study("deepspeed").id)
    assert first.measurement.tokens_per_s == pytest.approx(80 * 1024)
    assert first.measurement.tokens_per_step == 8 * 1024
    assert second.trial.knobs["optimizer_offload"] is True
    assert second.trial.knobs["dtype"] == "bf16"
    assert second.trial.knobs["dp"] == 8
    assert second.measurement.model_flops_per_s_per_device == 5e13
    assert (third.trial.status, third.failure.kind) == ("infeasible", "oom")
    assert "OutOfMemoryError" in third.failure.message
    assert fourth.failure.message == "KeyError: 'loss'"


@pytest.mark.filterwarnings("ignore")  # what Optuna and its parts warn of is theirs
def test_optuna(store, tmp_path):
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{tmp_path}/optuna.db"
    study = optuna.create_study(study_name="theirs", storage=url, direction="maximize")

    def objective(trial):
        tp = trial.suggest_categorical("tensor_parallel_size", [1, 2])
        trial.suggest_int("mbs", 1, 4)
        if trial.number == 1:
            raise ValueError("boom")
        if trial.number == 2:
            raise optuna.TrialPruned
        return 1000.0 * tp + trial.number

    study.optimize(objective, n_trials=5, catch=(ValueError,))
    expected = {t.number: t.value for t in study.trials}
    report = import_results(store, "optuna", url, "ours", RECIPE)
    assert check(store) == []
    assert (report.num_trials, report.num_completed) == (5, 3)
    trials = store.trials(store.get_study("ours").id)
    statuses = [item.trial.status for item in trials]
    assert statuses == ["completed", "failed", "pruned", "completed", "completed"]
    assert trials[0].measurement.tokens_per_s == pytest.approx(expected[0])
    assert trials[3].measurement.tokens_per_s == pytest.approx(expected[3])
    assert trials[0].trial.knobs["tp"] in (1, 2)
    with pytest.raises(NotFound):
        import_results(store, "optuna", url, "other", RECIPE, "nobody's")
    with pytest.raises(DatabaseUnreadable):
        import_results(store, "optuna", f"sqlite:///{tmp_path}/no/such/folder.db", "z", RECIPE)


def test_what_cannot_be_imported(store, tmp_path):
    path = tmp_path / "history.csv"
    path.write_text(PADDLE)
    with pytest.raises(NotFound, match="there are paddle"):
        import_results(store, "megatron", str(path), "x", RECIPE)
    with pytest.raises(DatabaseUnreadable, match="no column idx"):
        import_results(store, "flagscale", str(path), "x", RECIPE)
    with pytest.raises(DatabaseUnreadable, match="cannot be read"):
        import_results(store, "paddle", str(tmp_path / "missing.csv"), "x", RECIPE)
    with pytest.raises(DatabaseUnreadable, match=r"no exp\.json"):
        import_results(store, "deepspeed", str(tmp_path), "x", RECIPE)
    with pytest.raises(DatabaseUnreadable, match="--metric"):
        import_results(store, "paddle", str(path), "x", Recipe(metric="speed"))
    with pytest.raises(InvalidRecord, match="--sequence-length"):
        import_results(store, "paddle", str(path), "x", Recipe())
    recipe = Recipe(unit="furlongs", sequence_length=1, global_batch_size=1)
    with pytest.raises(InvalidRecord, match="Unknown unit"):
        import_results(store, "paddle", str(path), "x", recipe)
    assert store.list_studies() == []
    import_results(store, "paddle", str(path), "x", RECIPE)
    with pytest.raises(AlreadyExists):
        import_results(store, "paddle", str(path), "x", RECIPE)
    assert set(IMPORTERS) == {"paddle", "flagscale", "deepspeed", "nanotron", "optuna"}


@pytest.mark.parametrize(
    ("unit", "value", "tokens_per_s"),
    [
        ("tokens_per_s", 5000.0, 5000.0),
        ("tokens_per_s_per_device", 500.0, 4000.0),
        ("samples_per_s", 10.0, 10240.0),
        ("step_time_s", 2.0, 512 * 1024 / 2.0),
        ("step_time_ms", 2000.0, 512 * 1024 / 2.0),
    ],
)
def test_units(store, tmp_path, unit, value, tokens_per_s):
    path = tmp_path / "history.csv"
    path.write_text(f"job_id,dp_degree,mp_degree,pp_degree,micro_batch_size,x\n1,4,2,1,1,{value}\n")
    recipe = Recipe(metric="x", unit=unit, sequence_length=1024, global_batch_size=512)
    import_results(store, "paddle", str(path), "study", recipe)
    assert leaderboard(store, "study")[0].tokens_per_s == pytest.approx(tokens_per_s)
