"""What all sections of a study file have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Keys and values of a study file: strict, frozen, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
