"""The list of configurations that the oracle checks, generated from the knobs of the space.

First every value of every knob, in the smallest configuration that the rules allow; then every
schedule with every ZeRO stage under tensor, pipeline and data parallelism at once, and with every
kind of recomputation; then products that together contain every legal pair of values of two knobs
(a greedy covering array), and every legal value of the other knobs with each mesh of the 2D and
2.5D layouts. A new value of a knob thus enters the list by itself. Whether a combination is legal
is asked of the space. What computes in low precision is there a second time in fp32, where the
bound is tight.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, cycle
from itertools import product as product_of
from typing import Any, get_args

from search_spaces.cluster_spec import ClusterSpec
from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import KNOBS, ParallelConfig
from search_spaces.space import SearchSpace
from search_spaces.training_spec import TrainingSpec

MAX_RANKS = 8
TRAINING = TrainingSpec(sequence_length=16, global_batch_size=8, optimizer="sgd", learning_rate=0.1)
_SHAPE: dict[str, Any] = {
    "num_layers": 8, "hidden_size": 32, "num_heads": 4, "head_dim": 8, "ffn_size": 64,
    "vocab_size": 101, "max_positions": 32,
}  # fmt: skip
MODELS: dict[str, ModelSpec] = {
    "gpt2": ModelSpec(
        name="oracle-gpt2", family="gpt2", num_kv_heads=4, tied_embeddings=True, **_SHAPE
    ),
    # two KV heads: fewer than ranks under tp=4
    "llama": ModelSpec(
        name="oracle-llama", family="llama", num_kv_heads=2, qkv_bias=True, **_SHAPE
    ),
    "mixtral": ModelSpec(
        name="oracle-mixtral", family="mixtral", num_kv_heads=4, num_experts=4,
        experts_per_token=2, **_SHAPE,
    ),
}  # fmt: skip
# nine ranks make a mesh of side 3, which divides neither the models nor the batch above
_BY_THREE: dict[str, Any] = {
    **_SHAPE, "num_layers": 2, "hidden_size": 48, "num_heads": 6, "ffn_size": 96,
}  # fmt: skip
MESH_MODELS: dict[str, ModelSpec] = {
    "gpt2-by-3": ModelSpec(
        name="oracle-gpt2-by-3", family="gpt2", num_kv_heads=6, tied_embeddings=True, **_BY_THREE
    ),
    "llama-by-3": ModelSpec(
        name="oracle-llama-by-3", family="llama", num_kv_heads=3, qkv_bias=True, **_BY_THREE
    ),
}
MESH_TRAINING = TRAINING.model_copy(update={"global_batch_size": 6})
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "dp": (1, 2, 4), "tp": (1, 2, 4, 8), "tp_depth": (1, 2), "cp": (1, 2), "ep": (1, 2),
    "pp": (1, 2, 4), "virtual_stages": (1, 2), "micro_batch_size": (1, 2),
    "zero_stage": (0, 1, 2, 3), "zero_shard_degree": (0, 2), "recompute_layers": (None, 1),
    "stage_layers": (None, (5, 3), (3, 2, 2, 1)),
}  # fmt: skip
# knobs that are legal together alone, so that chance would hardly draw them
_MESHES: tuple[dict[str, Any], ...] = (
    {"tp_layout": "2d", "tp": 4, "micro_batch_size": 2},
    {"tp_layout": "2.5d", "tp": 8, "tp_depth": 2, "micro_batch_size": 4},
)
_SLOW_KNOBS = ("compile",)  # compiled by its own product alone: minutes of compilation otherwise
_NUM_TRIES = 60


@dataclass(frozen=True)
class Product:
    """One configuration of one model family."""

    family: str
    config: ParallelConfig

    @property
    def name(self) -> str:
        """Family and changed knobs, as `--only` takes them."""
        knobs = self.config.canonical()
        return ",".join([f"family={self.family}", *(f"{k}={_text(v)}" for k, v in knobs.items())])

    @property
    def model(self) -> ModelSpec:
        """The model of the family."""
        return (MODELS | MESH_MODELS)[self.family]

    @property
    def training(self) -> TrainingSpec:
        """The recipe of the family."""
        return MESH_TRAINING if self.family in MESH_MODELS else TRAINING


def _text(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def knob_values(knob: str) -> tuple[Any, ...]:
    """Values that the oracle tries: all of a named set, both of a switch, small numbers."""
    annotation = ParallelConfig.model_fields[knob].annotation
    named = (False, True) if annotation is bool else get_args(annotation)
    return _NUMBERS.get(knob, named)


@lru_cache(maxsize=8)
def _space(family: str) -> SearchSpace:
    cluster = ClusterSpec(devices_per_node=MAX_RANKS, memory_bytes=2**40)
    return SearchSpace(MODELS[family], TRAINING, cluster, use_all_devices=False)


def is_legal(product: Product) -> bool:
    """Whether the rules of the space allow the configuration on the oracle's ranks."""
    return product.config.world_size <= MAX_RANKS and _space(product.family).is_legal(
        product.config
    )


