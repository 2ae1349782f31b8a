"""From a name or a file to a checked ``Scenario``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED, check_settings
from oppo_sim.scenario.aliases import Plain, Translated, policy_name, translate
from oppo_sim.scenario.cluster import overruled, sync_sentence, with_split
from oppo_sim.scenario.json_schema import model_schema
from oppo_sim.scenario.not_read import (
    is_a_flat_one,
    is_a_model_of_nemo_rl,
    is_of_a_framework,
    not_read,
    said_by,
    settings_of,
)
from oppo_sim.scenario.overrides import Override, Overrides, overridden, override_texts, parse_override
from oppo_sim.scenario.problems import ScenarioProblem, dotted, more_than_one, problems_of, unknown_field
from oppo_sim.scenario.replicas import DECIDED, with_engines
from oppo_sim.scenario.schema import FORMAT, Scenario, remember_origin
from oppo_sim.scenario.suggest import likely_choice, likely_elsewhere, of_other_policies
from oppo_sim.scenario.yaml_text import parse_yaml, show_value

SHIPPED_FOLDER = Path(__file__).parent / "shipped"
LARGEST_FILE = 200_000  # bytes


def shipped_scenarios() -> list[str]:
    """Names of the shipped scenarios, sorted."""
    return sorted(path.stem for path in SHIPPED_FOLDER.glob("*.yaml"))


def find_shipped(name: str) -> Path:
    """The file of a shipped scenario. Raises OppoError if there is none, with the closest names."""
    names = shipped_scenarios()
    if name in names:
        return SHIPPED_FOLDER / f"{name}.yaml"
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    close = get_close_matches(stem, names, n=2) or [one for one in names if stem and one.startswith(stem)]
    if not close and (stem != name or "/" in name):
        raise OppoError(f"there is no file {name}: check the path ('oppo scenario list' names shipped ones)")
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"shipped are {', '.join(names)}; your own is a path to a YAML file"
    )
    raise OppoError(f"no scenario {show_value(name)}: {hint}")


def find_scenario(name_or_path: str | Path) -> Path:
    """The file of a shipped scenario or of a path. Raises OppoError if there is none, with the closest
    names."""
    text = str(name_or_path)
    if text not in shipped_scenarios() and text and Path(text).exists():
        if Path(text).is_dir():
            raise OppoError(f"scenario {text} is a folder: name a file in it")
        return Path(text)
    return find_shipped(text)


def read_scenario_text(path: Path) -> str:
    """The text of a scenario file. Raises OppoError if it cannot be read, is too large or not UTF-8."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= LARGEST_FILE else None
    except OSError as error:
        raise OppoError(f"scenario {path} cannot be read: {error.strerror or error}") from None
    if raw is None:
        raise OppoError(f"scenario {path} has more than {LARGEST_FILE} bytes: it is no scenario file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OppoError(f"scenario {path} is not UTF-8 text: save it as UTF-8") from None


def load_scenario(name_or_path: str | Path, overrides: Overrides = ()) -> Scenario:
    """Read, translate, override and check a scenario.

    Args:
        name_or_path: a shipped name, or a path to a YAML file.
        overrides: field → value, or ``a.b=c`` each, the value in YAML; later ones win over earlier ones, all
            of them over the file.

    Raises OppoError in one sentence: the file, the field, the given value and what is allowed; of several
    problems the first, and how many more there are.
    """
    path = find_scenario(name_or_path)
    shipped = path.parent == SHIPPED_FOLDER
    where = path.stem if shipped else str(path)
    data = parse_yaml(read_scenario_text(path), where)
    scenario = scenario_from_plain(data, override_texts(overrides), where=where, default_name=path.stem)
    # A shipped scenario names no files of its own: what the command line names for it lies where the
    # user is.
    return remember_origin(scenario, None if shipped else path.parent, where, scenario.translations)


def scenario_from_plain(
    data: Any,
    overrides: Sequence[str] = (),
    *,
    where: str = "scenario",
    default_name: str = "scenario",
    base_dir: Path | None = None,
    given_as: Mapping[str, str] | None = None,
) -> Scenario:
    """The same from data as YAML gives it. ``where`` names it in errors; ``given_as``: of data that is a
    scenario's, as that remembers it. Raises OppoError."""
    if not isinstance(data, dict):
        raise OppoError(
            f"{where} {'is empty' if data is None else 'is not a mapping'}: start it with 'format: {FORMAT}'"
        )
    if data.get("format") != FORMAT:
        found = f"format is {show_value(data['format'])}" if "format" in data else "format is missing"
        raise OppoError(f"{where}: {found} but must be {FORMAT}")
    canonical = frozenset(Scenario.model_fields)
    parsed = [parse_override(text) for text in overrides]
    translated = _in_file(where, data, canonical)
    merged, over = overridden(translated.data, parsed, canonical)
    merged.setdefault("name", default_name)
    names = {**(given_as or {}), **translated.given_as}
    try:
        merged, names, engines = with_engines(merged, translated.data, over.data, names, over.given_as)
        stated = merged
        merged = with_split(merged)
    except OppoError as error:
        raise OppoError(f"{where}: {error}") from None
    if (field := overruled(over.data, stated, merged)) is not None:
        about = [override for override in parsed if override.path[-1] == field.rpartition(".")[2]]
        said = " --set ".join(override.text for override in about or parsed)
        raise OppoError(
            f"--set {said}: {field} is what cluster.split decides, which is"
            f" {show_value(merged['cluster']['split'])}: set cluster.split, or cluster.split=null with every"
            " field that it stands for"
        )
    problems = list(_problems(merged))
    if problems:
        raise OppoError(_one_sentence(problems, where, parsed, over, names))
    scenario = Scenario.model_validate_json(json.dumps(merged), strict=True)
    sentences = (*translated.sentences, *over.sentences, *engines, *sync_sentence(stated, merged))
    decided = {field: name for field, name in names.items() if field in DECIDED}
    return remember_origin(scenario, base_dir, where, sentences, decided)


def _in_file(where: str, data: Plain, canonical: frozenset[str]) -> Translated:
    try:
        return translate(data, canonical)
    except OppoError as error:
        raise OppoError(f"{where}: {error}") from None


def _problems(data: Plain) -> Iterator[ScenarioProblem]:
    of_nemo_rl = is_a_model_of_nemo_rl(data.get("policy"))
    if of_nemo_rl:
        ours = {setting for each in SHIPPED.values() for setting in each.Settings.model_fields}  # translated
        model = {name: value for name, value in data["policy"].items() if name not in ours}
        yield ScenarioProblem(
            ("policy",),
            "policy is the scheduling policy here (policy: sequential), not NeMo RL's model; of it"
            f" {not_read(list(settings_of('policy', model)))}",
        )
    try:
        Scenario.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        found = problems_of(error, data, model_schema())
        placed = [_with_place(problem, data) for problem in found]
        others = [each for each in placed if _of_a_framework(each, data)]
        lone = [each for each in placed if _of_nowhere(each, data)]
        others += lone if others or len(lone) > 1 else []
        keys = [str(each.path[0]) for each in placed if each in others]
        for problem in placed:
            if problem not in others:
                yield problem
            elif str(problem.path[0]) == keys[0]:
                settings = [name for key in keys for name in settings_of(key, data[key])]
                yield ScenarioProblem(problem.path, not_read(settings))
    policy = data.get("policy", {})
    if isinstance(policy, str):
        policy = {"name": policy}
    if not of_nemo_rl and isinstance(policy, dict) and isinstance(policy.get("name", ""), str):
        yield from _policy_problems(
            policy_name(data),
            {k: v for k, v in policy.items() if k != "name"},
            ("policy",),
            ("policy", "name"),
        )
    policies = data.get("policies", {})
    for name, settings in policies.items() if isinstance(policies, dict) else ():
        if isinstance(settings, dict):
            yield from _policy_problems(name, settings, ("policies", name), ("policies", name))


def _policy_problems(
    name: str, settings: Plain, place: tuple[str, ...], name_place: tuple[str, ...]
) -> Iterator[ScenarioProblem]:
    if name in SHIPPED:
        model = SHIPPED[name].Settings
        try:
            model.model_validate_json(json.dumps(settings), strict=True)
        except ValidationError as error:
            found = problems_of(error, settings, model.model_json_schema(), place, f"policy '{name}'")
            yield from map(_elsewhere, found)
    elif ":" not in name:
        # A class in a file is looked at when it is built: reading a scenario runs no code of yours.
        try:
            check_settings(name, settings)
        except OppoError as error:
            yield ScenarioProblem(name_place, str(error))


def _of_a_framework(problem: ScenarioProblem, data: Plain) -> bool:
    """Whether it is a setting, or a section, of another framework that is not translated."""
    key = str(problem.path[0]) if len(problem.path) == 1 else ""
    section, dot, _ = key.partition(".")
    if key not in data or section in Scenario.model_fields:
        return False
    return is_a_flat_one(key) or ((bool(dot) or isinstance(data[key], dict)) and is_of_a_framework(section))


def _of_nowhere(problem: ScenarioProblem, data: Plain) -> bool:
    """Whether it is an unknown field at the top that is near to no other."""
    unknown = (
        len(problem.path) == 1 and problem.path[0] in data and problem.path[0] not in Scenario.model_fields
    )
    return unknown and ": there are " in problem.sentence


def _with_place(problem: ScenarioProblem, data: Plain) -> ScenarioProblem:
    """For an unknown field: the section it belongs into; for a value where a section belongs, the field of
    that name that takes one."""
    key = str(problem.path[0]) if problem.path else ""
    if len(problem.path) != 1 or key not in data:
        return _elsewhere(problem)
    if key in Scenario.model_fields:
        choice = "" if isinstance(data[key], dict | list) else likely_choice(key)
        mapping = "must be a mapping" in problem.sentence
        return problem._replace(sentence=f"{problem.sentence}; {choice}") if mapping and choice else problem
    if hint := likely_elsewhere(problem.path, ()):
        return ScenarioProblem(problem.path, unknown_field(problem.path, (), hint=hint))
    return problem


def _elsewhere(problem: ScenarioProblem) -> ScenarioProblem:
    """For an unknown field without a near sibling: one of that name in another section, before a list."""
    said, listed, _ = problem.sentence.partition(": there ")
    if not (listed and said.startswith("unknown field ")):
        return problem
    of_policy = len(problem.path) == 2 and problem.path[0] == "policy"
    hint = likely_elsewhere(problem.path, ()) or said_by(".".join(map(str, problem.path)))
    if of_policy and (have := of_other_policies(setting := str(problem.path[1]))):
        hint = f"{have}, or policies.NAME.{setting} where policies are compared"
    return problem._replace(sentence=f"{said}: {hint}") if hint else problem


def _one_sentence(
    problems: Sequence[ScenarioProblem],
    where: str,
    overrides: Sequence[Override],
    over: Translated,
    given_as: dict[str, str],
) -> str:
    # What was just typed is the likelier mistake: name it first.
    set_by = [(problem, _override_of(problem, overrides, over)) for problem in problems]
    problem, override = next((pair for pair in set_by if pair[1] is not None), set_by[0])
    sentence = problem.sentence
    path = dotted(problem.path)
    if path in given_as:
        sentence = sentence.replace(path, f"{path} (given as {given_as[path]})", 1)
    if override:
        where = f"--set {override.text}"
    elif overrides:
        where = " ".join((where, "with", *(f"--set {each.text}" for each in overrides)))
    return f"{where}: {sentence}{more_than_one(problems)}"


def _override_of(
    problem: ScenarioProblem, overrides: Sequence[Override], over: Translated
) -> Override | None:
    names = {alias: tuple(target.split(".")) for target, alias in over.given_as.items()}

    def sets(override: Override) -> bool:
        path = names.get(".".join(override.path), override.path)
        shorter = min(len(path), len(problem.path))
        return shorter > 0 and problem.path[:shorter] == path[:shorter]

    return next(filter(sets, reversed(overrides)), None)
