"""The law of the exporters: each says for every knob where it goes, or refuses it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from search_spaces.constraints.base import value_text
from search_spaces.parallel_config import KNOBS, ParallelConfig
from tuner.errors import NotExpressible
from tuner.ports import Export, ExportRequest, Nearest, Refusal

REFUSED = "-"
_NEUTRAL = ParallelConfig()
# Each change of one knob may uncover the next refusal; no chain is longer than there are knobs.
_MAX_CHANGES = len(KNOBS)

Check = Callable[[ExportRequest], Refusal | None]


@dataclass(frozen=True)
class Knob:
    """What an exporter does with one knob.

    Attributes:
        goes_to: Flag, key or argument that holds it, or how the trainer comes to it; `REFUSED` if
            the trainer has no word for it.
        checks: What refuses single values, in the order of asking.
    """

    goes_to: str
    checks: tuple[Check, ...] = ()

    def refusal(self, request: ExportRequest) -> Refusal | None:
        """The first reason against the knob's value."""
        return next((found for check in self.checks if (found := check(request))), None)


def goes(goes_to: str, *checks: Check) -> Knob:
    """The knob is written there, save for what the checks refuse."""
    return Knob(goes_to, checks)


def never(knob: str, why: str, **nearest: Any) -> Knob:
    """Refuse all but the neutral value; the nearest is the neutral value unless one is named."""
    neutral = getattr(_NEUTRAL, knob)
    return Knob(REFUSED, (only(knob, (neutral,), why, **(nearest or {knob: neutral})),))


def only(knob: str, legal: Iterable[Any], why: str, **nearest: Any) -> Check:
    """A check that refuses all values but the `legal` ones."""
    allowed = tuple(legal)

    def check(request: ExportRequest) -> Refusal | None:
        value = getattr(request.config, knob)
        if value in allowed:
            return None
        return Refusal(knob=knob, reason=f"{_said(knob, value)}: {why}", nearest=nearest)

    return check


def unless(knob: str, holds: Callable[[ExportRequest], bool], why: str, **nearest: Any) -> Check:
    """A check that refuses the knob where `holds` is false; `nearest` may hold functions."""

    def check(request: ExportRequest) -> Refusal | None:
        if holds(request):
            return None
        near = {name: v(request) if callable(v) else v for name, v in nearest.items()}
        value = getattr(request.config, knob)
        return Refusal(knob=knob, reason=f"{_said(knob, value)}: {why}", nearest=near)

    return check


def tensor_1d() -> dict[str, Knob]:
    """The knobs of a trainer whose tensor parallelism is Megatron's."""
    why = "its tensor parallelism is 1d alone"
    return {
        "tp_layout": never("tp_layout", why, tp_layout="1d", tp_depth=1),
        "tp_depth": never("tp_depth", why),
    }


def no_pipeline(why: str) -> dict[str, Knob]:
    """The knobs of a trainer without pipelines; the nearest has replicas in place of stages."""
    one_stage = {"virtual_stages": 1, "pipeline_schedule": "1f1b", "stage_layers": None}
    check = unless(
        "pp", lambda r: r.config.pp == 1, why, pp=1, dp=_replicas_for_stages, **one_stage
    )
    return {"pp": Knob(REFUSED, (check,))} | {name: never(name, why) for name in one_stage}


def _replicas_for_stages(request: ExportRequest) -> int:
    config, batch = request.config, request.training.global_batch_size
    replicas = config.dp * config.pp
    return config.dp if batch % (replicas * config.micro_batch_size) else replicas


def schedules(goes_to: str, legal: Iterable[str], why: str, *further: Check) -> Knob:
    """The knob of a trainer that knows these schedules and no others; 1f1b is the nearest."""
    return goes(
        goes_to,
        only(
            "pipeline_schedule", legal, why,
            pipeline_schedule="1f1b", virtual_stages=1, stage_layers=None,
        ),
        *further,
    )  # fmt: skip


