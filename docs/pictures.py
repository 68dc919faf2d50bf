"""Draws the pictures of the documentation from the code that they are about.

`python docs/pictures.py` rewrites docs/images/*.svg; `--check` says whether they are in step.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
INK, PALE, LINE = "#1f2933", "#f7f9fb", "#9aa5b1"
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = (
    "#3b7dd8", "#e8833a", "#3a9d6b", "#8a63c9", "#c94f4f", "#cbd2d9",
)  # fmt: skip


@dataclass
class Drawing:
    """An SVG of a size in pixels, with a title for those who cannot see it."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str, text: str = "",
            ink: str = INK, size: int = 13, radius: int = 4, edge: str = "none") -> None:  # fmt: skip
        """A rectangle with lines of text in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"'
            f' fill="{fill}" stroke="{edge}"/>'
        )
        lines = text.split("\n") if text else []
        top = y + height / 2 - (len(lines) - 1) * size * 0.6
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * size * 1.2, line, ink, size, "middle")

    def text(self, x: float, y: float, text: str, ink: str = INK, size: int = 13,
             anchor: str = "start") -> None:  # fmt: skip
        """A line of text, centred on its height."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{ink}" font-size="{size}" text-anchor="{anchor}"'
            f' dominant-baseline="central">{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str = LINE, width: float = 1.5,
             arrow: bool = False) -> None:  # fmt: skip
        """A straight line, with an arrow at its end where wanted."""
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink}"'
            f' stroke-width="{width:g}"{end}/>'
        )

    def svg(self) -> str:
        """The file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img" font-family="sans-serif">'
            f"<title>{escape(self.title)}</title>"
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5"'
            f' markerHeight="5" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker>'
            f'</defs><rect width="{self.width}" height="{self.height}" rx="8" fill="{PALE}"/>'
        )
        return "\n".join([head, *self.parts, "</svg>"]) + "\n"


def loop() -> Drawing:
    """Who does what in a study."""
    drawing = Drawing(
        760, 250, "A study: the searcher proposes, the trainer measures, the database remembers"
    )
    boxes = {
        "space": (20, 30, "search space\nlegal points", GREEN),
        "model": (20, 160, "cost model\ntime and memory", GREEN),
        "search": (210, 95, "searcher\nask / tell", BLUE),
        "control": (390, 95, "controller\none loop", BLUE),
        "launch": (570, 30, "launcher\nranks, deadlines", ORANGE),
        "train": (570, 160, "trainer\nreal steps", ORANGE),
    }
    width, height = 150, 60
    for x, y, text, colour in boxes.values():
        drawing.box(x, y, width, height, colour, text, "#ffffff", radius=8)
    drawing.box(390, 190, width, 45, PURPLE, "results database", "#ffffff", radius=8)
    arrows = [
        (170, 60, 210, 110), (170, 190, 210, 140), (360, 125, 390, 125), (540, 110, 570, 75),
        (645, 90, 645, 160), (570, 185, 540, 140), (465, 155, 465, 190), (390, 212, 285, 155),
    ]  # fmt: skip
    for x1, y1, x2, y2 in arrows:
        drawing.line(x1, y1, x2, y2, INK, arrow=True)
    words = [
        (375, 84, "point"), (540, 84, "job"), (548, 185, "report"), (490, 172, "rows"),
        (300, 205, "everything known"),
    ]  # fmt: skip
    for x, y, word in words:
        drawing.text(x, y, word, size=11, anchor="middle")
    return drawing


def layout() -> Drawing:
    """tp 2, pp 2, dp 2 on two nodes of four devices."""
    from search_spaces.parallel_config import ParallelConfig

    config = ParallelConfig(tp=2, pp=2, dp=2)
    drawing = Drawing(740, 270, f"{config.short()} on two nodes of four devices")
    for replica in range(config.dp):
        top = 20 + replica * 125
        inner = top + (34, 16)[replica]
        drawing.box(20, top, 480, 105, "#ffffff", edge=LINE, radius=8)
        caption = f"replica dp={replica} (node {replica}): half of the batch"
        drawing.text(32, top + (14, 90)[replica], caption, size=12)
        for stage in range(config.pp):
            left = 40 + stage * 235
            for shard in range(config.tp):
                rank = (replica * config.pp + stage) * config.tp + shard
                text = f"rank {rank}\nstage {stage}, half {shard}"
                fill = (BLUE, GREEN)[stage]
                drawing.box(left + shard * 100, inner, 84, 55, fill, text, "#ffffff", 11)
            drawing.line(left + 84, inner + 28, left + 100, inner + 28, ORANGE, 4)
        drawing.line(224, inner + 28, 275, inner + 28, PURPLE, 2, arrow=True)
    for column in (82, 182, 317, 417):
        drawing.line(column, 109, column, 161, RED, 2)
    legend = ((ORANGE, "tp: a sum in every layer"), (PURPLE, "pp: activations, to the next stage"),
              (RED, "dp: gradients, once a step"))  # fmt: skip
    for number, (colour, text) in enumerate(legend):
        drawing.line(516, 40 + number * 24, 536, 40 + number * 24, colour, 4)
        drawing.text(544, 40 + number * 24, text, size=11)
    return drawing


def pipelines() -> Drawing:
    """Replays of the schedules with equal stages, whose backward takes twice the forward."""
    from search_spaces.pipeline_schedules.simulate import StageTimes, simulate

    kinds = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1))
    ranks, batches, scale = 4, 8, 16.0
    colours = {"F": BLUE, "B": ORANGE, "I": ORANGE, "W": GREEN}
    drawing = Drawing(
        700, 40 + 112 * len(kinds), "Four pipeline schedules on 4 ranks with 8 micro-batches"
    )
    for row, (name, chunks) in enumerate(kinds):
        top = 14 + row * 112
        times = StageTimes.equal(ranks * chunks, 1.0 / chunks, 1.0 / chunks, 1.0 / chunks)
        done = simulate(name, ranks, batches, chunks, times)
        shown = f"{name}, {chunks} chunks a rank" if chunks > 1 else name
        idle = f"{done.bubble_fraction:.0%} idle".replace("%", " %")
        drawing.text(16, top + 8, f"{shown}: {done.makespan_s:g} units, {idle}", size=13)
        for rank, action, start_s, end_s in done.timeline:
            drawing.box(16 + start_s * scale, top + 22 + rank * 19, (end_s - start_s) * scale - 1, 17,
                        colours[action.op], radius=2)  # fmt: skip
    for number, (colour, text) in enumerate(
        ((BLUE, "forward"), (ORANGE, "backward (input gradient)"), (GREEN, "weight gradient"))
    ):
        x, y = 16 + number * 200, drawing.height - 18
        drawing.box(x, y - 7, 14, 14, colour)
        drawing.text(x + 20, y, text, size=12)
    return drawing


def zero() -> Drawing:
    """What one rank holds under each ZeRO stage, by the cost model."""
    import tuner

    shown = {"weights": BLUE, "gradients": ORANGE, "optimizer": PURPLE, "activations": GREEN}
    stages = [_memory(tuner, stage) for stage in range(4)]
    drawing = Drawing(640, 250, "GPT-2 1.5B in bf16 on 8 devices: memory of one rank by ZeRO stage")
    drawing.text(16, 18, "GPT-2 1.5B, bf16, 8 replicas, micro-batch 1: GiB of one rank, predicted")
    scale = 430 / max(sum(parts.values()) for parts in stages)
    for stage, parts in enumerate(stages):
        y, x = 40 + stage * 42, 80.0
        drawing.text(16, y + 15, f"ZeRO {stage}", size=13)
        rest = sum(parts.values()) - sum(parts[name] for name in shown)
        for name, value in [*((name, parts[name]) for name in shown), ("other", rest)]:
            drawing.box(x, y, value * scale, 30, shown.get(name, GREY), radius=0)
            if value * scale > 34:
                drawing.text(x + value * scale / 2, y + 15, f"{value:.1f}", "#ffffff", 11, "middle")
            x += value * scale
        drawing.text(x + 8, y + 15, f"{sum(parts.values()):.1f} GiB", size=12)
    for number, (name, colour) in enumerate([*shown.items(), ("other", GREY)]):
        drawing.box(16 + number * 115, 222, 14, 14, colour)
        drawing.text(36 + number * 115, 229, name, size=12)
    return drawing


def _memory(tuner: object, stage: int) -> dict[str, float]:
    space = {"zero_stage": stage, "tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": "none",
             "compile": False, "cp": 1, "zero_shard_degree": 0}  # fmt: skip
    (point,) = tuner.candidates(
        "gpt2-1.5b", cluster="dgx-a100-80", devices=8, training={"dtype": "bf16"}, space=space
    )
    return {name: size / 2**30 for name, size in point.peak_memory_parts_bytes.items()}


def ties() -> Drawing:
    """Positions follow from intervals: those that overlap the interval above are not told apart."""
    from bisect import bisect_right

    rows = (("A", 1000, 40), ("B", 970, 35), ("C", 900, 30), ("D", 880, 30), ("E", 760, 20))
    lows = sorted(middle - half for _, middle, half in rows)
    drawing = Drawing(640, 220, "A leaderboard with ties: intervals that overlap share a position")
    for x, heading in ((20, "#"), (50, "configuration"), (160, "tokens/s and its interval")):
        drawing.text(x, 18, heading)
    for number, (name, middle, half) in enumerate(rows):
        y = 48 + number * 34
        position = 1 + len(lows) - bisect_right(lows, middle + half)
        drawing.text(20, y, str(position), size=15)
        drawing.text(70, y, name, size=15)
        low, high = (140 + (value - 700) * 1.35 for value in (middle - half, middle + half))
        drawing.line(low, y, high, y, BLUE, 6)
        centre = 140 + (middle - 700) * 1.35
        drawing.line(centre, y - 9, centre, y + 9, INK, 3)
    return drawing


PICTURES: dict[str, Callable[[], Drawing]] = {
    "loop": loop, "layout": layout, "pipelines": pipelines, "zero": zero, "ties": ties,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Write the pictures, or with `--check` compare them; returns 1 where one is out of step."""
    FOLDER.mkdir(exist_ok=True)
    code = 0
    for name, draw in PICTURES.items():
        path, text = FOLDER / f"{name}.svg", draw().svg()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is out of step: run python docs/pictures.py")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
