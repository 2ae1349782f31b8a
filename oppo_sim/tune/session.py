"""``tune``: search, look again on fresh seeds, sweep around the choice, and put it into words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.progress import OnProgress, Progress, unheard
from oppo_sim.report.labels import capital, counted, stopped
from oppo_sim.run_kinds import TUNING
from oppo_sim.runs.evaluate import forget
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.kv_room import kv_warnings
from oppo_sim.runs.machine import EXACT, MachineDraws
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.edges import edge_records, edge_sentences
from oppo_sim.sweep.resolve import Resolver
from oppo_sim.tune import advice as words
from oppo_sim.tune import folder as files
from oppo_sim.tune.beyond import chosen_edges
from oppo_sim.tune.check import (
    RUNNERS_UP,
    Swept,
    beside,
    chosen_of,
    given_settings,
    interactions,
    knob_effects,
    nearest_of,
    sweep_knobs,
    within,
)
from oppo_sim.tune.commands import next_commands
from oppo_sim.tune.drawn import on_draws
from oppo_sim.tune.frameworks.catalog import advice_of
from oppo_sim.tune.frameworks.facts import recommended
from oppo_sim.tune.prepare import prepared
from oppo_sim.tune.request import (
    MEASURED_BY,
    UNIT_TEXT,
    Seeds,
    TuneRequest,
    bound_text,
    broken,
    identity,
    kv_limit,
    limit_text,
)
from oppo_sim.tune.search import Ended, SearchProblem, search
from oppo_sim.tune.space import Space
from oppo_sim.tune.trials import (
    Checked,
    Infeasible,
    Interaction,
    KnobEffect,
    PairedResult,
    SearchStore,
    Trial,
    Tuned,
    mean_cost,
    require_optuna,
)
from oppo_sim.tune.worlds import NOMINAL, Bench, World

SENSITIVITY_SEEDS = 5


@dataclass(frozen=True)
class _Searched:
    """Everything that later stages need of the search."""

    request: TuneRequest
    scenario: Scenario
    space: Space
    worlds: Sequence[World]
    problem: SearchProblem
    seeds: Seeds
    steps: int
    ended: Ended
    trials: Sequence[Trial]
    identity: Mapping[str, Any]


def run_tuning(request: TuneRequest, progress: OnProgress = unheard) -> Tuned:
    """Tune a scenario. In a folder that holds the same search, it goes on there; nothing is simulated twice.

    Ctrl-C (KeyboardInterrupt) leaves everything finished in the folder. Raises OppoError for what cannot be
    searched, where no setting can run at all, and where the folder holds something else. A search in which
    nothing keeps the bounds is a result (``infeasible``).
    """
    require_optuna()
    executor = Executor(request.executor, request.jobs, request.ray_address)
    forget()
    wanted = prepared(request)
    scenario, seeds, space = wanted.scenario, wanted.seeds, wanted.space
    worlds, steps = wanted.worlds, wanted.steps
    # Draws of the machine are of the scenario as given.
    resolvers = [
        Resolver(world.scenario, steps=steps, draws=request.draws if number == 0 else 0, drawn=world.draw)
        for number, world in enumerate(worlds)
    ]
    known = identity(request, scenario, files.inputs_digest(resolvers))
    with (
        SearchStore(request.folder, known, scenario.decisive(), replace=request.force) as store,
        Runner(executor) as runner,
    ):
        if request.folder is not None and not store.trials:
            files.remove(request.folder)
        bench = Bench(worlds, resolvers, store, runner)
        problem = SearchProblem(
            space, request.constraints, request.objective, request.robust, seeds.search, request.sampler_seed
        )
        _refuse_hopeless(problem, bench)
        ended = _searched(request, problem, bench, store, progress)
        tried = store.trials
        whole = _Searched(request, scenario, space, worlds, problem, seeds, steps, ended, tried, known)
        tuned = _concluded(whole, bench, progress)
        if request.folder is not None:
            files.write(tuned, request.folder, figures=request.figures)
        return tuned


def _searched(
    request: TuneRequest, problem: SearchProblem, bench: Bench, store: SearchStore, tell: OnProgress
) -> Ended:
    end = None if request.timeout_s is None else monotonic() + request.timeout_s
    ended = search(
        problem,
        bench,
        store,
        request.trials,
        lambda: end is not None and monotonic() >= end,
        lambda done, best: tell(
            Progress("search", done, request.trials, "" if best is None else best.setting.label)
        ),
    )
    if not any(trial.costs for trial in store.trials):
        if not store.trials:
            raise OppoError(
                f"no trial was finished within {request.timeout_s:g} s: give more time with --timeout-s"
            )
        reasons = Counter(trial.error for trial in store.trials)
        reason, count = reasons.most_common(1)[0]
        raise OppoError(
            f"none of the {len(store.trials)} settings tried can run; {count} of them because: {reason}"
        )
    return ended


def _refuse_hopeless(problem: SearchProblem, bench: Bench) -> None:
    """Raise OppoError before any work where no policy can run or a bound cannot be measured."""
    sentences = []
    for setting in problem.space.starts.values():
        try:
            parts = bench.parts(setting, 0)
        except OppoError as error:
            sentences.append(str(error))
            continue
        kv_limit(problem.constraints, parts)
        return
    raise OppoError(sentences[0])


def _concluded(searched: _Searched, bench: Bench, tell: OnProgress) -> Tuned:
    problem, trials, seeds = searched.problem, searched.trials, searched.seeds.fresh or searched.seeds.search
    if not any(trial.status == "ok" for trial in trials):
        return _nothing_feasible(searched, bench, "on the search's seeds")
    bench.on_run = lambda done, total: tell(Progress("fresh seeds", done, total))
    chosen, looked = chosen_of(problem, bench, trials, seeds)
    if chosen is None:
        where = (
            f"on {counted(len(seeds), 'fresh seed')}, on which {counted(len(looked), 'setting')} ran again"
        )
        return _nothing_feasible(searched, bench, where, looked)
    everything = beside(chosen, [*looked, *given_settings(bench, problem, seeds)])
    best = next(one for one in everything if one.checked is chosen)
    label = chosen.setting.label
    bench.on_run = lambda done, total: tell(Progress("draws of the machine", done, total, label))
    machine, everything = on_draws(bench, problem.cost, everything, best, seeds)
    everything = within(everything, searched.request.practical)
    best = next(one for one in everything if one.checked is chosen)
    bench.on_run = lambda done, total: tell(Progress("sensitivity", done, total, label))
    few, setting = seeds[:SENSITIVITY_SEEDS], chosen.setting
    swept = sweep_knobs(problem, bench, chosen, few)
    effects = knob_effects(problem, setting, swept, trials)
    found = _Found(
        best=best,
        others=[one for one in everything if one.checked is not chosen],
        machine=machine,
        swept=swept,
        effects=effects,
        together=interactions(problem, bench, chosen, effects, swept, few),
    )
    costs = {trial.number: mean_cost(trial, 0) for trial in trials if trial.status == "ok"}
    tried = [one for one in (best, *found.others) if one.keeps_bounds and one.checked.number is not None]
    nominal = min(tried, key=lambda one: costs[one.checked.number or 0])
    regrets = [
        {"world": world.name, "chosen": best.regrets[number], "nominal": nominal.regrets[number]}
        for number, world in enumerate(searched.worlds)
    ]
    knobs = searched.space.knobs[setting.policy]
    at_edge, command = chosen_edges(searched.request, bench.scenario(setting), knobs, setting)
    edge_lines = [stopped(capital(each), command) for each in edge_sentences(at_edge, command)]
    sections = _sections(searched, bench, best, nominal, found, edge_lines)
    return _tuned(
        searched, bench, sections, replace(found, regrets=regrets, edges=edge_records(at_edge, command))
    )


@dataclass(frozen=True)
class _Found:
    """What the stages after the search found; by default nothing that keeps all bounds."""

    best: PairedResult | None = None
    others: Sequence[PairedResult] = ()
    machine: MachineDraws = EXACT
    swept: Sequence[Swept] = ()
    effects: Sequence[KnobEffect] = ()
    together: Sequence[Interaction] = ()
    regrets: Sequence[Mapping[str, Any]] = ()
    edges: Sequence[Mapping[str, Any]] = ()
    infeasible: Infeasible | None = None


def _sections(
    searched: _Searched,
    bench: Bench,
    best: PairedResult,
    nominal: PairedResult,
    found: _Found,
    edge_lines: Sequence[str],
) -> dict[str, Sequence[str]]:
    """The advice in sentences, by heading; ``nominal``: the best setting of the scenario's own world."""
    problem, scenario, request = searched.problem, searched.scenario, searched.request
    setting, machine, others = best.checked.setting, found.machine, found.others
    names = [world.name for world in searched.worlds]
    limit = None
    if problem.constraints.kv_capacity is not None:
        limit = kv_limit(problem.constraints, bench.parts(setting, 0))
    learning = bench.resolve(setting, 0).learning
    drawn = words.unknowns(machine, learning, request.objective)
    given, row = bench.scenario(setting), best.checked.rows[0]
    step_warnings = sync_warnings(given, row[c.STEP_S])
    step_warnings += kv_warnings(given, row[c.COMPARED_KV_PEAK_TOKENS])
    moved = any(bench.resolve(one.checked.setting, 0).machine.placement for one in (best, *others))
    return {
        "What to set, and what to expect": [
            *words.summary_sentences(
                best, request.objective, searched.seeds, searched.steps, scenario.warmup_steps, drawn
            ),
            *words.to_reward_sentences(best, learning, request.objective),
            *words.constraint_sentences(problem.constraints, best, limit, len(names)),
            *words.beside_given(others, request.practical),
            *(f"{text}." for text in step_warnings),
        ],
        "How sure the choice is": [
            *words.alike_sentences(
                best,
                [one for one in others if one.checked.number is not None],
                searched.seeds,
                request.practical,
                request.objective,
                drawn,
            ),
            *words.machine_sentences(best, others, machine, learning, drawn),
        ],
        "Around the choice": [*words.knob_sentences(found.effects, found.together), *edge_lines],
        "Robustness": words.robust_sentences(request.robust, names, best, nominal),
        "What was searched": _searched_sentences(searched),
        "What these numbers are not": words.caveats(scenario, setting, request.objective, moved=moved),
    }


