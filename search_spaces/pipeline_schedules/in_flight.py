"""How many activations a rank holds at once, counted along its list: durations do not matter."""

from collections.abc import Mapping, Sequence

from search_spaces.pipeline_schedules.action import Action


def peak_in_flight(
    actions: Sequence[Action],
    weight_of_stage: Mapping[int, float] | None = None,
    held_after_input_grad: float = 1.0,
) -> float:
    """Most activations that a rank holds at once.

    Args:
        actions: the rank's list.
        weight_of_stage: what one micro-batch of a stage counts, in any unit (bytes, layers); 1 each
            when left out.
        held_after_input_grad: share of it that stays between I and W, 0 to 1.

    Returns:
        The peak, in the unit of the weights.
    """
    change = {"F": 1.0, "B": -1.0, "I": held_after_input_grad - 1.0, "W": -held_after_input_grad}
    held = peak = 0.0
    for action in actions:
        weight = 1.0 if weight_of_stage is None else weight_of_stage[action.stage]
        held += weight * change[action.op]
        peak = max(peak, held)
    return peak
