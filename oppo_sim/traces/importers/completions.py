"""Rows that trainers of TRL's kind log of completions: text, the prompt's text, columns of rewards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oppo_sim.traces.importers.places import Place, short_id
from oppo_sim.traces.importers.reading import Reading, Rollout


def note_several_rewards(rewards: Sequence[str], reading: Reading) -> None:
    """Say that rewards are left empty where several columns could be the reward and the user named none."""
    if len(rewards) > 1 and "reward" not in reading.options.fields:
        reading.notes[
            f"rewards are left empty, since there are several ({', '.join(rewards[:6])}): name one with"
            " --field reward=NAME"
        ] += 1


def completion_rollout(
    record: Mapping[str, Any],
    place: Place,
    reading: Reading,
    rewards: Sequence[str],
    prompt_tokens: Callable[[str], int | None],
) -> Rollout:
    """The rollout of a row; ``rewards``: columns that may be the reward, taken where it is one. Raises
    OppoError for a value of another kind."""
    text = place.text(reading.pick(record, place, "response", "completion"), "completion")
    tokens, reason = reading.response_from(text)
    prompt: Any = reading.pick(record, place, "prompt", "prompt")
    named = reading.name(record, place, "prompt_id")
    words = place.text(prompt, "prompt") if prompt is not None else None
    return Rollout(
        line=place.line,
        response_length=tokens,
        prompt_length=None if words is None else prompt_tokens(words),
        step=reading.whole(record, place, "step", "step"),
        prompt_id=short_id(words) if named is None and words is not None else named,
        sample_id=reading.name(record, place, "sample_id"),
        finish_reason=reason,
        reward=reading.reward(record, place, *(rewards if len(rewards) == 1 else ())),
        reason_inferred=True,
    )