def _tuned(searched: _Searched, bench: Bench, sections: Mapping[str, Sequence[str]], found: _Found) -> Tuned:
    """The result in words (``sections``), as values and as tables."""
    scenario, folder, best = searched.scenario, searched.request.folder, found.best
    advice: dict[str, Any] = {
        "title": f"{'No advice' if best is None else 'Advice'} for {scenario.name}",
        "choice": None,
        "sections": sections,
        "worlds": found.regrets if len(found.regrets) > 1 else [],
        "frameworks": {},
        "next": [],
    }
    tuned_scenario = None
    if best is not None:
        setting = best.checked.setting
        tuned_scenario = bench.scenario(setting)
        choice = recommended(tuned_scenario, _built_policy(tuned_scenario))
        file = files.BEST if folder is None else folder / files.BEST
        objective = searched.request.objective
        advice |= {
            "choice": {
                **words.choice(best, tuned_scenario.policy.settings, objective, NOMINAL),
                "against_own": words.against_own(found.others),
            },
            "frameworks": advice_of(choice, searched.request.framework),
            "next": next_commands(searched.request, scenario, searched.space, file, setting.policy),
        }
    record = {
        **_record(searched, bench),
        **({"machine": found.machine.record()} if found.machine.sentence else {}),
        "chosen": None if best is None else files.plain_result(best),
        "others": [files.plain_result(one) for one in found.others],
        "knobs": [files.plain_effect(effect) for effect in found.effects],
        "edges": list(found.edges),
        "interactions": [asdict(one) for one in found.together],
        "regrets": found.regrets,
        "infeasible": found.infeasible
        and {**vars(found.infeasible), "nearest": found.infeasible.nearest.to_plain()},
        "advice": advice,
    }
    trials = files.trial_frame(searched.space, searched.trials, searched.problem, len(searched.worlds))
    return Tuned(
        scenario,
        tuned_scenario,
        best,
        found.others,
        found.effects,
        found.together,
        found.infeasible,
        trials,
        files.sensitivity_frame(found.swept),
        advice,
        record,
        folder,
    )


