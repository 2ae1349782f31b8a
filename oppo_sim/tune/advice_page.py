"""The advice as text for a terminal, as a page, and as what to paste into one framework."""

from collections.abc import Mapping
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.report.labels import capital, format_signed, significant
from oppo_sim.scenario.yaml_text import show_value
from oppo_sim.tune.frameworks.catalog import framework


def advice_text(advice: Mapping[str, Any]) -> str:
    """The advice for a terminal."""
    lines = []
    for title, sentences in advice["sections"].items():
        if sentences:
            lines += ["", title, *(f"  {sentence}" for sentence in sentences)]
    told = advice.get("frameworks", {})
    if len(told) == 1:
        lines += ["", *(framework_text(advice, name).rstrip() for name in told)]
    elif told:
        names = ", ".join(told)
        lines += [
            "",
            f"In the words of {names}: advice.md has what to paste.",
        ]
    if advice.get("next"):
        lines += ["", "Next", *(f"  {command}" for command in advice["next"])]
    return "\n".join(lines).strip() + "\n"


def framework_text(advice: Mapping[str, Any], name: str) -> str:
    """What to paste into a framework, and what it has no knob for. Raises OppoError for an unknown one, and
    for one that this search left out."""
    known = framework(name, engines=True).name
    told = advice["frameworks"].get(known)
    if told is None:
        where = (
            f"the search was for {', '.join(advice['frameworks'])}"
            if advice["frameworks"]
            else "nothing was chosen"
        )
        raise OppoError(f"there is no advice for {known}: {where}")
    lines = [f"{known} (names of {told['names']})" if told["names"] else known]
    for block in told["blocks"]:
        lines += [f"  {block['how']}:", "", *(f"    {line}" for line in block["text"].splitlines()), ""]
    for entry in told["lines"]:
        if entry["knob"] is None:
            lines.append(f"  {entry['meaning']}")
        elif not told["blocks"]:  # an engine: its arguments one by one
            lines.append(f"  {entry['knob']} = {shown(entry['value'])}: {entry['meaning']}")
    return "\n".join(lines).rstrip() + "\n"


def advice_markdown(advice: Mapping[str, Any]) -> str:
    """The advice as a page."""
    lines = [f"# {advice['title']}", ""]
    for title, sentences in advice["sections"].items():
        if sentences:
            lines += [f"## {title}", "", *(f"- {_escaped(sentence)}" for sentence in sentences), ""]
    if advice.get("worlds"):
        worlds = advice["worlds"]
        lines += ["## Regret by world", "", "| world | the choice | best as given |", "|---|---|---|"]
        for one in worlds:
            chosen, nominal = format_signed(one["chosen"], 2), format_signed(one["nominal"], 2)
            lines.append(f"| {_escaped(one['world'])} | {chosen} | {nominal} |")
        lines.append("")
    if advice.get("frameworks"):
        lines += ["## In other frameworks", ""]
        for name, told in advice["frameworks"].items():
            lines += [f"### {name}", "", *([f"Names of {told['names']}.", ""] if told["names"] else [])]
            for block in told["blocks"]:
                fence = "python" if "import " in block["text"] else ""
                how = capital(block["how"])
                lines += [f"{how}:", "", f"```{fence}", block["text"], "```", ""]
            lines += ["| knob | value | |", "|---|---|---|"]
            for entry in told["lines"]:
                knob = "none" if entry["knob"] is None else f"`{entry['knob']}`"
                value = "" if entry["knob"] is None else f"`{shown(entry['value'])}`"
                lines.append(f"| {knob} | {value} | {_escaped(entry['meaning'])} |")
            lines.append("")
    if advice.get("next"):
        lines += ["## Next", "", "```", *advice["next"], "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def shown(value: Any) -> str:
    """A value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return significant(value) if isinstance(value, float) else show_value(value)


# ---- inside ------------------------------------------------------------------------------------------------


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