def whole_layers(goes_to: str) -> dict[str, Knob]:
    """The knobs of a trainer that recomputes all layers, each as a whole, or none."""
    why = "it recomputes whole layers"
    return {
        "recompute": goes(goes_to, only("recompute", ("none", "full"), why, recompute="full")),
        "recompute_layers": never("recompute_layers", "it recomputes all layers or none"),
    }


def whole_rounds(*looped: str) -> Check:
    """A check for looped schedules that take their micro-batches in rounds of `pp`."""
    return unless(
        "pipeline_schedule",
        lambda r: r.config.pipeline_schedule not in looped or r.num_microbatches % r.config.pp == 0,
        "its schedule needs a number of micro-batches that pp divides",
        pipeline_schedule="1f1b",
        virtual_stages=1,
        stage_layers=None,
    )


def _told(request: ExportRequest, changes: tuple[str, ...]) -> Nearest:
    """What was changed, said in the request itself as well."""
    if not changes:
        return Nearest(request=request)
    note = f"Changed from what was measured: {'; '.join(changes)}."
    origin = f"{request.origin} {note}".strip()
    return Nearest(request=replace(request, origin=origin), changes=changes)


def _said(knob: str, value: Any) -> str:
    return f"{knob} {value_text(value, knob)}"


class BaseExporter:
    """What all exporters share; a subclass gives the facts, the knobs and the files."""

    name: ClassVar[str]
    trainer: ClassVar[str]
    versions: ClassVar[str]
    round_trip: ClassVar[str]
    knobs: ClassVar[Mapping[str, Knob]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        knobs = getattr(cls, "knobs", {})
        if missing := sorted(set(KNOBS) ^ set(knobs)):
            raise TypeError(f"{cls.__name__} must say where these knobs go: {', '.join(missing)}")

    @property
    def goes_to(self) -> Mapping[str, str]:
        """For every knob where it goes."""
        return {name: self.knobs[name].goes_to for name in KNOBS}

    def refusals(self, request: ExportRequest) -> list[Refusal]:
        """What the trainer cannot be told, at most one reason for each knob."""
        found = [self.about_model(request)]
        found += [self.knobs[name].refusal(request) for name in KNOBS]
        return [refusal for refusal in found if refusal is not None]

    def about_model(self, request: ExportRequest) -> Refusal | None:
        """Why the trainer cannot train this model or recipe at all, if so."""
        if request.training.workload == "inference":
            return Refusal(knob="workload", reason=f"workload inference: {self.trainer} trains")
        return None

    def nearest(self, request: ExportRequest) -> Nearest:
        """The request with the refused knobs replaced by the nearest that the trainer can do.

        Its origin, which goes into the head of the files, says what was changed.

        Raises:
            NotExpressible: nothing near exists.
        """
        changes: list[str] = []
        for _ in range(_MAX_CHANGES):
            refused = self.refusals(request)
            if not refused:
                return _told(request, tuple(changes))
            near = refused[0].nearest
            if not near:
                break
            changes += [
                f"{_said(knob, getattr(request.config, knob))} -> {value_text(value, knob)}"
                for knob, value in near.items()
                if getattr(request.config, knob) != value
            ]
            request = replace(request, config=request.config.with_knobs(**near))
        raise self._error(request)

    def export(self, request: ExportRequest) -> Export:
        """The files.

        Raises:
            NotExpressible: the trainer has no words for a knob's value.
        """
        if self.refusals(request):
            raise self._error(request)
        return self.write(request)

    def write(self, request: ExportRequest) -> Export:
        """The files of a request that nothing was refused of."""
        raise NotImplementedError

    def _error(self, request: ExportRequest) -> NotExpressible:
        refused = self.refusals(request)
        reasons = "; ".join(refusal.reason for refusal in refused)
        near = [
            _said(knob, value)
            for item in refused
            for knob, value in item.nearest.items()
            if getattr(request.config, knob) != value
        ]
        hint = ""
        if near and all(item.nearest for item in refused):
            hint = f"nearest: {', '.join(dict.fromkeys(near))}; --nearest exports that"
        return NotExpressible(f"{self.trainer} cannot express {reasons}", hint)