def _nothing_feasible(searched: _Searched, bench: Bench, where: str, looked: Sequence[Checked] = ()) -> Tuned:
    """``looked``: trials that kept all bounds until the fresh seeds, on which they are judged then."""
    again = {one.number: one for one in looked}
    trials = [
        replace(trial, measures=again[trial.number].measures, violations=again[trial.number].violations)
        for trial in searched.trials
        if trial.number in again
    ] or searched.trials
    nearest = nearest_of(trials) or next(trial for trial in trials if trial.costs)
    constraints = searched.problem.constraints
    binding = broken(nearest.violations)
    ran = [trial for trial in trials if trial.violations]
    parts = []
    for name in binding:
        limit = getattr(constraints, name)
        if name == "kv_capacity":
            limit = kv_limit(constraints, bench.parts(nearest.setting, 0))
        measured = bound_text(name, nearest.measures[MEASURED_BY[name]])
        parts.append(f"{measured} where {limit_text(name, limit)} is allowed")
    kept = [
        f"{name} is kept by {sum(trial.violations[name] <= 1e-12 for trial in ran)} of {len(ran)}"
        for name in constraints.measured
    ]
    sentence = (
        f"No setting keeps all bounds {where}. The nearest is {nearest.setting.label}"
        + (f": {' and '.join(parts)}" if parts else "")
        + f". Each bound alone: {', '.join(kept)}. Loosen what binds, or search other policies or more"
        " trials."
    )
    sections = {"Nothing keeps all bounds": [sentence], "What was searched": _searched_sentences(searched)}
    return _tuned(searched, bench, sections, _Found(infeasible=Infeasible(nearest, binding, sentence)))


