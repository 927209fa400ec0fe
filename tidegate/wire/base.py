"""The one base of all wire models: unknown fields are refused, values are not coerced silently."""

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Strict about names. Frozen, so that a spec is a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="null")


class Loose(BaseModel):
    """For answers: a newer server may say more than this client knows."""

    model_config = ConfigDict(extra="ignore", frozen=True)
