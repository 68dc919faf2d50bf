-- Views made for people; the same text on SQLite and PostgreSQL. Units are in the names.
-- Statements end with a semicolon at the end of a line; a view may use those above it.

-- Knobs of every configuration, one row each: what `GROUP BY knob, value` needs.
CREATE VIEW config_knobs AS
SELECT id AS config_id, 'dp' AS knob, CAST(dp AS TEXT) AS value FROM parallel_configs
UNION ALL SELECT id, 'tp', CAST(tp AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'tp_layout', tp_layout FROM parallel_configs
UNION ALL SELECT id, 'tp_depth', CAST(tp_depth AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'sequence_parallel',
       CASE WHEN sequence_parallel THEN 'true' ELSE 'false' END FROM parallel_configs
UNION ALL SELECT id, 'cp', CAST(cp AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'ep', CAST(ep AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'pp', CAST(pp AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'virtual_stages', CAST(virtual_stages AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'pipeline_schedule', pipeline_schedule FROM parallel_configs
UNION ALL SELECT id, 'stage_layers', COALESCE(stage_layers, 'even') FROM parallel_configs
UNION ALL SELECT id, 'micro_batch_size', CAST(micro_batch_size AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'zero_stage', CAST(zero_stage AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'zero_shard_degree', CAST(zero_shard_degree AS TEXT) FROM parallel_configs
UNION ALL SELECT id, 'recompute', recompute FROM parallel_configs
UNION ALL SELECT id, 'recompute_layers',
       COALESCE(CAST(recompute_layers AS TEXT), 'all') FROM parallel_configs
UNION ALL SELECT id, 'dtype', dtype FROM parallel_configs
UNION ALL SELECT id, 'reduce_dtype', reduce_dtype FROM parallel_configs
UNION ALL SELECT id, 'compile', CASE WHEN compile THEN 'true' ELSE 'false' END FROM parallel_configs
UNION ALL SELECT id, 'optimizer_offload',
       CASE WHEN optimizer_offload THEN 'true' ELSE 'false' END FROM parallel_configs;

-- Configurations by speed. `position` is 1 + how many intervals lie wholly above this one's, so
-- configurations that the measurements cannot tell apart share a position. Add ORDER BY
-- tokens_per_s DESC and a LIMIT: rows that are not shown are then never ranked.
CREATE VIEW leaderboard AS
SELECT s.name AS study,
       1 + (SELECT COUNT(*) FROM study_configs o
            WHERE o.study_id = sc.study_id
              AND o.tokens_per_s_low > sc.tokens_per_s_high) AS position,
       c.label AS config,
       sc.tokens_per_s, sc.tokens_per_s_low, sc.tokens_per_s_high,
       sc.tokens_per_s / (SELECT MAX(o.tokens_per_s) FROM study_configs o
                          WHERE o.study_id = sc.study_id) AS share_of_best,
       sc.step_time_s, sc.mfu, sc.peak_memory_bytes,
       sc.num_completed AS num_trials,
       sc.first_trial AS trial, sc.is_first,
       m.name AS model, m.num_parameters,
       cl.name AS cluster, cl.device_name, cl.num_nodes,
       s.sequence_length, s.global_batch_size,
       c.world_size, c.dp, c.tp, c.tp_layout, c.tp_depth, c.sequence_parallel, c.cp, c.ep, c.pp,
       c.virtual_stages, c.pipeline_schedule, c.stage_layers, c.micro_batch_size, c.zero_stage,
       c.zero_shard_degree, c.recompute, c.recompute_layers, c.dtype, c.reduce_dtype, c.compile,
       c.optimizer_offload,
       c.config_key, sc.study_id, sc.config_id
FROM study_configs sc
LEFT JOIN studies s ON s.id = sc.study_id
LEFT JOIN models m ON m.id = s.model_id
LEFT JOIN clusters cl ON cl.id = s.cluster_id
LEFT JOIN parallel_configs c ON c.id = sc.config_id;

-- The first position of every study, ties included.
CREATE VIEW best_configs AS
SELECT * FROM leaderboard WHERE is_first;

-- Every trial on one line, whatever became of it.
CREATE VIEW trial_summary AS
SELECT s.name AS study, t.number AS trial, t.status, t.purpose, c.label AS config,
       x.tokens_per_s, x.step_time_s, x.step_time_iqr_s, x.mfu,
       x.model_flops_per_s_per_device, x.hardware_flops_per_s_per_device,
       x.peak_memory_bytes, x.final_loss, x.loss_nonfinite, x.num_microbatches, x.tokens_per_step,
       x.startup_s, x.overhead_s, t.wall_s,
       f.kind AS failure, f.phase AS failure_phase, f.rank AS failure_rank,
       f.stage AS failure_stage, f.message AS failure_message,
       t.source, t.repeat, t.attempt, t.num_requeues, t.queued_at, t.started_at, t.finished_at,
       m.name AS model, cl.name AS cluster, cl.num_nodes,
       c.world_size, c.dp, c.tp, c.tp_layout, c.tp_depth, c.sequence_parallel, c.cp, c.ep, c.pp,
       c.virtual_stages, c.pipeline_schedule, c.stage_layers, c.micro_batch_size, c.zero_stage,
       c.zero_shard_degree, c.recompute, c.recompute_layers, c.dtype, c.reduce_dtype, c.compile,
       c.optimizer_offload,
       c.config_key, t.folder, t.id AS trial_id, t.study_id, t.config_id
FROM trials t
JOIN studies s ON s.id = t.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
JOIN parallel_configs c ON c.id = t.config_id
LEFT JOIN measurements x ON x.trial_id = t.id
LEFT JOIN failure_reports f ON f.trial_id = t.id AND f.position = 0;

-- What went wrong, in the ranks' own words; `is_cause` marks the first report of a trial.
CREATE VIEW failures AS
SELECT s.name AS study, t.number AS trial, c.label AS config, t.status,
       f.kind, f.phase, f.rank, f.stage, f.step, f.message,
       f.position = 0 AS is_cause,
       f.peak_memory_bytes, cl.memory_bytes AS device_memory_bytes,
       t.attempt, t.finished_at, m.name AS model, cl.name AS cluster,
       f.traceback, f.trial_id, t.study_id, t.config_id
FROM failure_reports f
JOIN trials t ON t.id = f.trial_id
JOIN studies s ON s.id = t.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
JOIN parallel_configs c ON c.id = t.config_id;

-- Configurations that no other of the study beats in both speed and memory.
CREATE VIEW pareto AS
SELECT s.name AS study, c.label AS config, p.tokens_per_s, p.peak_memory_bytes, p.mfu,
       p.step_time_s, m.name AS model, cl.name AS cluster, c.world_size,
       c.config_key, p.study_id, p.config_id
FROM (SELECT sc.*,
             MIN(sc.peak_memory_bytes) OVER (
                 PARTITION BY sc.study_id
                 ORDER BY sc.tokens_per_s DESC, sc.peak_memory_bytes
                 RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP
             ) AS least_memory_of_faster
      FROM study_configs sc) p
JOIN studies s ON s.id = p.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
JOIN parallel_configs c ON c.id = p.config_id
WHERE p.least_memory_of_faster IS NULL OR p.peak_memory_bytes < p.least_memory_of_faster;

-- What each value of each knob reached: its best and its median configuration.
CREATE VIEW knob_effects AS
SELECT s.name AS study, r.knob, r.value,
       COUNT(*) AS num_configs,
       MAX(r.tokens_per_s) AS best_tokens_per_s,
       AVG(CASE WHEN 2 * r.place IN (r.num, r.num + 1, r.num + 2) THEN r.tokens_per_s END)
           AS median_tokens_per_s,
       MAX(r.tokens_per_s) / (SELECT MAX(o.tokens_per_s) FROM study_configs o
                              WHERE o.study_id = r.study_id) AS best_share_of_best,
       MIN(r.peak_memory_bytes) AS least_peak_memory_bytes,
       m.name AS model, cl.name AS cluster, r.study_id
FROM (SELECT sc.study_id, k.knob, k.value, sc.tokens_per_s, sc.peak_memory_bytes,
             ROW_NUMBER() OVER (PARTITION BY sc.study_id, k.knob, k.value
                                ORDER BY sc.tokens_per_s) AS place,
             COUNT(*) OVER (PARTITION BY sc.study_id, k.knob, k.value) AS num
      FROM study_configs sc
      JOIN config_knobs k ON k.config_id = sc.config_id) r
JOIN studies s ON s.id = r.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
GROUP BY r.study_id, s.name, r.knob, r.value, m.name, cl.name;

-- The cost model's word against the clock's, for every configuration that was predicted and ran.
CREATE VIEW predicted_vs_measured AS
SELECT s.name AS study, c.label AS config, p.model_name AS cost_model,
       p.step_time_s AS predicted_step_time_s,
       p.step_time_low_s AS predicted_low_s, p.step_time_high_s AS predicted_high_s,
       sc.step_time_s AS measured_step_time_s,
       p.step_time_s / sc.step_time_s AS predicted_over_measured,
       sc.step_time_s BETWEEN p.step_time_low_s AND p.step_time_high_s AS is_inside_interval,
       p.peak_memory_bytes AS predicted_memory_bytes,
       sc.peak_memory_bytes AS measured_memory_bytes,
       p.peak_memory_bytes / sc.peak_memory_bytes AS memory_predicted_over_measured,
       p.probability_fits,
       EXISTS (SELECT 1 FROM trials t JOIN failure_reports f ON f.trial_id = t.id
               WHERE t.study_id = p.study_id AND t.config_id = c.id AND f.kind = 'oom')
           AS ran_out_of_memory,
       m.name AS model, cl.name AS cluster, c.config_key, p.study_id, c.id AS config_id
FROM predictions p
JOIN studies s ON s.id = p.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
JOIN parallel_configs c ON c.config_key = p.config_key
LEFT JOIN study_configs sc ON sc.study_id = p.study_id AND sc.config_id = c.id
WHERE EXISTS (SELECT 1 FROM trials t
              WHERE t.study_id = p.study_id AND t.config_id = c.id
                AND t.status NOT IN ('queued', 'running'));

-- Why a configuration has no number: a rule kept it from running, or its trial gave none.
CREATE VIEW why_not AS
SELECT s.name AS study, c.label AS config, 'not tried' AS outcome, u.rule AS cause, u.reason,
       NULL AS trial, c.world_size, c.config_key, u.study_id, u.config_id
FROM untried_points u
JOIN studies s ON s.id = u.study_id
JOIN parallel_configs c ON c.id = u.config_id
UNION ALL
SELECT s.name, c.label, t.status, COALESCE(f.kind, t.status),
       COALESCE(f.message, ''), t.number, c.world_size, c.config_key, t.study_id, t.config_id
FROM trials t
JOIN studies s ON s.id = t.study_id
JOIN parallel_configs c ON c.id = t.config_id
LEFT JOIN failure_reports f ON f.trial_id = t.id AND f.position = 0
WHERE t.status IN ('infeasible', 'failed', 'pruned', 'cancelled')
  AND NOT EXISTS (SELECT 1 FROM study_configs sc
                  WHERE sc.study_id = t.study_id AND sc.config_id = t.config_id);

-- How the best of a study grew, trial by trial.
CREATE VIEW history_of_best AS
SELECT s.name AS study, h.number AS trial, h.finished_at, c.label AS config, h.tokens_per_s,
       CASE WHEN h.best_before IS NULL OR h.tokens_per_s > h.best_before
            THEN h.tokens_per_s ELSE h.best_before END AS best_tokens_per_s,
       h.best_before IS NULL OR h.tokens_per_s > h.best_before AS is_new_best,
       m.name AS model, cl.name AS cluster, h.source, c.config_key, h.study_id, h.config_id
FROM (SELECT t.study_id, t.number, t.finished_at, t.config_id, t.source, x.tokens_per_s,
             MAX(x.tokens_per_s) OVER (
                 PARTITION BY t.study_id ORDER BY t.finished_at, t.number
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best_before
      FROM trials t
      JOIN measurements x ON x.trial_id = t.id
      WHERE t.status = 'completed') h
JOIN studies s ON s.id = h.study_id
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id
JOIN parallel_configs c ON c.id = h.config_id;

-- Memory and time of every pipeline stage of a trial, over the ranks that hold it.
CREATE VIEW stage_summary AS
SELECT s.name AS study, t.number AS trial, c.label AS config, g.stage,
       COUNT(*) AS num_ranks,
       MIN(r.rank) AS first_rank,
       MAX(r.peak_memory_bytes) AS peak_memory_bytes,
       MAX(r.state_memory_bytes) AS state_memory_bytes,
       MAX(r.num_parameters) AS num_parameters,
       MAX(fw.time_s) AS forward_s,
       MAX(bw.time_s) AS backward_s,
       MAX(bu.time_s) AS bubble_s,
       g.trial_id, t.study_id, t.config_id
FROM rank_stages g
JOIN ranks r ON r.trial_id = g.trial_id AND r.rank = g.rank
JOIN trials t ON t.id = g.trial_id
JOIN studies s ON s.id = t.study_id
JOIN parallel_configs c ON c.id = t.config_id
LEFT JOIN breakdowns fw ON fw.trial_id = g.trial_id AND fw.rank = g.rank AND fw.part = 'forward'
LEFT JOIN breakdowns bw ON bw.trial_id = g.trial_id AND bw.rank = g.rank AND bw.part = 'backward'
LEFT JOIN breakdowns bu ON bu.trial_id = g.trial_id AND bu.rank = g.rank AND bu.part = 'bubble'
GROUP BY g.trial_id, g.stage, s.name, t.number, c.label, t.study_id, t.config_id;

-- Studies at a glance.
CREATE VIEW study_summary AS
SELECT s.name AS study, s.status, m.name AS model, m.num_parameters, cl.name AS cluster,
       cl.num_nodes, s.sequence_length, s.global_batch_size, s.searcher, s.launcher,
       s.num_trials, s.max_trials, s.num_legal_points,
       (SELECT MAX(sc.tokens_per_s) FROM study_configs sc
        WHERE sc.study_id = s.id) AS best_tokens_per_s,
       s.created_at, s.finished_at, s.imported_from, s.id AS study_id
FROM studies s
JOIN models m ON m.id = s.model_id
JOIN clusters cl ON cl.id = s.cluster_id;
