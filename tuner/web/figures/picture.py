"""What a builder of a figure gives back."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Picture:
    """A figure without a theme, and what it shows in words: also its text for screen readers."""

    figure: "go.Figure"
    caption: str

    def to_json(self) -> dict[str, Any]:
        """The figure as Plotly's JSON: `data` and `layout`, plain values only."""
        import json

        found: dict[str, Any] = json.loads(self.figure.to_json())
        found.get("layout", {}).pop("template", None)
        return found


@dataclass(frozen=True)
class Missing:
    """Why there is no figure, as a sentence."""

    reason: str
