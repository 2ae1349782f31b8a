"""Asynchronous modes of other frameworks, as docs/policies.md tells them, held against their code: names
that stand in it, and what single functions of it answer when they are asked apart from the rest.

    python experiments/framework_modes.py verl=TREE AReaL=TREE slime=TREE NeMo-RL=TREE

Each ``TREE`` is the unpacked source of the version in ``oppo_sim/tune/frameworks/names`` (see
framework_names.py). Writes ``tests/framework_modes.json``, which tests/test_framework_modes.py reads; only
names and answers are stored. Ends with 1 if a name or an answer is not as told.
"""

import __future__

import ast
import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments.framework_names import class_names
from oppo_sim.tune.frameworks.stored import stored_names

STORED = Path(__file__).resolve().parent.parent / "tests" / "framework_modes.json"

Names = Mapping[str, tuple[str, ...]]
"""File of the tree → words that stand in it."""
NAMES: Mapping[str, Names] = {
    "verl": {
        "verl/trainer/ppo/v1/trainer_separate_async.py": ("separate_async", "parameter_sync_step"),
        "verl/trainer/ppo/v1/replay_buffer.py": ("wait", "drop", "global_steps"),
        "verl/experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml": (
            "async_training", "staleness_threshold", "partial_rollout", "trigger_parameter_sync_step",
            "require_batches",
        ),
        "verl/experimental/fully_async_policy/fully_async_main.py": ("fully_async_policy",),
        "verl/experimental/one_step_off_policy/main_ppo.py": ("one_step_off_policy",),
        "verl/checkpoint_engine/base.py": ("abort_replicas", "resume_generation_replicas"),
    },
    "AReaL": {
        "areal/api/cli_args.py": ("max_head_offpolicyness", "max_concurrent_rollouts"),
        "areal/infra/staleness_manager.py": ("StalenessManager",),
        "areal/infra/workflow_executor.py": ("BatchTaskDispatcher", "wait_results"),
        "areal/infra/remote_inf_engine.py": ("abort", "pause_generation"),
    },
    "slime": {
        "train_async.py": ("train", "update_weights_interval"),
        "slime/rollout/fully_async_rollout.py": ("AsyncRolloutWorker", "generate_rollout_fully_async"),
        "slime/utils/arguments.py": ("--partial-rollout", "--update-weights-interval"),
        "slime/backends/sglang_utils/sglang_engine.py": ("pause_generation", "flush_cache"),
    },
    "NeMo-RL": {
        "nemo_rl/algorithms/async_utils/trajectory_collector.py": (
            "AsyncTrajectoryCollector", "prepare_for_refit", "recompute_kv_cache_after_weight_updates",
        ),
        "nemo_rl/algorithms/async_utils/staleness_sampler.py": (
            "in_order", "weight_fifo", "ready_first", "windowed", "max_lookahead_versions",
            "max_staleness_versions",
        ),
        "nemo_rl/algorithms/single_controller_utils/config.py": ("sampler", "AsyncRLConfig", "async_rl"),
        "nemo_rl/algorithms/grpo.py": ("async_grpo", "max_trajectory_age_steps"),
        "nemo_rl/algorithms/ppo.py": ("async_ppo", "max_trajectory_age_steps"),
    },
}  # fmt: skip
OPTIONS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "NeMo-RL": (("nemo_rl/algorithms/grpo.py", "GRPOConfig", "grpo."),),
}
"""File, class and prefix of further options, which the stored names of the advice do not hold."""


def taken(tree: Path, file: str, name: str, **around: Any) -> Any:
    """A function (``Class.name`` or ``name``) of a file by itself, without decorators and annotations, among
    what ``around`` gives it."""
    body: list[Any] = ast.parse((tree / file).read_text("utf-8")).body
    for part in name.split("."):
        node = next(each for each in body if getattr(each, "name", None) == part)
        body = node.body
    node.decorator_list = []
    code = compile(
        ast.Module([node], []), file, "exec", __future__.annotations.compiler_flag, dont_inherit=True
    )
    exec(code, around)
    return around[node.name]


