"""An exporter: for every knob it says where it goes, or refuses it; none is dropped."""

from search_spaces.constraints.base import value_text
from search_spaces.parallel_config import KNOBS
from tuner.exporters.base import BaseExporter, goes, never
from tuner.ports import Export, ExportRequest


class ShellExporter(BaseExporter):
    """Shell variables for a start script of your own."""

    name = "shell"
    trainer = "a shell script"
    versions = "any"
    round_trip = "none: a shell has no parser of knobs"
    knobs = {knob: goes(knob.upper()) for knob in KNOBS} | {
        "optimizer_offload": never("optimizer_offload", "our script knows no offload")
    }

    def write(self, request: ExportRequest) -> Export:
        """One line a knob."""
        lines = [
            f"{knob.upper()}={value_text(getattr(request.config, knob), knob)}"
            for knob in KNOBS
            if knob != "optimizer_offload"
        ]
        return Export(files={"knobs.sh": "\n".join(lines) + "\n"})
