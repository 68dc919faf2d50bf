"""Starts the ranks of oracle products from a warm fork server and judges what they report."""

import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from search_spaces.model_spec import ModelSpec
from search_spaces.training_spec import TrainingSpec
from trainer.oracle.products import Product
from trainer.oracle.rank import check_rank, compute_reference

# relative bounds of loss, gradients and weights after three SGD steps, by the coarsest type used
BOUNDS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1e-1}
_ROUTED_BOUND = 0.5


@dataclass(frozen=True)
class Verdict:
    """How far a product was from the reference, over all ranks and steps, relative."""

    name: str
    num_ranks: int
    bound: float
    loss: float
    gradient: float
    weight: float
    where: str
    error: str
    seconds: float

    @property
    def is_equal(self) -> bool:
        """Whether every difference is within the bound, and nothing failed."""
        differences = (self.loss, self.gradient, self.weight)
        return not self.error and all(value <= self.bound for value in differences)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "is_equal": self.is_equal}


def bound_of(product: Product) -> float:
    """The bound that the product's precisions allow.

    In low precision a mixture of experts may send a token to another expert than the reference
    does, which changes those experts' gradients by more than rounding.
    """
    bound = max(BOUNDS[product.config.dtype], BOUNDS[product.config.reduce_dtype])
    is_routed = product.model.num_experts > 0 and product.config.dtype != "fp32"
    return _ROUTED_BOUND if is_routed else bound


class OracleRunner:
    """Runs products one after the other; references are computed once per model and recipe."""

    def __init__(self, folder: Path, timeout_s: float = 240.0) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._context = _warm_context()

    def check(self, product: Product, training: TrainingSpec | None = None) -> Verdict:
        """Run one product on real ranks and compare every rank's part with the reference."""
        start = time.monotonic()
        model, training = product.model, training or product.training
        reference = self._reference(model, training)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            texts = (model, training, product.config)
            arguments = [text.model_dump_json() for text in texts] + [folder, str(reference)]
            ranks = [
                self._context.Process(target=check_rank, args=(*arguments, rank))
                for rank in range(product.config.world_size)
            ]
            error = _run(ranks, self._timeout_s)
            parts = [_read(Path(folder) / f"verdict.{rank}.json") for rank in range(len(ranks))]
        return _judge(product, parts, error, time.monotonic() - start)

    def _reference(self, model: ModelSpec, training: TrainingSpec) -> Path:
        path = self._folder / f"reference-{model.name}-{training.learning_rate}.pt"
        if not path.exists():
            process = self._context.Process(
                target=compute_reference, args=(model, training, str(path))
            )
            error = _run([process], self._timeout_s)
            if error or not path.exists():
                raise RuntimeError(f"the reference of {model.name} could not be computed: {error}")
        return path


def _warm_context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.oracle.rank"])
    return context


def _run(ranks: Sequence[ForkServerProcess], timeout_s: float) -> str:
    """Start the processes and wait; ends those that hang. An empty text when all ended well."""
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + timeout_s
    for rank in ranks:
        rank.join(max(0.0, deadline - time.monotonic()))
    late = [place for place, rank in enumerate(ranks) if rank.is_alive()]
    for rank in ranks:
        if rank.is_alive():
            rank.kill()
        rank.join()
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.close()
    if late:
        return f"ranks {late} did not end within {timeout_s:.0f} s"
    return f"ranks ended with codes {codes}" if any(codes) else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"error": "no verdict"}
    return found


def _judge(product: Product, parts: list[dict[str, Any]], error: str, seconds: float) -> Verdict:
    failed = sorted(
        (part for part in parts if part.get("error")),
        key=lambda part: "closed by peer" in str(part["error"]),  # a cause before its consequences
    )
    texts = [str(part[key]) for part in failed[:1] for key in ("error", "traceback") if key in part]
    values = {
        key: max((part.get(key, float("nan")) for part in parts), key=_order)
        for key in ("loss", "gradient", "weight")
    }
    worst = max(parts, key=lambda part: _order(part.get("gradient", float("nan"))))
    return Verdict(
        name=product.name, num_ranks=len(parts), bound=bound_of(product), **values,
        where=str(worst.get("where", "")),
        error="\n".join([*filter(None, [error]), *texts]),
        seconds=round(seconds, 2),
    )  # fmt: skip


def _order(value: float) -> float:
    """Sort what is no number last."""
    return float("inf") if math.isnan(value) else value
