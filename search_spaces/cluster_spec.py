"""`ClusterSpec`: the machines, as far as the tuner's arithmetic needs them."""

from itertools import pairwise
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DeviceKind = Literal["cpu", "cuda", "rocm"]


class LinkSpec(BaseModel):
    """One class of link under the alpha-beta model: `time_s = alpha_s + bytes / bytes_per_s`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    alpha_s: float = Field(ge=0, description="latency of one message")
    bytes_per_s: float = Field(gt=0, description="bandwidth per device and direction")


class ClusterSpec(BaseModel):
    """Nodes of equal devices; described by the user or detected on the machine at hand.

    On CPU a "device" is a rank's share of the machine: `devices_per_node` ranks split its cores and
    its memory. `peak_flops_per_s` maps a precision to the peak of one device.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = "local"
    device_kind: DeviceKind = "cpu"
    device_name: str = "cpu"
    num_nodes: int = Field(default=1, ge=1)
    devices_per_node: int = Field(default=1, ge=1)
    memory_bytes: int = Field(default=8 * 2**30, gt=0, description="memory of one device")
    memory_bytes_per_s: float = Field(default=10e9, gt=0, description="memory bandwidth of one")
    peak_flops_per_s: dict[str, float] = Field(default_factory=dict)
    threads_per_device: int = Field(default=1, ge=1, description="CPU threads of one rank")
    ranks_per_core: float = Field(
        default=1.0, ge=1, description="CPU ranks that share a core and its time"
    )
    intra_node: LinkSpec = LinkSpec(alpha_s=20e-6, bytes_per_s=2e9)
    inter_node: LinkSpec = LinkSpec(alpha_s=50e-6, bytes_per_s=1e9)
    nics_per_node: int = Field(default=1, ge=1)
    price_per_device_hour: float | None = Field(default=None, ge=0)
    host_forward_s: float | None = Field(
        default=None, gt=0, description="measured time to launch a layer's forward pass"
    )
    host_backward_s: float | None = Field(default=None, gt=0, description="and its backward pass")
    gemm_flops: list[float] = Field(
        default_factory=list, description="sizes of measured matrix products, ascending"
    )
    gemm_flops_per_s: dict[str, list[float]] = Field(
        default_factory=dict, description="their rates by precision"
    )

    @model_validator(mode="after")
    def _curves_match(self) -> Self:
        sizes = self.gemm_flops
        if any(low >= high for low, high in pairwise(sizes)):
            raise ValueError("sizes of matrix products must ascend")
        if sizes and not self.gemm_flops_per_s:
            raise ValueError("sizes of matrix products need rates")
        for precision, rates in self.gemm_flops_per_s.items():
            if len(rates) != len(sizes) or min(rates, default=1.0) <= 0:
                raise ValueError(f"{precision} needs one rate above 0 for every size")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.num_nodes * self.devices_per_node
