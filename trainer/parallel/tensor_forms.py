"""Table of the tensor-parallel forms by the value of the `tp_layout` knob."""

from search_spaces.model_spec import ModelSpec
from search_spaces.parallel_config import ParallelConfig
from trainer.errors import UnsupportedConfigError
from trainer.parallel.collectives import Communicator
from trainer.parallel.tensor_1d import Tensor1D
from trainer.parallel.tensor_2d import Tensor2D
from trainer.parallel.tensor_form import TensorForm

FORMS: dict[str, type[TensorForm]] = {"1d": Tensor1D, "2d": Tensor2D, "2.5d": Tensor2D}


def make_form(model: ModelSpec, config: ParallelConfig, groups: Communicator) -> TensorForm:
    """The form that `config.tp_layout` names; one rank is the 1D form of size 1.

    Raises:
        UnsupportedConfigError: the layout is not in the table.
    """
    if config.tp_layout not in FORMS:
        raise UnsupportedConfigError(
            f"tp_layout={config.tp_layout} is not supported", hint=f"one of {', '.join(FORMS)}"
        )
    return FORMS[config.tp_layout](model, config, groups)
