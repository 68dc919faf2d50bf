"""Results of other tools, one file each: trials that were measured elsewhere, to compare with ours.

A new tool is one file with `read(path, recipe)` and one line in `IMPORTERS`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from results_db.errors import NotFound
from results_db.importers import deepspeed, flagscale, nanotron, optuna, paddle
from results_db.importers.base import (
    UNITS,
    ForeignTrial,
    ImportReport,
    Recipe,
    import_trials,
)
from results_db.store import Store

_Reader = Callable[[Path, Recipe], Iterator[ForeignTrial | str]]
_FILES: dict[str, _Reader] = {
    "paddle": paddle.read,
    "flagscale": flagscale.read,
    "deepspeed": deepspeed.read,
    "nanotron": nanotron.read,
}
IMPORTERS: tuple[str, ...] = (*_FILES, "optuna")


def import_results(
    store: Store,
    tool: str,
    source: str,
    name: str,
    recipe: Recipe | None = None,
    foreign_study: str | None = None,
) -> ImportReport:
    """Store another tool's results as a new study.

    Args:
        store: where to.
        tool: one of `IMPORTERS`.
        source: path of the file or folder; for Optuna the URL of the storage.
        name: of the study to make.
        recipe: what the source does not say of the model and the batch.
        foreign_study: Optuna's name of the study, when its storage holds several.

    Raises:
        NotFound: the tool or the foreign study is unknown.
        AlreadyExists: there is a study of this name.
        DatabaseUnreadable: the source is not what the tool writes.
        InvalidRecord: the recipe lacks what is needed to count tokens.
    """
    recipe = recipe or Recipe()
    if tool == "optuna":
        trials = optuna.read(source, recipe, foreign_study)
    elif tool in _FILES:
        trials = _FILES[tool](Path(source), recipe)
    else:
        raise NotFound(f"There is no importer {tool!r}", f"there are {', '.join(IMPORTERS)}")
    return import_trials(store, tool, source, name, recipe, trials)


__all__ = ["IMPORTERS", "UNITS", "ForeignTrial", "ImportReport", "Recipe", "import_results"]