def assigned(tree: Path, file: str, name: str) -> Callable[..., Any]:
    """The value that a file gives to ``name`` (no constant), of the names in it."""
    for node in ast.walk(ast.parse((tree / file).read_text("utf-8"))):
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant):
            continue
        if ast.unparse(node.targets[0]) == name:
            code = compile(ast.Expression(node.value), file, "eval")
            return lambda **known: eval(code, dict(known))
    raise SystemExit(f"{file} assigns nothing to {name}")


# ---- verl --------------------------------------------------------------------------------------------------

_BUFFER = "verl/trainer/ppo/v1/replay_buffer.py"
_METRICS = "verl/trainer/ppo/v1/trainer_base.py"
_ROLLOUTER = "verl/experimental/fully_async_policy/fully_async_rollouter.py"


def verl_oldest_first(tree: Path) -> bool:
    select = taken(tree, _BUFFER, "ReplayBuffer._select_prompt_uids")
    begun = {"a": 7, "b": 3, "c": 5, "d": 3}
    buffer = Stub(prompt_global_steps={"train": begun}, partitions={"train": {}})
    return sorted(select(buffer, "train", {"a", "b", "c", "d"}, 3)[0]) == ["b", "c", "d"]


def verl_waits(tree: Path) -> bool:
    enough = taken(tree, _BUFFER, "ReplayBufferAsync._has_enough_samples")

    def waits(staleness: int, threshold: int) -> bool:
        buffer = Stub(
            max_off_policy_threshold=threshold,
            max_off_policy_strategy="wait",
            pending_keys={"train": set()},
            running_keys={"train": {"a"}},
            prompt_global_steps={"train": {"a": 10 - staleness}},
        )
        return not enough(buffer, 10, "train", 1, {"b"})

    return all(waits(old, most) == (old + 1 >= most) for old in range(6) for most in range(1, 6))


def verl_drops(tree: Path) -> bool:
    stale = taken(tree, _BUFFER, "ReplayBufferAsync._stale_terminal_keys")
    buffer = Stub(
        max_off_policy_threshold=3,
        max_off_policy_strategy="drop",
        prompt_global_steps={"train": {str(age): 10 - age for age in range(6)}},
        finished_keys={"train": {str(age) for age in range(6)}},
    )
    return bool(stale(buffer, 10, "train") == {"3", "4", "5"})


def verl_metrics(tree: Path) -> bool:
    # The weights that are trained in step 9 are those of step 8.
    known = {"global_steps": 9, "max_global_steps": 7, "min_global_steps": 4}
    found = {name: assigned(tree, _METRICS, name)(**known) for name in (
        "trajectory_spans", "trajectory_staleness", "trajectory_staleness_worst",
    )}  # fmt: skip
    return list(found.values()) == [4, 1, 4]


def verl_share(tree: Path) -> bool:
    most = assigned(tree, _ROLLOUTER, "self.max_required_samples")
    own = Stub(
        required_samples=8,
        staleness_threshold=0.5,
        config=Stub(async_training=Stub(trigger_parameter_sync_step=4)),
    )
    return bool(most(self=own, int=int) == 8 * 4 * 1.5)


# ---- AReaL -------------------------------------------------------------------------------------------------


def areal_admits(tree: Path) -> bool:
    capacity = taken(tree, "areal/infra/staleness_manager.py", "StalenessManager.get_capacity")
    dice = random.Random(0)
    for _ in range(200):
        bound, version, batch = dice.randrange(5), dice.randrange(9), dice.randrange(1, 9)
        admitted, most = dice.randrange(40), dice.randrange(1, 60)
        running = dice.randint(0, admitted)
        manager = Stub(
            lock=threading.Lock(),
            version_provider=Stub(get_version=lambda version=version: version),
            max_concurrent_rollouts=most,
            max_staleness=bound,
            consumer_batch_size=batch,
            rollout_stat=Stub(running=running, accepted=admitted - running),
        )
        ours = batch * (version + bound + 1) - admitted
        if capacity(manager) != min(ours, most - running):
            return False
    return True


