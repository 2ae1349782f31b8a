"""The base of settings models: unknown fields refused, nothing converted, nothing changed later."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """A frozen, strict settings model."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def times(self, factor: float, *fields: str) -> Self:
        """With numbers multiplied; ``fields``: all by default. One that is None stays so."""
        values = {name: getattr(self, name) for name in fields or type(self).model_fields}
        changed = {name: value * factor for name, value in values.items() if value is not None}
        return self.model_copy(update=changed)


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation in words: where, what, and how many more there are."""
    problems = error.errors()
    place = ".".join(str(part) for part in problems[0]["loc"])
    message = problems[0]["msg"].removeprefix("Value error, ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return (f"{place}: " if place else "") + message + more
