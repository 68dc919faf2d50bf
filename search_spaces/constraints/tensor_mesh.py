"""2D (SUMMA; Optimus, arXiv 2104.05343) and 2.5D (Tesseract, arXiv 2105.14500) tensor parallelism.

Their meshes are `q x q` and `depth x q x q`: widths are cut over the columns and the sequences of a
micro-batch over the rows (and the depth). A mesh of one row is 1D under another name and refused,
so that no run has two names; for the same reason `tp_depth` is 1 except under 2.5d.
"""

import math

from search_spaces.constraints.base import Constraint, Setting
from search_spaces.parallel_config import ParallelConfig


def mesh_side(config: ParallelConfig) -> int:
    """Rows (and columns) `q` of the mesh of a 2d or 2.5d layout; 0 when `tp` makes no such mesh."""
    side = math.isqrt(config.tp // config.tp_depth)
    return side if side * side * config.tp_depth == config.tp else 0


def _allows(config: ParallelConfig, setting: Setting) -> bool:
    return not _problem(config, setting)


def _problem(config: ParallelConfig, setting: Setting) -> str:
    layout, tp, depth = config.tp_layout, config.tp, config.tp_depth
    if layout == "1d":
        return "" if depth == 1 else f"tp_depth {depth} has no meaning under tp_layout 1d"
    if layout == "2d" and depth != 1:
        return f"tp_depth {depth} has no meaning under tp_layout 2d"
    if layout == "2.5d" and depth < 2:
        return "tp_layout 2.5d with tp_depth 1 is tp_layout 2d: give a tp_depth of 2 or more"
    side = mesh_side(config)
    if side < 2:
        shape = "q x q" if layout == "2d" else f"{depth} x q x q"
        return f"tp {tp} is no {shape} mesh with q of 2 or more, which tp_layout {layout} needs"
    return _uneven_block(config, setting, side)


def _uneven_block(config: ParallelConfig, setting: Setting, side: int) -> str:
    model = setting.model
    widths = {
        "attention heads": model.num_heads,
        "KV heads": model.num_kv_heads,
        "hidden size": model.hidden_size,
        "feed-forward width": model.ffn_size,
    }
    for name, width in widths.items():
        if width % side:
            return (
                f"tp {config.tp} makes a mesh of side {side}, which does not divide {name} {width}"
            )
    rows = side * config.tp_depth
    if config.micro_batch_size % rows:
        return (
            f"micro_batch_size {config.micro_batch_size} cannot be dealt to the {rows} rows of the "
            f"{config.tp_layout} mesh of tp {config.tp}"
        )
    return ""


RULE = Constraint(
    "tensor_mesh", ("tp", "tp_layout", "tp_depth", "micro_batch_size"), _allows, _problem
)