def areal_oldest_first(tree: Path) -> bool:
    file = "areal/infra/workflow_executor.py"
    wait = taken(tree, file, "BatchTaskDispatcher.wait_results", time=time, random=random)
    results = {f"{n}": Stub(create_time=(n * 7) % 11, task_id=f"{n}", data=(n * 7) % 11) for n in range(11)}
    dispatcher = Stub(
        _result_cv=threading.Condition(),
        _pending_results=results,
        _active_task_ids=set(results),
        _check_thread_exception=lambda: None,
    )
    return sorted(wait(dispatcher, 4, timeout=1.0)) == [0, 1, 2, 3]


# ---- slime -------------------------------------------------------------------------------------------------

_WORKER = "slime/rollout/fully_async_rollout.py"


def slime_in_order_of_completion(tree: Path) -> bool:
    import queue

    popped = taken(tree, _WORKER, "AsyncRolloutWorker.get_completed_groups", queue=queue)
    finished: Any = queue.Queue()
    for group in (5, 1, 3):
        finished.put((group, []))
    return [group for group, _ in popped(Stub(output_queue=finished), 2)] == [5, 1]


def slime_aborted_go_back(tree: Path) -> bool:
    aborted = object()
    called = taken(
        tree,
        _WORKER,
        "AsyncRolloutWorker._make_done_cb",
        logger=None,
        Sample=Stub(Status=Stub(ABORTED=aborted)),
    )
    back: list[Any] = []
    group = [Stub(status=aborted)]
    called(Stub(data_buffer=Stub(add_samples=back.extend)), 0)(Stub(result=lambda: group))
    return back == [group]


def slime_pauses_by_abort(tree: Path) -> bool:
    # SGLang's default mode of a pause, which is not named here, is to abort.
    sent: list[Any] = []

    def post(url: str, json: Any) -> Any:
        sent.append((url.rpartition("/")[2], json))
        return Stub(raise_for_status=lambda: None)

    file = "slime/backends/sglang_utils/sglang_engine.py"
    pause = taken(tree, file, "SGLangEngine.pause_generation", requests=Stub(post=post))
    pause(Stub(node_rank=0, server_host="h", server_port=1))
    return sent == [("pause_generation", {})]


# ---- NeMo RL -----------------------------------------------------------------------------------------------

_SAMPLER = "nemo_rl/algorithms/async_utils/staleness_sampler.py"
_COLLECTOR = "nemo_rl/algorithms/async_utils/trajectory_collector.py"


def _selected(tree: Path, sampler: str, weights: list[int], targets: list[int], now: int) -> list[int]:
    select = taken(tree, _SAMPLER, f"{sampler}.select")

    async def finalize(valid: list[int], least: int, most: int) -> Any:
        return valid[:most]

    own = Stub(
        _buffer=Stub(start_weight_list=weights, target_step_list=targets, ready_list=[True] * len(weights)),
        _validate_group_bounds=lambda *_: None,
        _finalize_selection=finalize,
        max_staleness_versions=2,
        sample_freshest_first=False,
    )
    found: Any = asyncio.run(select(own, current_train_weight=now, min_prompt_groups=1, max_prompt_groups=9))
    return list(found)


def nemo_admits(tree: Path) -> bool:
    for version in range(5):
        for window in range(4):
            slept: list[int] = []

            async def sleep(_: float, slept: list[int] = slept) -> None:
                slept.append(1)
                raise TimeoutError

            admit = taken(
                tree, _SAMPLER, "_GatedSampler.admit", asyncio=Stub(sleep=sleep), _GATE_POLL_SECONDS=0
            )
            own = Stub(_dispatch_index=-1, _gate_window=window, _stamp=lambda: None)
            while not slept:
                try:
                    asyncio.run(admit(own, trainer_version_fn=lambda version=version: version))
                except TimeoutError:
                    break
            if own._dispatch_index + 1 != version + window + 1:  # batches, as B · (updates + bound + 1)
                return False
    return True