@lru_cache(maxsize=1)
def all_products() -> tuple[Product, ...]:
    """The whole list, always the same."""
    found = dict.fromkeys([*_singles(), *_cubes(), *_recomputing(), *_compiled()])
    found.update(dict.fromkeys(_pairwise(list(found))))
    for mesh in _MESHES:
        found.update(dict.fromkeys(_with_mesh(mesh)))
    twins = [
        Product(p.family, p.config.with_knobs(dtype="fp32", reduce_dtype="fp32")) for p in found
    ]
    return tuple(found | dict.fromkeys([*twins, *nine_rank_products()]))


def nine_rank_products() -> list[Product]:
    """The 2D layout on a mesh of side 3, more ranks than the rest of the list has."""
    mesh = ParallelConfig(tp=9, tp_layout="2d", micro_batch_size=3)
    return [
        Product("gpt2-by-3", mesh),
        Product("llama-by-3", mesh.with_knobs(recompute="full")),
    ]


def quick_products(count: int = 8) -> list[Product]:
    """A few that together touch as many values as they can, on at most four ranks.

    All but one are in fp32, where the bound is tight.
    """
    pool = [p for p in all_products() if 2 <= p.config.world_size <= 4 and not p.config.compile]
    exact = [p for p in pool if p.config.dtype == p.config.reduce_dtype == "fp32"]
    coarse = [p for p in pool if p.config.dtype != "fp32" and p.config.reduce_dtype != "fp32"]
    chosen: list[Product] = []
    seen: set[tuple[str, Any]] = set()
    while len(chosen) < count:
        candidates = [p for p in (exact if chosen else coarse) if p not in chosen]
        if not candidates:
            break
        best = max(candidates, key=lambda p: len(_settings(p) - seen))
        seen |= _settings(best)
        chosen.append(best)
    return chosen


def parse_product(text: str) -> Product:
    """A product from `tp=2,pp=2,family=llama`; values as the configuration takes them.

    Raises:
        ValueError: an unknown knob or family, or a value of the wrong kind.
    """
    knobs: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        if name != "family" and name not in KNOBS:
            raise ValueError(f"unknown knob {name!r}; known: family, {', '.join(KNOBS)}")
        knobs[name] = _parse_value(value)
    family = knobs.pop("family", "mixtral" if knobs.get("ep", 1) > 1 else "gpt2")
    if family not in MODELS | MESH_MODELS:
        raise ValueError(f"unknown family {family!r}; one of {', '.join([*MODELS, *MESH_MODELS])}")
    return Product(family, ParallelConfig(**knobs))


def _parse_value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "/" in text:
        return tuple(int(part) for part in text.split("/"))
    return int(text) if text.isdigit() else text


# -------------------------------------------------------------------- generation
def _singles() -> Iterator[Product]:
    """Every value of every knob in the smallest legal configuration that holds it."""
    rng = random.Random(0)
    for knob in KNOBS:
        for value in knob_values(knob):
            candidates = [_random(rng, {knob: value}, spread=0.25) for _ in range(_NUM_TRIES)]
            legal = [product for product in candidates if product is not None]
            if legal and value != getattr(ParallelConfig(), knob):
                yield min(legal, key=lambda p: (len(p.config.canonical()), p.config.world_size))


