SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num text NOT NULL
);
CREATE TABLE public.clusters (
    id bigint NOT NULL,
    name text NOT NULL,
    device_kind text,
    device_name text,
    num_nodes bigint,
    devices_per_node bigint,
    memory_bytes bigint,
    memory_bytes_per_s double precision,
    nics_per_node bigint,
    price_per_device_hour double precision,
    spec text NOT NULL,
    spec_hash text NOT NULL
);
COMMENT ON COLUMN public.clusters.memory_bytes IS 'of one device';
COMMENT ON COLUMN public.clusters.spec IS 'all fields, JSON';
CREATE TABLE public.models (
    id bigint NOT NULL,
    name text NOT NULL,
    family text,
    num_parameters bigint,
    num_layers bigint,
    hidden_size bigint,
    num_heads bigint,
    num_kv_heads bigint,
    head_dim bigint,
    ffn_size bigint,
    vocab_size bigint,
    max_positions bigint,
    num_experts bigint,
    experts_per_token bigint,
    spec text NOT NULL,
    spec_hash text NOT NULL
);
COMMENT ON COLUMN public.models.spec IS 'all fields, JSON';
CREATE TABLE public.parallel_configs (
    id bigint NOT NULL,
    config_key text NOT NULL,
    label text NOT NULL,
    world_size bigint NOT NULL,
    dp integer NOT NULL,
    tp integer NOT NULL,
    tp_layout text NOT NULL,
    tp_depth integer NOT NULL,
    sequence_parallel boolean NOT NULL,
    cp integer NOT NULL,
    ep integer NOT NULL,
    pp integer NOT NULL,
    virtual_stages integer NOT NULL,
    pipeline_schedule text NOT NULL,
    stage_layers text,
    micro_batch_size integer NOT NULL,
    zero_stage integer NOT NULL,
    zero_shard_degree integer NOT NULL,
    recompute text NOT NULL,
    recompute_layers integer,
    dtype text NOT NULL,
    reduce_dtype text NOT NULL,
    compile boolean NOT NULL,
    optimizer_offload boolean NOT NULL
);
COMMENT ON COLUMN public.parallel_configs.label IS 'for people';
COMMENT ON COLUMN public.parallel_configs.world_size IS 'tp * cp * dp * pp';
COMMENT ON COLUMN public.parallel_configs.dp IS 'data-parallel replicas';
COMMENT ON COLUMN public.parallel_configs.tp IS 'tensor-parallel ranks';
COMMENT ON COLUMN public.parallel_configs.tp_layout IS '1d, 2d or 2.5d tensor parallelism';
COMMENT ON COLUMN public.parallel_configs.tp_depth IS 'depth of the 2.5d mesh';
COMMENT ON COLUMN public.parallel_configs.sequence_parallel IS 'norms sharded over the sequence';
COMMENT ON COLUMN public.parallel_configs.cp IS 'context-parallel ranks';
COMMENT ON COLUMN public.parallel_configs.ep IS 'expert-parallel ranks';
COMMENT ON COLUMN public.parallel_configs.pp IS 'pipeline ranks';
COMMENT ON COLUMN public.parallel_configs.virtual_stages IS 'model chunks per pipeline rank';
COMMENT ON COLUMN public.parallel_configs.pipeline_schedule IS 'order of the pipeline''s actions';
COMMENT ON COLUMN public.parallel_configs.stage_layers IS 'layers of every stage, when uneven';
COMMENT ON COLUMN public.parallel_configs.micro_batch_size IS 'sequences per micro-batch';
COMMENT ON COLUMN public.parallel_configs.zero_stage IS 'ZeRO stage';
COMMENT ON COLUMN public.parallel_configs.zero_shard_degree IS 'ranks that share one shard set, 0 = all of dp';
COMMENT ON COLUMN public.parallel_configs.recompute IS 'activation recomputation';
COMMENT ON COLUMN public.parallel_configs.recompute_layers IS 'layers that recompute';
COMMENT ON COLUMN public.parallel_configs.dtype IS 'compute precision';
COMMENT ON COLUMN public.parallel_configs.reduce_dtype IS 'precision of gradient reduction';
COMMENT ON COLUMN public.parallel_configs.compile IS 'layers compiled';
COMMENT ON COLUMN public.parallel_configs.optimizer_offload IS 'optimizer states in host memory';
CREATE TABLE public.studies (
    id bigint NOT NULL,
    uuid text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    objective_metric text NOT NULL,
    objective_direction text NOT NULL,
    searcher text NOT NULL,
    launcher text NOT NULL,
    seed bigint NOT NULL,
    max_trials bigint,
    num_legal_points bigint,
    model_id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    sequence_length bigint,
    global_batch_size bigint,
    training_dtype text,
    workload text,
    optimizer text,
    learning_rate double precision,
    training_spec text NOT NULL,
    resolved_config text NOT NULL,
    config_hash text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    num_trials bigint DEFAULT 0 NOT NULL,
    lease_host text,
    lease_pid bigint,
    lease_process_started_at timestamp with time zone,
    lease_heartbeat_at timestamp with time zone,
    imported_from text,
    CONSTRAINT ck_studies_objective_direction_known CHECK ((objective_direction = ANY (ARRAY['maximize'::text, 'minimize'::text]))),
    CONSTRAINT ck_studies_status_known CHECK ((status = ANY (ARRAY['running'::text, 'interrupted'::text, 'completed'::text])))
);
COMMENT ON COLUMN public.studies.uuid IS 'the same in every copy';
COMMENT ON COLUMN public.studies.training_spec IS 'all fields, JSON';
COMMENT ON COLUMN public.studies.num_trials IS 'numbers given so far';
COMMENT ON COLUMN public.studies.lease_host IS 'the controller that runs the study now';
COMMENT ON COLUMN public.studies.imported_from IS 'the tool whose results these are, when not ours';
CREATE TABLE public.study_configs (
    study_id bigint NOT NULL,
    config_id bigint NOT NULL,
    num_completed bigint DEFAULT 0 NOT NULL,
    tokens_per_s double precision,
    tokens_per_s_low double precision,
    tokens_per_s_high double precision,
    step_time_s double precision,
    peak_memory_bytes bigint,
    mfu double precision,
    first_trial bigint,
    is_first boolean DEFAULT false NOT NULL
);
COMMENT ON COLUMN public.study_configs.tokens_per_s IS 'median over the completed trials';
COMMENT ON COLUMN public.study_configs.tokens_per_s_low IS 'interval of that median';
COMMENT ON COLUMN public.study_configs.step_time_s IS 'median over the completed trials';
COMMENT ON COLUMN public.study_configs.peak_memory_bytes IS 'largest over the completed trials';
COMMENT ON COLUMN public.study_configs.mfu IS 'median over the completed trials';
COMMENT ON COLUMN public.study_configs.first_trial IS 'number of the first completed trial';
COMMENT ON COLUMN public.study_configs.is_first IS 'whether the position is 1';
CREATE VIEW public.leaderboard AS
 SELECT s.name AS study,
    (1 + ( SELECT count(*) AS count
           FROM public.study_configs o
          WHERE ((o.study_id = sc.study_id) AND (o.tokens_per_s_low > sc.tokens_per_s_high)))) AS "position",
    c.label AS config,
    sc.tokens_per_s,
    sc.tokens_per_s_low,
    sc.tokens_per_s_high,
    (sc.tokens_per_s / ( SELECT max(o.tokens_per_s) AS max
           FROM public.study_configs o
          WHERE (o.study_id = sc.study_id))) AS share_of_best,
    sc.step_time_s,
    sc.mfu,
    sc.peak_memory_bytes,
    sc.num_completed AS num_trials,
    sc.first_trial AS trial,
    sc.is_first,
    m.name AS model,
    m.num_parameters,
    cl.name AS cluster,
    cl.device_name,
    cl.num_nodes,
    s.sequence_length,
    s.global_batch_size,
    c.world_size,
    c.dp,
    c.tp,
    c.tp_layout,
    c.tp_depth,
    c.sequence_parallel,
    c.cp,
    c.ep,
    c.pp,
    c.virtual_stages,
    c.pipeline_schedule,
    c.stage_layers,
    c.micro_batch_size,
    c.zero_stage,
    c.zero_shard_degree,
    c.recompute,
    c.recompute_layers,
    c.dtype,
    c.reduce_dtype,
    c.compile,
    c.optimizer_offload,
    c.config_key,
    sc.study_id,
    sc.config_id
   FROM ((((public.study_configs sc
     LEFT JOIN public.studies s ON ((s.id = sc.study_id)))
     LEFT JOIN public.models m ON ((m.id = s.model_id)))
     LEFT JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     LEFT JOIN public.parallel_configs c ON ((c.id = sc.config_id)));
CREATE VIEW public.best_configs AS
 SELECT leaderboard.study,
    leaderboard."position",
    leaderboard.config,
    leaderboard.tokens_per_s,
    leaderboard.tokens_per_s_low,
    leaderboard.tokens_per_s_high,
    leaderboard.share_of_best,
    leaderboard.step_time_s,
    leaderboard.mfu,
    leaderboard.peak_memory_bytes,
    leaderboard.num_trials,
    leaderboard.trial,
    leaderboard.is_first,
    leaderboard.model,
    leaderboard.num_parameters,
    leaderboard.cluster,
    leaderboard.device_name,
    leaderboard.num_nodes,
    leaderboard.sequence_length,
    leaderboard.global_batch_size,
    leaderboard.world_size,
    leaderboard.dp,
    leaderboard.tp,
    leaderboard.tp_layout,
    leaderboard.tp_depth,
    leaderboard.sequence_parallel,
    leaderboard.cp,
    leaderboard.ep,
    leaderboard.pp,
    leaderboard.virtual_stages,
    leaderboard.pipeline_schedule,
    leaderboard.stage_layers,
    leaderboard.micro_batch_size,
    leaderboard.zero_stage,
    leaderboard.zero_shard_degree,
    leaderboard.recompute,
    leaderboard.recompute_layers,
    leaderboard.dtype,
    leaderboard.reduce_dtype,
    leaderboard.compile,
    leaderboard.optimizer_offload,
    leaderboard.config_key,
    leaderboard.study_id,
    leaderboard.config_id
   FROM public.leaderboard
  WHERE leaderboard.is_first;
CREATE TABLE public.breakdowns (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    part text NOT NULL,
    time_s double precision
);
COMMENT ON COLUMN public.breakdowns.part IS 'forward, backward, bubble, ...';
COMMENT ON COLUMN public.breakdowns.time_s IS 'of one step';
CREATE SEQUENCE public.clusters_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.clusters_id_seq OWNED BY public.clusters.id;
CREATE TABLE public.collectives (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    collective text NOT NULL,
    calls double precision,
    bytes double precision,
    seconds double precision,
    other text
);
COMMENT ON COLUMN public.collectives.calls IS 'of one step';
COMMENT ON COLUMN public.collectives.other IS 'further quantities, JSON';
CREATE VIEW public.config_knobs AS
 SELECT parallel_configs.id AS config_id,
    'dp'::text AS knob,
    (parallel_configs.dp)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'tp'::text AS knob,
    (parallel_configs.tp)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'tp_layout'::text AS knob,
    parallel_configs.tp_layout AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'tp_depth'::text AS knob,
    (parallel_configs.tp_depth)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'sequence_parallel'::text AS knob,
        CASE
            WHEN parallel_configs.sequence_parallel THEN 'true'::text
            ELSE 'false'::text
        END AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'cp'::text AS knob,
    (parallel_configs.cp)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'ep'::text AS knob,
    (parallel_configs.ep)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'pp'::text AS knob,
    (parallel_configs.pp)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'virtual_stages'::text AS knob,
    (parallel_configs.virtual_stages)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'pipeline_schedule'::text AS knob,
    parallel_configs.pipeline_schedule AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'stage_layers'::text AS knob,
    COALESCE(parallel_configs.stage_layers, 'even'::text) AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'micro_batch_size'::text AS knob,
    (parallel_configs.micro_batch_size)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'zero_stage'::text AS knob,
    (parallel_configs.zero_stage)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'zero_shard_degree'::text AS knob,
    (parallel_configs.zero_shard_degree)::text AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'recompute'::text AS knob,
    parallel_configs.recompute AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'recompute_layers'::text AS knob,
    COALESCE((parallel_configs.recompute_layers)::text, 'all'::text) AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'dtype'::text AS knob,
    parallel_configs.dtype AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'reduce_dtype'::text AS knob,
    parallel_configs.reduce_dtype AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'compile'::text AS knob,
        CASE
            WHEN parallel_configs.compile THEN 'true'::text
            ELSE 'false'::text
        END AS value
   FROM public.parallel_configs
UNION ALL
 SELECT parallel_configs.id AS config_id,
    'optimizer_offload'::text AS knob,
        CASE
            WHEN parallel_configs.optimizer_offload THEN 'true'::text
            ELSE 'false'::text
        END AS value
   FROM public.parallel_configs;
CREATE TABLE public.failure_reports (
    trial_id bigint NOT NULL,
    "position" integer NOT NULL,
    kind text NOT NULL,
    phase text NOT NULL,
    message text NOT NULL,
    rank integer,
    stage integer,
    step integer,
    traceback text NOT NULL,
    peak_memory_bytes bigint
);
COMMENT ON COLUMN public.failure_reports."position" IS '0 is the cause, later ones followed';
CREATE TABLE public.trials (
    id bigint NOT NULL,
    study_id bigint NOT NULL,
    number bigint NOT NULL,
    config_id bigint NOT NULL,
    status text NOT NULL,
    purpose text NOT NULL,
    repeat bigint NOT NULL,
    attempt bigint NOT NULL,
    seed bigint NOT NULL,
    warmup_steps bigint NOT NULL,
    measured_steps bigint NOT NULL,
    source text NOT NULL,
    queued_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    wall_s double precision,
    num_requeues integer DEFAULT 0 NOT NULL,
    folder text,
    lease_host text,
    lease_pid bigint,
    lease_process_started_at timestamp with time zone,
    lease_heartbeat_at timestamp with time zone,
    CONSTRAINT ck_trials_purpose_known CHECK ((purpose = ANY (ARRAY['search'::text, 'baseline'::text, 'confirm'::text, 'drift'::text]))),
    CONSTRAINT ck_trials_status_known CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'pruned'::text, 'infeasible'::text, 'failed'::text, 'cancelled'::text])))
);
COMMENT ON COLUMN public.trials.number IS '1, 2, 3 ... within the study';
COMMENT ON COLUMN public.trials.source IS 'what proposed it';
COMMENT ON COLUMN public.trials.wall_s IS 'start to end';
COMMENT ON COLUMN public.trials.lease_host IS 'who runs it, while it runs';
CREATE VIEW public.failures AS
 SELECT s.name AS study,
    t.number AS trial,
    c.label AS config,
    t.status,
    f.kind,
    f.phase,
    f.rank,
    f.stage,
    f.step,
    f.message,
    (f."position" = 0) AS is_cause,
    f.peak_memory_bytes,
    cl.memory_bytes AS device_memory_bytes,
    t.attempt,
    t.finished_at,
    m.name AS model,
    cl.name AS cluster,
    f.traceback,
    f.trial_id,
    t.study_id,
    t.config_id
   FROM (((((public.failure_reports f
     JOIN public.trials t ON ((t.id = f.trial_id)))
     JOIN public.studies s ON ((s.id = t.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     JOIN public.parallel_configs c ON ((c.id = t.config_id)));
CREATE TABLE public.measurements (
    trial_id bigint NOT NULL,
    step_time_s double precision NOT NULL,
    step_time_iqr_s double precision NOT NULL,
    tokens_per_s double precision NOT NULL,
    tokens_per_s_low double precision NOT NULL,
    tokens_per_s_high double precision NOT NULL,
    tokens_per_step bigint NOT NULL,
    num_measured_steps bigint NOT NULL,
    num_microbatches bigint NOT NULL,
    num_parameters bigint NOT NULL,
    num_layers bigint NOT NULL,
    model_flops_per_step double precision NOT NULL,
    hardware_flops_per_step double precision NOT NULL,
    model_flops_per_s_per_device double precision NOT NULL,
    hardware_flops_per_s_per_device double precision NOT NULL,
    mfu double precision,
    peak_memory_bytes bigint NOT NULL,
    final_loss double precision,
    loss_nonfinite text,
    startup_s double precision NOT NULL,
    overhead_s double precision,
    software_id bigint
);
COMMENT ON COLUMN public.measurements.tokens_per_s_low IS 'interval of the median, lower end';
COMMENT ON COLUMN public.measurements.peak_memory_bytes IS 'largest over ranks';
COMMENT ON COLUMN public.measurements.loss_nonfinite IS 'nan, inf or -inf when final_loss is NULL for it';
CREATE VIEW public.history_of_best AS
 SELECT s.name AS study,
    h.number AS trial,
    h.finished_at,
    c.label AS config,
    h.tokens_per_s,
        CASE
            WHEN ((h.best_before IS NULL) OR (h.tokens_per_s > h.best_before)) THEN h.tokens_per_s
            ELSE h.best_before
        END AS best_tokens_per_s,
    ((h.best_before IS NULL) OR (h.tokens_per_s > h.best_before)) AS is_new_best,
    m.name AS model,
    cl.name AS cluster,
    h.source,
    c.config_key,
    h.study_id,
    h.config_id
   FROM ((((( SELECT t.study_id,
            t.number,
            t.finished_at,
            t.config_id,
            t.source,
            x.tokens_per_s,
            max(x.tokens_per_s) OVER (PARTITION BY t.study_id ORDER BY t.finished_at, t.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best_before
           FROM (public.trials t
             JOIN public.measurements x ON ((x.trial_id = t.id)))
          WHERE (t.status = 'completed'::text)) h
     JOIN public.studies s ON ((s.id = h.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     JOIN public.parallel_configs c ON ((c.id = h.config_id)));
CREATE VIEW public.knob_effects AS
 SELECT s.name AS study,
    r.knob,
    r.value,
    count(*) AS num_configs,
    max(r.tokens_per_s) AS best_tokens_per_s,
    avg(
        CASE
            WHEN ((((2 * r.place) = r.num) OR ((2 * r.place) = (r.num + 1))) OR ((2 * r.place) = (r.num + 2))) THEN r.tokens_per_s
            ELSE NULL::double precision
        END) AS median_tokens_per_s,
    (max(r.tokens_per_s) / ( SELECT max(o.tokens_per_s) AS max
           FROM public.study_configs o
          WHERE (o.study_id = r.study_id))) AS best_share_of_best,
    min(r.peak_memory_bytes) AS least_peak_memory_bytes,
    m.name AS model,
    cl.name AS cluster,
    r.study_id
   FROM (((( SELECT sc.study_id,
            k.knob,
            k.value,
            sc.tokens_per_s,
            sc.peak_memory_bytes,
            row_number() OVER (PARTITION BY sc.study_id, k.knob, k.value ORDER BY sc.tokens_per_s) AS place,
            count(*) OVER (PARTITION BY sc.study_id, k.knob, k.value) AS num
           FROM (public.study_configs sc
             JOIN public.config_knobs k ON ((k.config_id = sc.config_id)))) r
     JOIN public.studies s ON ((s.id = r.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
  GROUP BY r.study_id, s.name, r.knob, r.value, m.name, cl.name;
CREATE SEQUENCE public.models_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.models_id_seq OWNED BY public.models.id;
CREATE TABLE public.notes (
    id bigint NOT NULL,
    study_id bigint NOT NULL,
    trial_id bigint,
    author text NOT NULL,
    body text NOT NULL,
    created_at timestamp with time zone NOT NULL
);
CREATE SEQUENCE public.notes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.notes_id_seq OWNED BY public.notes.id;
CREATE SEQUENCE public.parallel_configs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.parallel_configs_id_seq OWNED BY public.parallel_configs.id;
CREATE VIEW public.pareto AS
 SELECT s.name AS study,
    c.label AS config,
    p.tokens_per_s,
    p.peak_memory_bytes,
    p.mfu,
    p.step_time_s,
    m.name AS model,
    cl.name AS cluster,
    c.world_size,
    c.config_key,
    p.study_id,
    p.config_id
   FROM ((((( SELECT sc.study_id,
            sc.config_id,
            sc.num_completed,
            sc.tokens_per_s,
            sc.tokens_per_s_low,
            sc.tokens_per_s_high,
            sc.step_time_s,
            sc.peak_memory_bytes,
            sc.mfu,
            sc.first_trial,
            sc.is_first,
            min(sc.peak_memory_bytes) OVER (PARTITION BY sc.study_id ORDER BY sc.tokens_per_s DESC, sc.peak_memory_bytes RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS least_memory_of_faster
           FROM public.study_configs sc) p
     JOIN public.studies s ON ((s.id = p.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     JOIN public.parallel_configs c ON ((c.id = p.config_id)))
  WHERE ((p.least_memory_of_faster IS NULL) OR (p.peak_memory_bytes < p.least_memory_of_faster));
CREATE TABLE public.predictions (
    study_id bigint NOT NULL,
    config_key text NOT NULL,
    model_name text NOT NULL,
    step_time_s double precision,
    step_time_low_s double precision,
    step_time_high_s double precision,
    peak_memory_bytes double precision,
    probability_fits double precision
);
COMMENT ON COLUMN public.predictions.model_name IS 'of the cost model';
COMMENT ON COLUMN public.predictions.step_time_low_s IS 'low..high bound 90 %';
CREATE VIEW public.predicted_vs_measured AS
 SELECT s.name AS study,
    c.label AS config,
    p.model_name AS cost_model,
    p.step_time_s AS predicted_step_time_s,
    p.step_time_low_s AS predicted_low_s,
    p.step_time_high_s AS predicted_high_s,
    sc.step_time_s AS measured_step_time_s,
    (p.step_time_s / sc.step_time_s) AS predicted_over_measured,
    ((sc.step_time_s >= p.step_time_low_s) AND (sc.step_time_s <= p.step_time_high_s)) AS is_inside_interval,
    p.peak_memory_bytes AS predicted_memory_bytes,
    sc.peak_memory_bytes AS measured_memory_bytes,
    (p.peak_memory_bytes / (sc.peak_memory_bytes)::double precision) AS memory_predicted_over_measured,
    p.probability_fits,
    (EXISTS ( SELECT 1
           FROM (public.trials t
             JOIN public.failure_reports f ON ((f.trial_id = t.id)))
          WHERE ((t.study_id = p.study_id) AND (t.config_id = c.id) AND (f.kind = 'oom'::text)))) AS ran_out_of_memory,
    m.name AS model,
    cl.name AS cluster,
    c.config_key,
    p.study_id,
    c.id AS config_id
   FROM (((((public.predictions p
     JOIN public.studies s ON ((s.id = p.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     JOIN public.parallel_configs c ON ((c.config_key = p.config_key)))
     LEFT JOIN public.study_configs sc ON (((sc.study_id = p.study_id) AND (sc.config_id = c.id))))
  WHERE (EXISTS ( SELECT 1
           FROM public.trials t
          WHERE ((t.study_id = p.study_id) AND (t.config_id = c.id) AND (t.status <> ALL (ARRAY['queued'::text, 'running'::text])))));
CREATE TABLE public.provenance (
    study_id bigint NOT NULL,
    topic text NOT NULL,
    name text NOT NULL,
    value text,
    kind text NOT NULL,
    CONSTRAINT ck_provenance_kind_known CHECK ((kind = ANY (ARRAY['text'::text, 'json'::text])))
);
COMMENT ON COLUMN public.provenance.topic IS 'git, versions, host, devices, ...';
COMMENT ON COLUMN public.provenance.name IS 'empty when the topic is one value';
COMMENT ON COLUMN public.provenance.kind IS 'type of the value';
CREATE TABLE public.rank_coordinates (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    axis text NOT NULL,
    coordinate integer NOT NULL
);
COMMENT ON COLUMN public.rank_coordinates.axis IS 'mesh axis: dp, tp, pp, ...';
CREATE TABLE public.rank_stages (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    stage integer NOT NULL
);
CREATE TABLE public.ranks (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    hostname text NOT NULL,
    device text NOT NULL,
    layers text NOT NULL,
    num_parameters bigint NOT NULL,
    peak_memory_bytes bigint NOT NULL,
    state_memory_bytes bigint NOT NULL
);
COMMENT ON COLUMN public.ranks.layers IS 'decoder layers held, e.g. 0,1,2';
CREATE TABLE public.software (
    id bigint NOT NULL,
    versions_hash text NOT NULL
);
CREATE SEQUENCE public.software_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.software_id_seq OWNED BY public.software.id;
CREATE TABLE public.software_versions (
    software_id bigint NOT NULL,
    package text NOT NULL,
    version text NOT NULL
);
CREATE VIEW public.stage_summary AS
 SELECT s.name AS study,
    t.number AS trial,
    c.label AS config,
    g.stage,
    count(*) AS num_ranks,
    min(r.rank) AS first_rank,
    max(r.peak_memory_bytes) AS peak_memory_bytes,
    max(r.state_memory_bytes) AS state_memory_bytes,
    max(r.num_parameters) AS num_parameters,
    max(fw.time_s) AS forward_s,
    max(bw.time_s) AS backward_s,
    max(bu.time_s) AS bubble_s,
    g.trial_id,
    t.study_id,
    t.config_id
   FROM (((((((public.rank_stages g
     JOIN public.ranks r ON (((r.trial_id = g.trial_id) AND (r.rank = g.rank))))
     JOIN public.trials t ON ((t.id = g.trial_id)))
     JOIN public.studies s ON ((s.id = t.study_id)))
     JOIN public.parallel_configs c ON ((c.id = t.config_id)))
     LEFT JOIN public.breakdowns fw ON (((fw.trial_id = g.trial_id) AND (fw.rank = g.rank) AND (fw.part = 'forward'::text))))
     LEFT JOIN public.breakdowns bw ON (((bw.trial_id = g.trial_id) AND (bw.rank = g.rank) AND (bw.part = 'backward'::text))))
     LEFT JOIN public.breakdowns bu ON (((bu.trial_id = g.trial_id) AND (bu.rank = g.rank) AND (bu.part = 'bubble'::text))))
  GROUP BY g.trial_id, g.stage, s.name, t.number, c.label, t.study_id, t.config_id;
CREATE TABLE public.steps (
    trial_id bigint NOT NULL,
    step integer NOT NULL,
    is_warmup boolean NOT NULL,
    step_time_s double precision NOT NULL,
    loss double precision,
    loss_nonfinite text,
    tokens bigint NOT NULL
);
COMMENT ON COLUMN public.steps.loss_nonfinite IS 'nan, inf or -inf when loss is NULL for it';
CREATE SEQUENCE public.studies_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.studies_id_seq OWNED BY public.studies.id;
CREATE VIEW public.study_summary AS
 SELECT s.name AS study,
    s.status,
    m.name AS model,
    m.num_parameters,
    cl.name AS cluster,
    cl.num_nodes,
    s.sequence_length,
    s.global_batch_size,
    s.searcher,
    s.launcher,
    s.num_trials,
    s.max_trials,
    s.num_legal_points,
    ( SELECT max(sc.tokens_per_s) AS max
           FROM public.study_configs sc
          WHERE (sc.study_id = s.id)) AS best_tokens_per_s,
    s.created_at,
    s.finished_at,
    s.imported_from,
    s.id AS study_id
   FROM ((public.studies s
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)));
CREATE TABLE public.study_tags (
    study_id bigint NOT NULL,
    tag text NOT NULL
);
CREATE TABLE public.timeline (
    trial_id bigint NOT NULL,
    rank integer NOT NULL,
    "position" integer NOT NULL,
    op text NOT NULL,
    micro_batch integer NOT NULL,
    stage integer NOT NULL,
    start_s double precision NOT NULL,
    end_s double precision NOT NULL
);
CREATE VIEW public.trial_summary AS
 SELECT s.name AS study,
    t.number AS trial,
    t.status,
    t.purpose,
    c.label AS config,
    x.tokens_per_s,
    x.step_time_s,
    x.step_time_iqr_s,
    x.mfu,
    x.model_flops_per_s_per_device,
    x.hardware_flops_per_s_per_device,
    x.peak_memory_bytes,
    x.final_loss,
    x.loss_nonfinite,
    x.num_microbatches,
    x.tokens_per_step,
    x.startup_s,
    x.overhead_s,
    t.wall_s,
    f.kind AS failure,
    f.phase AS failure_phase,
    f.rank AS failure_rank,
    f.stage AS failure_stage,
    f.message AS failure_message,
    t.source,
    t.repeat,
    t.attempt,
    t.num_requeues,
    t.queued_at,
    t.started_at,
    t.finished_at,
    m.name AS model,
    cl.name AS cluster,
    cl.num_nodes,
    c.world_size,
    c.dp,
    c.tp,
    c.tp_layout,
    c.tp_depth,
    c.sequence_parallel,
    c.cp,
    c.ep,
    c.pp,
    c.virtual_stages,
    c.pipeline_schedule,
    c.stage_layers,
    c.micro_batch_size,
    c.zero_stage,
    c.zero_shard_degree,
    c.recompute,
    c.recompute_layers,
    c.dtype,
    c.reduce_dtype,
    c.compile,
    c.optimizer_offload,
    c.config_key,
    t.folder,
    t.id AS trial_id,
    t.study_id,
    t.config_id
   FROM ((((((public.trials t
     JOIN public.studies s ON ((s.id = t.study_id)))
     JOIN public.models m ON ((m.id = s.model_id)))
     JOIN public.clusters cl ON ((cl.id = s.cluster_id)))
     JOIN public.parallel_configs c ON ((c.id = t.config_id)))
     LEFT JOIN public.measurements x ON ((x.trial_id = t.id)))
     LEFT JOIN public.failure_reports f ON (((f.trial_id = t.id) AND (f."position" = 0))));
CREATE TABLE public.trial_tags (
    trial_id bigint NOT NULL,
    tag text NOT NULL
);
CREATE SEQUENCE public.trials_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.trials_id_seq OWNED BY public.trials.id;
CREATE TABLE public.untried_points (
    study_id bigint NOT NULL,
    config_id bigint NOT NULL,
    rule text NOT NULL,
    reason text NOT NULL
);
CREATE VIEW public.why_not AS
 SELECT s.name AS study,
    c.label AS config,
    'not tried'::text AS outcome,
    u.rule AS cause,
    u.reason,
    NULL::bigint AS trial,
    c.world_size,
    c.config_key,
    u.study_id,
    u.config_id
   FROM ((public.untried_points u
     JOIN public.studies s ON ((s.id = u.study_id)))
     JOIN public.parallel_configs c ON ((c.id = u.config_id)))
UNION ALL
 SELECT s.name AS study,
    c.label AS config,
    t.status AS outcome,
    COALESCE(f.kind, t.status) AS cause,
    COALESCE(f.message, ''::text) AS reason,
    t.number AS trial,
    c.world_size,
    c.config_key,
    t.study_id,
    t.config_id
   FROM (((public.trials t
     JOIN public.studies s ON ((s.id = t.study_id)))
     JOIN public.parallel_configs c ON ((c.id = t.config_id)))
     LEFT JOIN public.failure_reports f ON (((f.trial_id = t.id) AND (f."position" = 0))))
  WHERE ((t.status = ANY (ARRAY['infeasible'::text, 'failed'::text, 'pruned'::text, 'cancelled'::text])) AND (NOT (EXISTS ( SELECT 1
           FROM public.study_configs sc
          WHERE ((sc.study_id = t.study_id) AND (sc.config_id = t.config_id))))));
ALTER TABLE ONLY public.clusters ALTER COLUMN id SET DEFAULT nextval('public.clusters_id_seq'::regclass);
ALTER TABLE ONLY public.models ALTER COLUMN id SET DEFAULT nextval('public.models_id_seq'::regclass);
ALTER TABLE ONLY public.notes ALTER COLUMN id SET DEFAULT nextval('public.notes_id_seq'::regclass);
ALTER TABLE ONLY public.parallel_configs ALTER COLUMN id SET DEFAULT nextval('public.parallel_configs_id_seq'::regclass);
ALTER TABLE ONLY public.software ALTER COLUMN id SET DEFAULT nextval('public.software_id_seq'::regclass);
ALTER TABLE ONLY public.studies ALTER COLUMN id SET DEFAULT nextval('public.studies_id_seq'::regclass);
ALTER TABLE ONLY public.trials ALTER COLUMN id SET DEFAULT nextval('public.trials_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0002');
INSERT INTO public.breakdowns VALUES (1, 0, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (1, 0, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (1, 0, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (1, 1, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (1, 1, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (1, 1, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (2, 0, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (2, 0, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (2, 0, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (2, 1, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (2, 1, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (2, 1, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (3, 0, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (3, 0, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (3, 0, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (3, 1, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (3, 1, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (3, 1, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (4, 0, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (4, 0, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (4, 0, 'bubble', 0.05);
INSERT INTO public.breakdowns VALUES (4, 1, 'forward', 0.1);
INSERT INTO public.breakdowns VALUES (4, 1, 'backward', 0.2);
INSERT INTO public.breakdowns VALUES (4, 1, 'bubble', 0.05);
INSERT INTO public.clusters VALUES (1, 'two', 'cpu', NULL, 1, 2, NULL, NULL, NULL, NULL, '{"device_kind": "cpu", "devices_per_node": 2, "name": "two", "num_nodes": 1}', '0a1b5da1a5edc2ec86270169c6599f280537c21c2064109b4c2123e2c8cd6f36');
INSERT INTO public.collectives VALUES (1, 0, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (1, 1, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (2, 0, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (2, 1, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (3, 0, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (3, 1, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (4, 0, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.collectives VALUES (4, 1, 'all_reduce', 4, 1000000000, 0.01, NULL);
INSERT INTO public.failure_reports VALUES (5, 0, 'oom', 'backward', 'out of memory', 1, 1, NULL, '', NULL);
INSERT INTO public.measurements VALUES (1, 0.5, 0.01, 8192, 8046.13327159683, 8343.253154883521, 4096, 3, 4, 1000000000000, 4, 6e+15, 8e+15, 1000000000000, 1300000000000, 0.41, 3221225472, NULL, 'nan', 1.5, 0.5, 1);
INSERT INTO public.measurements VALUES (2, 0.6, 0.012, 6826.666666666667, 6705.111059664025, 6952.7109624029345, 4096, 3, 4, 1000000000000, 4, 6e+15, 8e+15, 1000000000000, 1300000000000, 0.41, 3221225472, NULL, 'nan', 1.5, 0.5, 1);
INSERT INTO public.measurements VALUES (3, 0.7, 0.013999999999999999, 5851.428571428572, 5747.238051140594, 5959.4665392025145, 4096, 3, 4, 1000000000000, 4, 6e+15, 8e+15, 1000000000000, 1300000000000, 0.41, 3221225472, NULL, 'nan', 1.5, 0.5, 1);
INSERT INTO public.measurements VALUES (4, 0.8, 0.016, 5120, 5028.8332947480185, 5214.5332218022, 4096, 3, 4, 1000000000000, 4, 6e+15, 8e+15, 1000000000000, 1300000000000, 0.41, 3221225472, NULL, 'nan', 1.5, 0.5, 1);
INSERT INTO public.models VALUES (1, 'tiny', 'gpt2', 1000000000000, 4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"family": "gpt2", "name": "tiny", "num_layers": 4, "num_parameters": 1000000000000}', 'af6c9dd7863156f7d9dfacfc8a411ab4ce4d7eec665d702999387c59a09c50de');
INSERT INTO public.parallel_configs VALUES (1, 'dp2', 'tp1 pp1 dp2 mbs1', 2, 2, 1, '1d', 1, false, 1, 1, 1, 1, '1f1b', NULL, 1, 0, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.parallel_configs VALUES (2, 'pp2', 'tp1 pp2 dp1 mbs1', 2, 1, 1, '1d', 1, false, 1, 1, 2, 1, '1f1b', NULL, 1, 0, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.parallel_configs VALUES (3, 'tp2-zero_stage1', 'tp2 pp1 dp1 mbs1 zero1', 2, 1, 2, '1d', 1, false, 1, 1, 1, 1, '1f1b', NULL, 1, 1, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.parallel_configs VALUES (4, 'mbs16', 'tp1 pp1 dp1 mbs16', 1, 1, 1, '1d', 1, false, 1, 1, 1, 1, '1f1b', NULL, 16, 0, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.parallel_configs VALUES (5, 'ep2', 'tp1 pp1 dp2 mbs1 ep2', 2, 2, 1, '1d', 1, false, 1, 2, 1, 1, '1f1b', NULL, 1, 0, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.parallel_configs VALUES (6, 'tp4', 'tp4 pp1 dp1 mbs1', 4, 1, 4, '1d', 1, false, 1, 1, 1, 1, '1f1b', NULL, 1, 0, 0, 'none', NULL, 'fp32', 'fp32', false, false);
INSERT INTO public.predictions VALUES (1, 'pp2', 'analytic', 0.45, 0.3, 0.6, 3000000000, 0.9);
INSERT INTO public.provenance VALUES (1, 'git', 'commit', 'abc', 'text');
INSERT INTO public.provenance VALUES (1, 'git', 'is_dirty', 'true', 'json');
INSERT INTO public.provenance VALUES (1, 'host', '', 'node0', 'text');
INSERT INTO public.rank_coordinates VALUES (1, 0, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (1, 0, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (1, 0, 'pp', 0);
INSERT INTO public.rank_coordinates VALUES (1, 1, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (1, 1, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (1, 1, 'pp', 1);
INSERT INTO public.rank_coordinates VALUES (2, 0, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (2, 0, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (2, 0, 'pp', 0);
INSERT INTO public.rank_coordinates VALUES (2, 1, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (2, 1, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (2, 1, 'pp', 1);
INSERT INTO public.rank_coordinates VALUES (3, 0, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (3, 0, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (3, 0, 'pp', 0);
INSERT INTO public.rank_coordinates VALUES (3, 1, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (3, 1, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (3, 1, 'pp', 1);
INSERT INTO public.rank_coordinates VALUES (4, 0, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (4, 0, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (4, 0, 'pp', 0);
INSERT INTO public.rank_coordinates VALUES (4, 1, 'dp', 0);
INSERT INTO public.rank_coordinates VALUES (4, 1, 'tp', 0);
INSERT INTO public.rank_coordinates VALUES (4, 1, 'pp', 1);
INSERT INTO public.rank_stages VALUES (1, 0, 0);
INSERT INTO public.rank_stages VALUES (1, 1, 1);
INSERT INTO public.rank_stages VALUES (2, 0, 0);
INSERT INTO public.rank_stages VALUES (2, 1, 1);
INSERT INTO public.rank_stages VALUES (3, 0, 0);
INSERT INTO public.rank_stages VALUES (3, 1, 1);
INSERT INTO public.rank_stages VALUES (4, 0, 0);
INSERT INTO public.rank_stages VALUES (4, 1, 1);
INSERT INTO public.ranks VALUES (1, 0, 'node0', 'cpu', '0,1', 500000000000, 3221225472, 1073741824);
INSERT INTO public.ranks VALUES (1, 1, 'node0', 'cpu', '2,3', 500000000000, 2147483648, 1073741824);
INSERT INTO public.ranks VALUES (2, 0, 'node0', 'cpu', '0,1', 500000000000, 3221225472, 1073741824);
INSERT INTO public.ranks VALUES (2, 1, 'node0', 'cpu', '2,3', 500000000000, 2147483648, 1073741824);
INSERT INTO public.ranks VALUES (3, 0, 'node0', 'cpu', '0,1', 500000000000, 3221225472, 1073741824);
INSERT INTO public.ranks VALUES (3, 1, 'node0', 'cpu', '2,3', 500000000000, 2147483648, 1073741824);
INSERT INTO public.ranks VALUES (4, 0, 'node0', 'cpu', '0,1', 500000000000, 3221225472, 1073741824);
INSERT INTO public.ranks VALUES (4, 1, 'node0', 'cpu', '2,3', 500000000000, 2147483648, 1073741824);
INSERT INTO public.software VALUES (1, '570b674c0a98509f13147902472aca25ac8d4f1184ec7d429540cf895daddd0e');
INSERT INTO public.software_versions VALUES (1, 'python', '3.11.4');
INSERT INTO public.software_versions VALUES (1, 'torch', '2.13.0');
INSERT INTO public.steps VALUES (1, 0, true, 0.5, 9, NULL, 4096);
INSERT INTO public.steps VALUES (1, 1, true, 0.5, 8, NULL, 4096);
INSERT INTO public.steps VALUES (1, 2, false, 0.5, 7, NULL, 4096);
INSERT INTO public.steps VALUES (1, 3, false, 0.5, 6, NULL, 4096);
INSERT INTO public.steps VALUES (1, 4, false, 0.5, 5, NULL, 4096);
INSERT INTO public.steps VALUES (2, 0, true, 0.6, 9, NULL, 4096);
INSERT INTO public.steps VALUES (2, 1, true, 0.6, 8, NULL, 4096);
INSERT INTO public.steps VALUES (2, 2, false, 0.6, 7, NULL, 4096);
INSERT INTO public.steps VALUES (2, 3, false, 0.6, 6, NULL, 4096);
INSERT INTO public.steps VALUES (2, 4, false, 0.6, 5, NULL, 4096);
INSERT INTO public.steps VALUES (3, 0, true, 0.7, 9, NULL, 4096);
INSERT INTO public.steps VALUES (3, 1, true, 0.7, 8, NULL, 4096);
INSERT INTO public.steps VALUES (3, 2, false, 0.7, 7, NULL, 4096);
INSERT INTO public.steps VALUES (3, 3, false, 0.7, 6, NULL, 4096);
INSERT INTO public.steps VALUES (3, 4, false, 0.7, 5, NULL, 4096);
INSERT INTO public.steps VALUES (4, 0, true, 0.8, 9, NULL, 4096);
INSERT INTO public.steps VALUES (4, 1, true, 0.8, 8, NULL, 4096);
INSERT INTO public.steps VALUES (4, 2, false, 0.8, 7, NULL, 4096);
INSERT INTO public.steps VALUES (4, 3, false, 0.8, 6, NULL, 4096);
INSERT INTO public.steps VALUES (4, 4, false, 0.8, 5, NULL, 4096);
INSERT INTO public.studies VALUES (1, '2fc91760-60f5-4a3b-8fe6-64b240a9b1ab', 'golden', 'running', 'tokens_per_s', 'maximize', 'cbo', 'local', 0, NULL, 12, 1, 1, 128, 32, 'fp32', NULL, NULL, NULL, '{"dtype": "fp32", "global_batch_size": 32, "sequence_length": 128}', '[model]
name = ''tiny''
', 'c0ffee', '2026-01-02 03:04:05.678901+00', NULL, 6, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.study_configs VALUES (1, 3, 1, 5851.428571428572, 5747.238051140594, 5959.4665392025145, 0.7, 3221225472, 0.41, 3, false);
INSERT INTO public.study_configs VALUES (1, 1, 1, 6826.666666666667, 6705.111059664025, 6952.7109624029345, 0.6, 3221225472, 0.41, 2, true);
INSERT INTO public.study_configs VALUES (1, 2, 2, 6656, 4950.797855033017, 8361.202144966983, 0.65, 3221225472, 0.41, 1, true);
INSERT INTO public.timeline VALUES (1, 0, 0, 'F', 0, 0, 0, 0.1);
INSERT INTO public.timeline VALUES (1, 0, 1, 'B', 0, 0, 0.1, 0.3);
INSERT INTO public.timeline VALUES (1, 1, 0, 'F', 0, 1, 0, 0.1);
INSERT INTO public.timeline VALUES (1, 1, 1, 'B', 0, 1, 0.1, 0.3);
INSERT INTO public.timeline VALUES (2, 0, 0, 'F', 0, 0, 0, 0.1);
INSERT INTO public.timeline VALUES (2, 0, 1, 'B', 0, 0, 0.1, 0.3);
INSERT INTO public.timeline VALUES (2, 1, 0, 'F', 0, 1, 0, 0.1);
INSERT INTO public.timeline VALUES (2, 1, 1, 'B', 0, 1, 0.1, 0.3);
INSERT INTO public.timeline VALUES (3, 0, 0, 'F', 0, 0, 0, 0.1);
INSERT INTO public.timeline VALUES (3, 0, 1, 'B', 0, 0, 0.1, 0.3);
INSERT INTO public.timeline VALUES (3, 1, 0, 'F', 0, 1, 0, 0.1);
INSERT INTO public.timeline VALUES (3, 1, 1, 'B', 0, 1, 0.1, 0.3);
INSERT INTO public.timeline VALUES (4, 0, 0, 'F', 0, 0, 0, 0.1);
INSERT INTO public.timeline VALUES (4, 0, 1, 'B', 0, 0, 0.1, 0.3);
INSERT INTO public.timeline VALUES (4, 1, 0, 'F', 0, 1, 0, 0.1);
INSERT INTO public.timeline VALUES (4, 1, 1, 'B', 0, 1, 0.1, 0.3);
INSERT INTO public.trials VALUES (1, 1, 1, 2, 'completed', 'search', 0, 1, 0, 0, 3, 'cbo', '2026-01-02 03:04:05.678901+00', '2026-01-02 03:04:06.678901+00', '2026-01-02 03:04:07.678901+00', 1, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.trials VALUES (2, 1, 2, 1, 'completed', 'search', 0, 1, 0, 0, 3, 'cbo', '2026-01-02 03:04:06.678901+00', '2026-01-02 03:04:07.678901+00', '2026-01-02 03:04:08.678901+00', 1, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.trials VALUES (3, 1, 3, 3, 'completed', 'search', 0, 1, 0, 0, 3, 'cbo', '2026-01-02 03:04:07.678901+00', '2026-01-02 03:04:08.678901+00', '2026-01-02 03:04:09.678901+00', 1, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.trials VALUES (4, 1, 4, 2, 'completed', 'search', 1, 1, 0, 0, 3, 'cbo', '2026-01-02 03:04:08.678901+00', '2026-01-02 03:04:09.678901+00', '2026-01-02 03:04:10.678901+00', 1, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.trials VALUES (5, 1, 5, 4, 'infeasible', 'search', 0, 1, 0, 0, 0, '', '2026-12-01 05:57:48.829704+00', '2026-12-01 05:57:48.835269+00', '2026-12-01 05:57:48.840516+00', 0.005247, 0, 'trials/5', 'node0', 7, '2026-01-02 03:04:05.678901+00', '2026-12-01 05:57:48.834553+00');
INSERT INTO public.trials VALUES (6, 1, 6, 5, 'queued', 'search', 0, 1, 0, 0, 0, '', '2026-12-01 05:57:48.857756+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.untried_points VALUES (1, 6, 'devices', '4 > 2');
SELECT pg_catalog.setval('public.clusters_id_seq', 1, true);
SELECT pg_catalog.setval('public.models_id_seq', 1, true);
SELECT pg_catalog.setval('public.notes_id_seq', 1, false);
SELECT pg_catalog.setval('public.parallel_configs_id_seq', 6, true);
SELECT pg_catalog.setval('public.software_id_seq', 1, true);
SELECT pg_catalog.setval('public.studies_id_seq', 1, true);
SELECT pg_catalog.setval('public.trials_id_seq', 6, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT pk_alembic_version PRIMARY KEY (version_num);
ALTER TABLE ONLY public.breakdowns
    ADD CONSTRAINT pk_breakdowns PRIMARY KEY (trial_id, rank, part);
ALTER TABLE ONLY public.clusters
    ADD CONSTRAINT pk_clusters PRIMARY KEY (id);
ALTER TABLE ONLY public.collectives
    ADD CONSTRAINT pk_collectives PRIMARY KEY (trial_id, rank, collective);
ALTER TABLE ONLY public.failure_reports
    ADD CONSTRAINT pk_failure_reports PRIMARY KEY (trial_id, "position");
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT pk_measurements PRIMARY KEY (trial_id);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT pk_models PRIMARY KEY (id);
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT pk_notes PRIMARY KEY (id);
ALTER TABLE ONLY public.parallel_configs
    ADD CONSTRAINT pk_parallel_configs PRIMARY KEY (id);
ALTER TABLE ONLY public.predictions
    ADD CONSTRAINT pk_predictions PRIMARY KEY (study_id, config_key, model_name);
ALTER TABLE ONLY public.provenance
    ADD CONSTRAINT pk_provenance PRIMARY KEY (study_id, topic, name);
ALTER TABLE ONLY public.rank_coordinates
    ADD CONSTRAINT pk_rank_coordinates PRIMARY KEY (trial_id, rank, axis);
ALTER TABLE ONLY public.rank_stages
    ADD CONSTRAINT pk_rank_stages PRIMARY KEY (trial_id, rank, stage);
ALTER TABLE ONLY public.ranks
    ADD CONSTRAINT pk_ranks PRIMARY KEY (trial_id, rank);
ALTER TABLE ONLY public.software
    ADD CONSTRAINT pk_software PRIMARY KEY (id);
ALTER TABLE ONLY public.software_versions
    ADD CONSTRAINT pk_software_versions PRIMARY KEY (software_id, package);
ALTER TABLE ONLY public.steps
    ADD CONSTRAINT pk_steps PRIMARY KEY (trial_id, step);
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT pk_studies PRIMARY KEY (id);
ALTER TABLE ONLY public.study_configs
    ADD CONSTRAINT pk_study_configs PRIMARY KEY (study_id, config_id);
ALTER TABLE ONLY public.study_tags
    ADD CONSTRAINT pk_study_tags PRIMARY KEY (study_id, tag);
ALTER TABLE ONLY public.timeline
    ADD CONSTRAINT pk_timeline PRIMARY KEY (trial_id, rank, "position");
ALTER TABLE ONLY public.trial_tags
    ADD CONSTRAINT pk_trial_tags PRIMARY KEY (trial_id, tag);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT pk_trials PRIMARY KEY (id);
ALTER TABLE ONLY public.untried_points
    ADD CONSTRAINT pk_untried_points PRIMARY KEY (study_id, config_id, rule);
ALTER TABLE ONLY public.clusters
    ADD CONSTRAINT uq_clusters_spec_hash UNIQUE (spec_hash);
ALTER TABLE ONLY public.models
    ADD CONSTRAINT uq_models_spec_hash UNIQUE (spec_hash);
ALTER TABLE ONLY public.parallel_configs
    ADD CONSTRAINT uq_parallel_configs_config_key UNIQUE (config_key);
ALTER TABLE ONLY public.software
    ADD CONSTRAINT uq_software_versions_hash UNIQUE (versions_hash);
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT uq_studies_name UNIQUE (name);
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT uq_studies_uuid UNIQUE (uuid);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT uq_trials_study_id_config_id_repeat_attempt UNIQUE (study_id, config_id, repeat, attempt);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT uq_trials_study_id_number UNIQUE (study_id, number);
CREATE INDEX ix_notes_study_id ON public.notes USING btree (study_id);
CREATE INDEX ix_notes_trial_id ON public.notes USING btree (trial_id);
CREATE INDEX ix_studies_cluster_id ON public.studies USING btree (cluster_id);
CREATE INDEX ix_studies_model_id ON public.studies USING btree (model_id);
CREATE INDEX ix_study_configs_config_id ON public.study_configs USING btree (config_id);
CREATE INDEX ix_study_configs_first ON public.study_configs USING btree (study_id) WHERE is_first;
CREATE INDEX ix_study_configs_study_id_tokens_per_s ON public.study_configs USING btree (study_id, tokens_per_s);
CREATE INDEX ix_study_configs_study_id_tokens_per_s_high ON public.study_configs USING btree (study_id, tokens_per_s_high);
CREATE INDEX ix_study_configs_study_id_tokens_per_s_low ON public.study_configs USING btree (study_id, tokens_per_s_low);
CREATE INDEX ix_study_configs_tokens_per_s ON public.study_configs USING btree (tokens_per_s);
CREATE INDEX ix_trials_config_id ON public.trials USING btree (config_id);
CREATE INDEX ix_trials_open ON public.trials USING btree (study_id, status) WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]));
ALTER TABLE ONLY public.breakdowns
    ADD CONSTRAINT fk_breakdowns_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.collectives
    ADD CONSTRAINT fk_collectives_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.failure_reports
    ADD CONSTRAINT fk_failure_reports_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT fk_measurements_software_id FOREIGN KEY (software_id) REFERENCES public.software(id);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT fk_measurements_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT fk_notes_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT fk_notes_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.predictions
    ADD CONSTRAINT fk_predictions_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.provenance
    ADD CONSTRAINT fk_provenance_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.rank_coordinates
    ADD CONSTRAINT fk_rank_coordinates_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.rank_stages
    ADD CONSTRAINT fk_rank_stages_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ranks
    ADD CONSTRAINT fk_ranks_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.software_versions
    ADD CONSTRAINT fk_software_versions_software_id FOREIGN KEY (software_id) REFERENCES public.software(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.steps
    ADD CONSTRAINT fk_steps_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT fk_studies_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.clusters(id);
ALTER TABLE ONLY public.studies
    ADD CONSTRAINT fk_studies_model_id FOREIGN KEY (model_id) REFERENCES public.models(id);
ALTER TABLE ONLY public.study_configs
    ADD CONSTRAINT fk_study_configs_config_id FOREIGN KEY (config_id) REFERENCES public.parallel_configs(id);
ALTER TABLE ONLY public.study_configs
    ADD CONSTRAINT fk_study_configs_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.study_tags
    ADD CONSTRAINT fk_study_tags_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.timeline
    ADD CONSTRAINT fk_timeline_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.trial_tags
    ADD CONSTRAINT fk_trial_tags_trial_id FOREIGN KEY (trial_id) REFERENCES public.trials(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT fk_trials_config_id FOREIGN KEY (config_id) REFERENCES public.parallel_configs(id);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT fk_trials_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.untried_points
    ADD CONSTRAINT fk_untried_points_config_id FOREIGN KEY (config_id) REFERENCES public.parallel_configs(id);
ALTER TABLE ONLY public.untried_points
    ADD CONSTRAINT fk_untried_points_study_id FOREIGN KEY (study_id) REFERENCES public.studies(id) ON DELETE CASCADE;