def nemo_orders(tree: Path) -> bool:
    weights, targets = [1, 3, 2, 2, 0], [3, 4, 4, 3, 2]
    return (
        _selected(tree, "InOrderSampler", weights, targets, 3) == [0, 3]
        and _selected(tree, "WeightFifoSampler", weights, targets, 3) == [0]
        and _selected(tree, "ReadyFirstSampler", weights, targets, 3) == [0, 1, 2, 3, 4]
        and _selected(tree, "WindowedSampler", weights, targets, 3) == [0, 1, 2, 3]
    )


def nemo_refits(tree: Path) -> bool:
    def waited(in_flight: bool) -> bool:
        told: list[str] = []
        refit = taken(
            tree, _COLLECTOR, "AsyncTrajectoryCollector.prepare_for_refit", time=time, print=lambda *_: None
        )
        policy = {"generation": {"backend": "vllm", "vllm_cfg": {"async_engine": True}}}
        refit(
            Stub(
                _refit_pause_cleared=Stub(clear=lambda: None),
                master_config=Stub(policy=policy),
                async_config=Stub(in_flight_weight_updates=in_flight),
                _inflight_threads=set(),
                wait_for_pending_generations=lambda: told.append("waited"),
            )
        )
        return told == ["waited"]

    return waited(False) and not waited(True)


ANSWERS: Mapping[str, Mapping[str, Callable[[Path], bool]]] = {
    "verl": {
        "V1 trains the oldest submitted prompts first": verl_oldest_first,
        "wait holds the trainer while one in flight has a staleness of the threshold − 1 or more": verl_waits,
        "drop evicts finished prompts of a staleness of the threshold or more": verl_drops,
        "trajectory_staleness: newest version; worst: oldest; spans: newest − oldest + 1": verl_metrics,
        "staleness_threshold is a share of what is trained between two updates": verl_share,
    },
    "AReaL": {
        "capacity is B · (updates + bound + 1) − admitted, and at most what may run at once": areal_admits,
        "the oldest submitted are trained first": areal_oldest_first,
    },
    "slime": {
        "fully_async_rollout trains in order of completion": slime_in_order_of_completion,
        "aborted groups go back to the buffer": slime_aborted_go_back,
        "an update pauses engines without a mode, which aborts": slime_pauses_by_abort,
    },
    "NeMo-RL": {
        "gated samplers admit B · (updates + bound + 1)": nemo_admits,
        "in_order goes by target step, weight_fifo by oldest weights, ready_first by readiness, windowed"
        " leaves out what is too old": nemo_orders,
        "a refit waits for all that is submitted unless updates are in flight": nemo_refits,
    },
}


def facts(framework: str, tree: Path) -> dict[str, Any]:
    """What the test reads."""
    known = stored_names(framework)
    names = {
        word: file
        for file, words in NAMES[framework].items()
        for word in words
        if word in (tree / file).read_text("utf-8") or word in file
    }
    for file, root, prefix in OPTIONS.get(framework, ()):
        found = class_names({file: (tree / file).read_text("utf-8")}, root, prefix)
        names |= {name: file for name, _ in found if ".async_" in name}
    return {
        "version": known.version,
        "date": known.date,
        "source": known.source,
        "names": dict(sorted(names.items())),
        "answers": {told: asked(tree) for told, asked in ANSWERS[framework].items()},
    }


def main() -> int:
    trees = dict(given.split("=", 1) for given in sys.argv[1:])
    if set(trees) != set(NAMES):
        raise SystemExit(f"give a tree of each: {' '.join(f'{name}=TREE' for name in NAMES)}")
    found = {framework: facts(framework, Path(tree)) for framework, tree in trees.items()}
    STORED.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")
    wrong = [
        *(f"{each}: no {word} in {file}" for each, files in NAMES.items() for file, words in files.items()
          for word in words if word not in found[each]["names"]),
        *(f"{each}: not so: {told}" for each in found
          for told, so in found[each]["answers"].items() if not so),
    ]  # fmt: skip
    print(
        "\n".join(wrong)
        or f"{sum(len(each['names']) + len(each['answers']) for each in found.values())} hold"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
