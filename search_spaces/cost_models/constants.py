"""`Constants`: the free numbers of the model, their priors and how far trials may move them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Positive numbers that calibration may move, in log space, away from these defaults.

    Factors multiply what the hardware description says; seconds are added as they are.
    """

    gemm: float = 1.0
    """Factor on the time of matrix multiplications."""
    attention: float = 1.0
    """Factor on the time of the attention kernel."""
    elementwise: float = 1.25
    """Factor on element-wise memory traffic over the whole bandwidth."""
    head: float = 1.0
    """Factor on the time of the loss over the vocabulary."""
    intra_node: float = 1.0
    """Factor on the time of collectives within a node."""
    inter_node: float = 1.33
    """Factor on the time of collectives between nodes."""
    latency: float = 1.0
    """Factor on the latency of collectives."""
    ring_step_s: float = 15e-6
    """Latency of one step of a ring between nodes."""
    nic_sharing: float = 0.9
    """Exponent of the ranks of a group on one node by which its bandwidth between nodes grows."""
    node_degradation: float = 0.05
    """Exponent of the nodes of a group by which its bandwidth falls."""
    host_forward_s: float = 2e-4
    """Time of the host to launch one layer's forward pass; a floor of the device's time."""
    host_backward_s: float = 3e-4
    """The same for the backward pass."""
    host_collective_s: float = 2e-5
    """Time of the host added per layer pass when the layer has collectives."""
    host_contention_s: float = 1e-6
    """The same per rank of the group while pipeline messages cross nodes."""
    host_micro_batch_s: float = 3e-4
    """Time of the host per micro-batch and stage."""
    host_step_s: float = 2e-3
    """Time of the host per optimizer step."""
    host_parameter_s: float = 1e-13
    """Time per step and parameter that a rank holds before sharding."""
    hop_factor: float = 1.0
    """Factor on the bytes of a pipeline hop."""
    hop_s: float = 3e-5
    """Latency of a pipeline hop."""
    tensor_exposed: float = 1.0
    """Share of the backward pass's tensor-parallel sums that weight gradients do not hide."""
    data_exposed: float = 0.9
    """Share of a whole model's gradient all-reduce that the backward pass does not hide."""
    scatter_exposed: float = 0.9
    """The same where gradients are scattered (ZeRO)."""
    stage_exposed: float = 0.9
    """The same for an all-reduce where the model is cut into stages."""
    gather_exposed: float = 0.1
    """Share of ZeRO-3 traffic that compute cannot hide even when it is longer."""
    accumulation: float = 0.8
    """Factor on the memory traffic of adding up gradients over micro-batches."""
    optimizer: float = 1.0
    """Factor on the optimizer's memory traffic."""
    straggler: float = 1e-3
    """Step time added per doubling of nodes, relative."""
    pressure: float = 1e-6
    """Exponent by which steps slow down that want more memory than there is; off by default."""
    weights_memory: float = 1.0
    """Factor on weights, gradients and optimizer states."""
    activations_memory: float = 1.0
    """Factor on stored activations."""
    gathered_memory: float = 1.0
    """Share of the inputs that sequence parallelism gathers and the stack keeps gathered."""
    gathered_stage_memory: float = 1.0
    """The same where the model is cut into stages."""
    run_ahead_memory: float = 1e-6
    """Share of the buffers that a host may hold by running ahead of its device; off by default."""
    run_ahead_stage_memory: float = 1e-6
    """The same where the model is cut into stages."""
    logits_memory: float = 1.0
    """Factor on logits and the loss buffers."""
    base_memory_bytes: float = 2.0e9
    """Memory of the runtime itself on an accelerator."""
    transient_memory: float = 0.3
    """Gradients in compute precision that live beside the fp32 sum, as a share of all."""
    fragmentation: float = 1.04
    """Reserved over allocated memory."""


TIME_SPREADS: dict[str, float] = {
    "gemm": 0.04, "attention": 0.2, "elementwise": 0.3, "head": 0.3, "intra_node": 0.3,
    "inter_node": 0.4, "latency": 0.5, "ring_step_s": 0.5, "nic_sharing": 0.4,
    "node_degradation": 1.5, "host_forward_s": 2.0, "host_backward_s": 2.0,
    "host_collective_s": 2.0, "host_contention_s": 4.0, "host_micro_batch_s": 2.0,
    "host_step_s": 2.0, "host_parameter_s": 2.0, "hop_factor": 0.7, "hop_s": 1.0,
    "tensor_exposed": 0.3, "data_exposed": 0.7, "scatter_exposed": 0.5, "stage_exposed": 1.0,
    "gather_exposed": 1.0, "accumulation": 1.0, "optimizer": 0.5, "straggler": 2.0,
    "pressure": 0.1,
}  # fmt: skip
"""Standard deviation of the prior of each constant of the time model, of its logarithm.

Kernels are held tightly: their rates are the device's, and a fit to small models that moved them
would be wrong for large ones. What a stack, a host or a network adds may move far.
"""

MEMORY_SPREADS: dict[str, float] = {
    "weights_memory": 0.1, "activations_memory": 0.4, "gathered_memory": 1.0,
    "gathered_stage_memory": 1.0, "run_ahead_memory": 0.1, "run_ahead_stage_memory": 0.15,
    "logits_memory": 0.5, "base_memory_bytes": 0.7,
    "transient_memory": 1.0, "fragmentation": 0.05,
}  # fmt: skip
"""The same for the memory model."""

CPU_SPREADS: dict[str, float] = {
    "gemm": 1.0, "attention": 1.0, "elementwise": 1.0, "head": 1.0, "intra_node": 1.0,
    "optimizer": 1.0,
}  # fmt: skip
"""Wider priors where the peak of a core and the bandwidth of a loopback link are guesses."""


def to_vector(constants: Constants, names: list[str]) -> NDArray[np.float64]:
    """Logarithms of the named constants."""
    return np.log([getattr(constants, name) for name in names])


def with_vector(constants: Constants, names: list[str], vector: NDArray[np.float64]) -> Constants:
    """The constants with the named ones replaced by the exponentials of `vector`."""
    values: dict[str, Any] = {n: float(np.exp(x)) for n, x in zip(names, vector, strict=True)}
    return replace(constants, **values)


def with_matrix(constants: Constants, names: list[str], matrix: NDArray[np.float64]) -> Constants:
    """Many candidates at once: named constants become columns, shape (candidates, 1).

    The formulas broadcast them against points of shape (points,), so that a Jacobian is one call.
    """
    columns: dict[str, Any] = {n: np.exp(matrix[:, [i]]) for i, n in enumerate(names)}
    return replace(constants, **columns)


def from_mapping(values: Mapping[str, float]) -> Constants:
    """Read constants back; unknown names are left out, so that old files stay readable."""
    known = {field.name for field in fields(Constants)}
    return Constants(**{name: float(v) for name, v in values.items() if name in known})
