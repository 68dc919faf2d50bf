"""`ClusterSpec`: the machines, as far as the tuner's arithmetic needs them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
    intra_node: LinkSpec = LinkSpec(alpha_s=20e-6, bytes_per_s=2e9)
    inter_node: LinkSpec = LinkSpec(alpha_s=50e-6, bytes_per_s=1e9)
    nics_per_node: int = Field(default=1, ge=1)
    price_per_device_hour: float | None = Field(default=None, ge=0)

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.num_nodes * self.devices_per_node
