"""Closed forms of the simulator's answers, for pipelines of equal stages and free hops.

Each equals the replay of the actions exactly within the limits that it states (a property test
holds them to it); outside of them there is only the replay. F, I and W are seconds of one
micro-batch in one stage, virtual stages counted; a whole backward takes I + W.
"""


def bubble_s(
    name: str,
    num_pipeline_ranks: int,
    num_microbatches: int,
    forward_s: float,
    input_grad_s: float,
    weight_grad_s: float,
) -> float | None:
    """Seconds of a step in which a rank idles; none where no exact form is known.

    GPipe, 1F1B and interleaved (micro-batches a multiple of the ranks): `(p - 1)(F + I + W)`
    (arXiv:2104.04473, section 2.2). ZB-H1 with at least `p` micro-batches: `p - 1` times the
    longest of `F + I - W` (arXiv:2401.10241, table 1), I and F, since W can fill no more than
    what the chain of input gradients and the way in leave.
    """
    hops = num_pipeline_ranks - 1
    whole = hops * (forward_s + input_grad_s + weight_grad_s)
    if name in ("gpipe", "1f1b"):
        return whole
    if name == "interleaved" and num_microbatches % num_pipeline_ranks == 0:
        return whole
    if name == "zero_bubble" and num_microbatches >= num_pipeline_ranks:
        return hops * max(forward_s + input_grad_s - weight_grad_s, input_grad_s, forward_s)
    return None