def _cubes() -> Iterator[Product]:
    """Every pipeline schedule with every ZeRO stage on two ranks of each of the main axes."""
    families = cycle(("gpt2", "llama"))
    for schedule, stage in product_of(knob_values("pipeline_schedule"), knob_values("zero_stage")):
        for virtual_stages in knob_values("virtual_stages"):
            config = ParallelConfig(
                tp=2, pp=2, dp=2, pipeline_schedule=schedule, zero_stage=stage,
                virtual_stages=virtual_stages,
            )  # fmt: skip
            product = Product(next(families), config)
            if is_legal(product):
                yield product


def _recomputing() -> Iterator[Product]:
    """Every pipeline schedule with every kind of recomputation."""
    families = cycle(("llama", "gpt2"))
    for schedule, recompute in product_of(
        knob_values("pipeline_schedule"), knob_values("recompute")
    ):
        for virtual_stages in knob_values("virtual_stages"):
            config = ParallelConfig(
                pp=2, pipeline_schedule=schedule, recompute=recompute,
                virtual_stages=virtual_stages,
            )  # fmt: skip
            product = Product(next(families), config)
            if is_legal(product):
                yield product


def _compiled() -> Iterator[Product]:
    """Compiled layers under each main form; few, since every one compiles for a while."""
    forms: tuple[dict[str, Any], ...] = (
        {"tp": 2, "sequence_parallel": True},
        {"dp": 2, "zero_stage": 3, "recompute": "full"},
        {"pp": 2, "recompute": "selective"},
    )
    for knobs in forms:
        product = Product("gpt2", ParallelConfig(compile=True, **knobs))
        if is_legal(product):
            yield product


def _pairwise(found: list[Product]) -> Iterator[Product]:
    """Products until every pair of values that any try made legal is covered."""
    rng = random.Random(1)
    settings = [(k, v) for k in ("family", *KNOBS) if k not in _SLOW_KNOBS for v in _values(k)]
    pairs = {
        frozenset(pair) for pair in combinations(settings, 2) if pair[0][0] != pair[1][0]
    }  # fmt: skip
    for product in found:
        pairs -= _pairs(product)
    for pair in sorted(pairs, key=lambda pair: sorted(map(str, pair))):
        if pair not in pairs:
            continue
        tries = [_random(rng, dict(pair), spread=0.5) for _ in range(_NUM_TRIES)]
        legal = [product for product in tries if product is not None]
        if legal:
            best = max(legal, key=lambda product: len(_pairs(product) & pairs))
            pairs -= _pairs(best)
            yield best


def _with_mesh(mesh: dict[str, Any]) -> Iterator[Product]:
    """Products on one mesh until every value of the other knobs that is legal there is covered."""
    rng = random.Random(2)
    free = [k for k in ("family", *KNOBS) if k not in mesh and k not in _SLOW_KNOBS]
    wanted = {(knob, value) for knob in free for value in _values(knob)}
    for knob, value in sorted(wanted, key=str):
        if (knob, value) not in wanted:
            continue
        tries = [_random(rng, {**mesh, knob: value}, spread=0.3) for _ in range(10 * _NUM_TRIES)]
        legal = [product for product in tries if product is not None]
        if legal:
            best = max(legal, key=lambda product: len(_settings(product) & wanted))
            wanted -= _settings(best)
            yield best


def _values(knob: str) -> tuple[Any, ...]:
    return tuple(MODELS) if knob == "family" else knob_values(knob)


def _random(rng: random.Random, fixed: dict[str, Any], spread: float) -> Product | None:
    """A random configuration with some knobs given; none if the rules refuse it."""
    chosen = dict(fixed)
    for knob in ("family", *KNOBS):
        if knob not in chosen and knob not in _SLOW_KNOBS and rng.random() < spread:
            chosen[knob] = rng.choice(_values(knob))
    family = chosen.pop("family", None) or rng.choice(tuple(MODELS))
    product = Product(family, ParallelConfig(**chosen))
    return product if is_legal(product) else None


def _settings(product: Product) -> set[tuple[str, Any]]:
    knobs = {(k, getattr(product.config, k)) for k in KNOBS if k not in _SLOW_KNOBS}
    return knobs | {("family", product.family)}


def _pairs(product: Product) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(pair) for pair in combinations(_settings(product), 2)}