def _searched_sentences(searched: _Searched) -> list[str]:
    counts = Counter(trial.status for trial in searched.trials)
    seeds = len(searched.seeds.search)
    parts = [f"{counts['ok']} kept all bounds"]
    parts += [f"{counts['infeasible']} broke one"] if counts["infeasible"] else []
    parts += [f"{counts['stopped']} were stopped early, clearly worse"] if counts["stopped"] else []
    parts += [f"{counts['failed']} cannot run"] if counts["failed"] else []
    ended = {
        "trials": "",
        "time": " The time was up before all trials were made.",
        "space": " There are no further settings to try.",
    }
    number = len(searched.trials)
    found = [
        f"{number} setting{'s' if number != 1 else ''} of"
        f" {', '.join(searched.space.policies)} on {seeds} common"
        f" seed{'s' if seeds > 1 else ''}, least {UNIT_TEXT[searched.request.objective]}:"
        f" {', '.join(parts)}.{ended[searched.ended]}"
    ]
    left_out: dict[str, list[str]] = {}
    for policy, why in searched.space.left_out.items():
        left_out.setdefault(why, []).append(policy)
    found += [f"Left out: {', '.join(policies)} ({why})." for why, policies in left_out.items()]
    failures = Counter(trial.error for trial in searched.trials if trial.status == "failed")
    found += [f"Cannot run ({count}): {error}" for error, count in failures.most_common(3)]
    fields = {knob.field for knobs in searched.space.knobs.values() for knob in knobs}
    machine = sorted(field for field in fields if not field.startswith("policy."))
    if searched.space.splits:
        found.append(f"{searched.space.splits}.")
    if machine:
        found.append(
            f"{', '.join(machine)} changes the machine itself: speed-ups are against sequential on"
            " the same machine."
        )
    return found


def _built_policy(scenario: Scenario) -> Any:
    from oppo_sim.policies.interface import Batch
    from oppo_sim.policies.registry import make_policy

    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    return make_policy(scenario.policy.name, batch, scenario.policy.settings, scenario.base_dir)


def _record(searched: _Searched, bench: Bench) -> dict[str, Any]:
    from oppo_sim.manifest import versions

    counts = Counter(trial.status for trial in searched.trials)
    failures = Counter(trial.error for trial in searched.trials if trial.status == "failed")
    return {
        "format": files.FORMAT,
        "kind": TUNING,
        "scenario": searched.scenario.name,
        **searched.identity,
        "policies": list(searched.space.policies),
        "left_out": dict(searched.space.left_out),
        "splits": searched.space.splits,
        "space": searched.space.described(),
        "world_names": [world.name for world in searched.worlds],
        "seeds": list(searched.seeds.search),
        "fresh_seeds": list(searched.seeds.fresh),
        "steps": searched.steps,
        "warmup_steps": searched.scenario.warmup_steps,
        "trials": len(searched.trials),
        "statuses": {name: counts[name] for name in ("ok", "infeasible", "stopped", "failed")},
        "failures": [{"error": error, "trials": count} for error, count in failures.most_common()],
        "ended": searched.ended,
        "runs_by_engine": dict(sorted(bench.engines.items())),
        "runners_up": RUNNERS_UP,
        **({"practical": searched.request.practical} if searched.request.practical else {}),
        "versions": versions(),
    }
