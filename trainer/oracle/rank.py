"""What one rank of the oracle runs: three steps, and how far they are from the reference."""

import json
import os
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from search_spaces.training_spec import TrainingSpec
from trainer.data import global_batch
from trainer.engine import Engine
from trainer.mesh import ParallelMesh
from trainer.model.parameters import cut
from trainer.reference import ReferenceModel

NUM_STEPS = 3
SEED = 7
Snapshot = dict[str, Tensor]


def compute_reference(model: ModelSpec, training: TrainingSpec, path: str) -> None:
    """Loss, gradients and then weights of every step of plain SGD, into a file."""
    torch.set_num_threads(1)
    reference = ReferenceModel(model, SEED)
    steps = []
    for step in range(NUM_STEPS):
        loss = reference.loss(*global_batch(model, training, SEED, step))
        gradients = torch.autograd.grad(loss, list(reference.weights.values()))
        with torch.no_grad():
            for weight, gradient in zip(reference.weights.values(), gradients, strict=True):
                weight -= training.learning_rate * gradient
        weights = {name: w.detach().clone() for name, w in reference.weights.items()}
        named = dict(zip(weights, gradients, strict=True))
        steps.append({"loss": loss.item(), "gradients": named, "weights": weights})
    part = f"{path}.{os.getpid()}"
    torch.save(steps, part)
    Path(part).rename(path)


def check_rank(
    model_json: str, training_json: str, config_json: str, folder: str, reference: str, rank: int
) -> None:
    """Run the steps on this rank; the worst differences, or an error, go to a verdict file."""
    verdict: dict[str, object]
    try:
        torch.set_num_threads(1)
        config = ParallelConfig.model_validate_json(config_json)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=rank,
            world_size=config.world_size, timeout=timedelta(seconds=240),
        )  # fmt: skip
        engine = Engine(
            ModelSpec.model_validate_json(model_json),
            TrainingSpec.model_validate_json(training_json),
            config, ParallelMesh(config, config.world_size), rank, torch.device("cpu"), SEED,
        )  # fmt: skip
        verdict = dict(_compare(engine, torch.load(reference, mmap=True)))
        dist.destroy_process_group()
    except Exception as error:
        verdict = {"error": str(error), "traceback": traceback.format_exc()}
    (Path(folder) / f"verdict.{rank}.json").write_text(json.dumps(verdict))


def _compare(engine: Engine, steps: list[dict[str, Snapshot]]) -> dict[str, object]:
    """Largest relative differences over the steps; `where` names the worst gradient."""
    worst = {"loss": 0.0, "gradient": 0.0, "weight": 0.0}
    where = ""
    for step, expected in enumerate(steps):
        counts = engine.step(step)
        wanted_loss = float(expected["loss"])  # type: ignore[arg-type]
        worst["loss"] = _worse(worst["loss"], abs(counts.loss - wanted_loss) / abs(wanted_loss))
        for unit in engine.units:
            for spec in unit.specs:
                gradient = cut(expected["gradients"][spec.name], spec, engine.form)
                found = relative_difference(unit.full_gradient(spec.name), gradient)
                if not found <= worst["gradient"]:
                    worst["gradient"], where = found, f"{spec.name} in step {step}"
                weight = cut(expected["weights"][spec.name], spec, engine.form)
                found = relative_difference(unit.full_value(spec.name), weight)
                worst["weight"] = _worse(worst["weight"], found)
    return {**worst, "where": where}


def _worse(first: float, second: float) -> float:
    """The larger, and what is no number above all."""
    return second if not second <= first else first


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    """Frobenius norm of the difference over that of the wanted tensor."""
    scale = float(wanted.norm().item())
    difference = float((found - wanted).norm().item())
    return difference / scale if scale > 0 else difference
