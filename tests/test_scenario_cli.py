"""``oppo scenario`` as a user meets it."""

import io
import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import click
import jsonschema
import pytest

from oppo_sim.cli.main import run
from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.devices import DEVICES
from oppo_sim.costs.models import MODELS
from oppo_sim.fast.choose import run_summary
from oppo_sim.policies import Policy, listing, registry
from oppo_sim.policies.registry import ENTRY_POINT_GROUP, SHIPPED, check_settings
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.scenario.schema import Scenario

MINE = """
format: oppo-scenario/1
name: mine
steps: 3
train_batch_size: 4
max_response_length: 128
trace: {synth: {parameters: {mu: 3.0, sigma: 0.5}, rows: 50}, prompt_length: 16}
costs: {kind: linear, decode: {fixed: 0.01}}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


def oppo(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["scenario", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_list_names_every_shipped_scenario_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = oppo(capsys, "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == shipped_scenarios()
    assert all(line.endswith(".") for line in out.splitlines())


def test_init_writes_a_commented_copy_and_never_overwrites(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oppo(capsys, "init", "h200-single")[0] == 0
    written = Path("h200-single.yaml").read_text()
    assert written.startswith("# One H200")
    assert load_scenario("h200-single.yaml") == load_scenario("h200-single")
    code, out, err = oppo(capsys, "init", "h200-single")
    assert (code, out) == (2, "")
    assert err.startswith(
        "oppo: error: h200-single.yaml exists: choose another name, or overwrite it with --force"
    )
    assert oppo(capsys, "init", "paper-gsm8k-7b", "-o", "h200-single.yaml", "--force")[0] == 0
    assert load_scenario("./h200-single.yaml").name == "paper-gsm8k-7b"


def test_init_without_a_name_writes_a_file_that_validates(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert oppo(capsys, "init", "-o", "new.yaml")[0] == 0
    code, out, err = oppo(capsys, "validate", "new.yaml")
    assert (code, err) == (0, "")
    assert out == "new.yaml: valid (my-run, 100 steps, 1 policy)\n"
    assert oppo(capsys, "init", "-o", "-")[1] == Path("new.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init", "h200-singel"], "did you mean h200-single"),
        (["init", "-o", "no/such/folder/x.yaml"], "folder no/such/folder does not exist"),
        (["show", "missing.yaml"], "there is no file missing.yaml: check the path"),
        (
            ["show", "mine.yaml", "--set", "stepps=3"],
            "--set stepps=3: unknown field stepps: did you mean 'steps'?",
        ),
        (["show", "mine.yaml", "--schema"], "--schema is the same for every scenario"),
        (["show"], "Missing argument 'NAME_OR_PATH'"),
        (["validate"], "Missing argument 'PATH'"),
        (["validate", "."], "is a folder"),
        (["validate", "mine.yaml", "--set", "policy=async"], "give training its own devices"),
        (["validate", "mine.yaml", "--set", "policies={async: {}}"], "give training its own devices"),
        (["validate", "mine.yaml", "--set", "trace={name: nowhere}"], "nowhere"),
        (["validate", "mine.yaml", "--set", "trace={path: nowhere.csv}"], "nowhere.csv"),
        (
            ["validate", "mine.yaml", "--set", "costs={kind: profile, path: nowhere.json}"],
            "nowhere.json: there is no such file, check the path",
        ),
        (["show", "mine.yaml", "--zzz"], "No such option '--zzz'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = oppo(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("oppo: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_show_writes_defaults_out_and_says_what_was_translated(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = oppo(capsys, "show", "mine.yaml", "--set", "stream_interval=64")
    assert code == 0
    assert out.startswith("# mine.yaml, content hash ")
    assert "# train_batch_size: 4 was read as rollout_batch_size: 4\n" in out
    assert "# stream_interval: 64 was read as policy.chunk_size: 64\n" in out
    Path("shown.yaml").write_text(out)
    assert load_scenario("shown.yaml") == load_scenario("mine.yaml", ["policy.chunk_size=64"])
    assert load_scenario("shown.yaml") == load_scenario("mine.yaml", {"policy.chunk_size": 64})


def test_show_as_json_is_the_same_scenario(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = oppo(capsys, "show", "mine.yaml", "--json")
    assert code == 0
    assert json.loads(out) == load_scenario("mine.yaml").to_plain()
    assert err == "note: train_batch_size: 4 was read as rollout_batch_size: 4\n"


def test_show_schema_is_a_schema_that_fits(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = oppo(capsys, "show", "--schema")
    assert code == 0
    jsonschema.validate(load_scenario("mine.yaml").to_plain(), json.loads(out))


def test_validate_says_what_is_likely_not_meant(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = oppo(capsys, "validate", "mine.yaml", "--set", "policies={april: {}}")
    assert (code, out) == (0, "mine.yaml: valid (mine, 3 steps, 2 policies)\n")
    assert "note: policy 'oppo' controls overcommit by rewards, but rewards.kind is none" in err


def test_devices_and_models_are_listed_as_the_costs_know_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = oppo(capsys, "devices")
    assert code == 0
    assert {line.split()[0] for line in out.split("\n\n")[0].splitlines()} == set(DEVICES)
    assert any(line.split()[:5] == ["H200", "141.0", "GiB", "4.80", "TB/s"] for line in out.splitlines())
    code, out, _ = oppo(capsys, "models")
    assert {line.split()[0] for line in out.split("\n\n")[0].splitlines()} == set(MODELS)
    assert any(line.split()[:2] == ["qwen2.5-7b", "7.62"] for line in out.splitlines())
    for name in ("devices", "models"):
        assert {one["name"] for one in json.loads(oppo(capsys, name, "--json")[1])} == set(
            DEVICES if name == "devices" else MODELS
        )


def test_init_for_a_model_runs_and_says_where_numbers_are_from(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8", "--device", "h200", "--framework", "VERL")
    assert oppo(capsys, "init", *given, "-o", "run.yaml")[0] == 0
    text = Path("run.yaml").read_text()
    assert "NVIDIA H200" in text
    assert "oppo tune run.yaml --framework" in text
    assert "oppo fit LOG --scenario run.yaml" in text
    loaded = load_scenario("run.yaml")
    assert (loaded.split.replicas, loaded.split.tensor_parallel, loaded.num_gpus) == (8, 1, 8)
    assert loaded.costs.rollout.host == "vllm-async"  # type: ignore[union-attr]  # roofline, as written
    assert oppo(capsys, "validate", "run.yaml")[0] == 0
    small = ("--model", "qwen2.5-3b", "--gpus", "4", "--device", "A100-80", "--framework", "trl")
    assert oppo(capsys, "init", *small, "-o", "small.yaml")[0] == 0
    assert load_scenario("small.yaml").rollout.batching == "static"
    # Activations recomputed and an engine that sleeps, where it would not fit without.
    tight = ("--model", "qwen2.5-14b", "--gpus", "8", "--device", "H100", "--framework", "verl")
    assert oppo(capsys, "init", *tight, "-o", "tight.yaml")[0] == 0
    loaded = load_scenario("tight.yaml")
    assert loaded.training.gradient_checkpointing
    assert loaded.costs.rollout.sleep_mode  # type: ignore[union-attr]
    for arguments, words in (
        (("--model", "qwen2.5-7b", "--gpus", "1"), "one micro-batch"),  # not a degree that divides nothing
        (("--model", "qwen2.5-7b"), "Missing option --gpus, which is asked for on a terminal only"),
        (("--model", "qwen2.5-7c", "--gpus", "8"), "did you mean 'qwen2.5-7b'?"),
        (("--model", "qwen2.5-7b", "--gpus", "8", "--engine", "sgl"), "did you mean 'sglang'?"),
        (("--model", "qwen2.5-7b", "--gpus", "8", "--engine", "none"), "choose vllm, vllm-async"),
        (("--model", "/no/config.json", "--gpus", "8"), "there is no file /no/config.json: check the path"),
        (("--model", "llama-3-70b", "--gpus", "2"), "does not fit on 2 × H100"),
        (("h200-single", "--gpus", "2"), "a copy of NAME takes no --model"),
    ):
        code, _, err = oppo(capsys, "init", *arguments)
        assert code == 2
        assert words in err


def test_init_takes_engines_over_nodes_where_a_model_does_not_fit_into_one(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--model", "deepseek-v3", "--gpus", "256", "--device", "H100", "--framework", "verl")
    assert oppo(capsys, "init", *given, "-o", "run.yaml")[0] == 0
    loaded = load_scenario("run.yaml")
    rollout = loaded.costs.rollout  # type: ignore[union-attr]  # roofline, as written
    assert (loaded.split.replicas, rollout.tensor_parallel) == (16, 16)
    assert (rollout.expert_parallel, rollout.attention_data_parallel) == (16, 16)
    assert loaded.training.tensor_parallel == 8
    assert "2 nodes an engine" in Path("run.yaml").read_text()
    short = {"steps": 4, "warmup_steps": 1, "rollout_batch_size": 32}
    seconds = []
    for link in (5e10, 5e9):
        setup = build_setup(load_scenario("run.yaml", {**short, "cluster.node_link_bytes_per_s": link}))
        fast, slow = (
            run_summary(setup, engine=engine)[0].columns[TIMING_STEP].mean for engine in ("auto", "simpy")
        )
        assert fast == pytest.approx(slow, rel=1e-9)
        seconds.append(slow)
    assert seconds[1] > seconds[0], "between the nodes of an engine"


def test_init_says_nodes_and_epochs_and_leaves_out_a_critic_that_does_not_fit(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(model: str, gpus: int, device: str, framework: str) -> Scenario:
        given = ("--model", model, "--gpus", str(gpus), "--device", device, "--framework", framework)
        code, _, err = oppo(capsys, "init", *given, "-o", "run.yaml", "--force")
        assert code == 0, err
        return load_scenario("run.yaml")

    # Tensor parallelism of 16 would be one replica through NVLink on two nodes of eight.
    two_nodes = written("qwen3-30b-a3b", 16, "H100", "verl")
    assert two_nodes.cluster.num_gpus_per_node == 8
    assert two_nodes.split.tensor_parallel <= 8
    assert two_nodes.training.critic == "separate"
    assert written("qwen3-30b-a3b", 16, "GB200", "verl").cluster.num_gpus_per_node is None
    # 61 GB of the actor's states on each of eight; a critic would take as much again.
    one_node = written("qwen3-30b-a3b", 8, "H100", "verl")
    assert (one_node.training.critic, one_node.split.scoring) == ("none", "cpu")
    assert "critic: none # it would not fit with one" in Path("run.yaml").read_text()
    # Always asynchronous: the search that the file proposes had no policy left.
    apart = written("qwen2.5-3b", 8, "H100", "prime-rl")
    assert (apart.training.critic, str(apart.split)) == ("none", "rollout:4xTP1 scoring:cpu training:4")
    assert apart.policy.name == "async"
    assert (apart.training.old_log_prob, apart.training.ref) == ("behaviour", False)
    assert not apart.rollout.clear_kv_cache_on_weight_sync  # else prime-rl cannot run it
    assert oppo(capsys, "validate", "run.yaml")[0] == 0
    # The search that the file proposed had rollout-overlap as its only gain.
    areal = written("qwen2.5-3b", 8, "H100", "AReaL")
    assert areal.split.training == 4 and areal.split.num_gpus == 8
    assert (areal.policy.name, areal.policy.max_staleness) == ("async", 2)  # type: ignore[attr-defined]
    assert areal.rollout.clear_kv_cache_on_weight_sync  # it aborts rollouts and sends them again
    assert "host: sglang" in Path("run.yaml").read_text()
    assert oppo(capsys, "validate", "run.yaml")[0] == 0
    found = {name: written("qwen2.5-3b", 8, "H100", name).training for name in ("verl", "TRL")}
    kinds = {name: training.weight_sync.kind for name, training in found.items()}
    assert kinds | {"prime-rl": apart.training.weight_sync.kind} == {
        "verl": "reshard",
        "TRL": "shared",
        "prime-rl": "online_refit",
    }
    # 168 GB of each of eight in 16 bits.
    assert written("deepseek-v3", 256, "H200", "verl").costs.rollout.dtype == "fp8"  # type: ignore[union-attr]
    assert "dtype: fp8} # in 16 bits the model would not fit" in Path("run.yaml").read_text()
    epochs = {name: training.num_ppo_epochs for name, training in found.items()}
    assert epochs == {"verl": 1, "TRL": 4}
    assert {name: training.offload for name, training in found.items()} == {"verl": True, "TRL": False}


def test_init_takes_grpo_and_adapters_which_change_what_fits(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(*more: str, gpus: int = 2) -> tuple[int, str]:
        given = ("--model", "qwen2.5-7b", "--gpus", str(gpus), "--device", "L40S", "--framework", "TRL")
        code, _, err = oppo(capsys, "init", *given, *more, "-o", "run.yaml", "--force")
        return code, " ".join(err.split())

    code, err = init("--no-critic", "--engine", "vllm")
    assert code == 2
    assert "everything on the same GPUs: take more of them, or adapters alone (--lora-rank 16)" in err
    assert init("--no-critic", "--lora-rank", "16", "--engine", "vllm") == (0, "")
    training = load_scenario("run.yaml").training
    assert (training.critic, training.lora_rank, training.num_ppo_epochs) == ("none", 16, 1)
    assert training.lora_merge  # TRL sends all weights
    assert "critic: none # as asked" in Path("run.yaml").read_text()
    assert oppo(capsys, "validate", "run.yaml")[0] == 0
    # Where it has a critic, TRL's PPO.
    assert init(gpus=16) == (0, "")
    assert load_scenario("run.yaml").training.num_ppo_epochs == 4


def test_init_lets_the_vllm_of_trl_and_training_share_the_memory_where_both_fit(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(device: str, gpus: int = 2) -> Scenario:
        given = ("--model", "qwen2.5-7b", "--gpus", str(gpus), "--device", device, "--framework", "TRL")
        more = ("--no-critic", "--engine", "vllm", "--lora-rank", "16", "-o", "run.yaml", "--force")
        assert oppo(capsys, "init", *given, *more)[0] == 0
        return load_scenario("run.yaml")

    shared = written("H100")
    costs = shared.costs
    assert not shared.training.offload
    assert costs.rollout.gpu_memory_utilization == 0.3  # type: ignore[union-attr]  # roofline, as written
    assert costs.terms.gen_phase_s == 0.0 and "gen_phase_s" in costs.terms.model_fields_set  # nothing wakes
    # On one GPU weights are copied within the process.
    assert shared.training.weight_sync.load_bytes_per_s is None  # type: ignore[union-attr]  # reshard
    alone = written("H100", 1).training
    assert alone.weight_sync.load_bytes_per_s == 5e10  # type: ignore[union-attr]
    assert (alone.sharding, shared.training.sharding) == ("none", "full")
    # 0.3 of 48 GB are less than the weights: engine and training take turns.
    turns = written("L40S")
    assert turns.training.offload
    assert "gen_phase_s" not in turns.costs.terms.model_fields_set


def test_init_asks_on_a_terminal(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = io.StringIO("qwen2.5-3b\n4\nA100-80\nslime\n\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = oppo(capsys, "init")
    assert code == 0, err
    assert "GPUs [8]" in out
    assert "wrote scenario.yaml" in out
    loaded = load_scenario("scenario.yaml")
    assert loaded.num_gpus == 4
    assert loaded.costs.rollout.host == "sglang"  # type: ignore[union-attr]  # roofline, as written


def test_init_asks_again_for_an_answer_that_it_cannot_take(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = io.StringIO(
        "qwen2.5-3c\nqwen2.5-3b\n0\nmany\n4\nA1000-80\nA100-80\nslim\nslime\nsglanf\nsglang\n"
    )
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = oppo(capsys, "init")
    assert (code, err) == (0, "")
    for close in ("qwen2.5-3b", "A100-80", "slime", "sglang"):
        assert f"did you mean '{close}'?" in " ".join(out.split())
    assert load_scenario("scenario.yaml").num_gpus == 4

    # What does not fit is found last: only the GPUs are asked for again.
    answers = io.StringIO("qwen2.5-7b\n1\nH100\nnone\nvllm\n8\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    code, out, err = oppo(capsys, "init", "--force")
    assert (code, err) == (0, "")
    assert "does not fit on 1 × H100" in " ".join(out.split())
    assert load_scenario("scenario.yaml").num_gpus == 8


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("device=H100", "unknown field device: did you mean costs.device?"),
        ("actor_model=x", "did you mean costs.actor_model?"),
        ("staleness_effect=1", "did you mean rewards.staleness_effect?"),
        ("overcommit=4", "did you mean policy.overcommit?"),
        ("rollout.chunk_size=4", "unknown field rollout.chunk_size: did you mean policy.chunk_size?"),
        ("cluster.device=H100", "did you mean costs.device?"),
        ("policy.nam=oppo", "unknown field policy.nam of policy 'oppo': did you mean policy.name?"),
        ("policy.num_replicas=2", "did you mean rollout.num_replicas?"),
        ("scoring=separate", "must be a mapping (the scoring workers); did you mean placement.scoring?"),
        ("training=rollout", "did you mean placement.training?"),
        ("rollout.num_replica=2", "did you mean 'num_replicas'?"),
        ("cluster.zzz=2", "unknown field cluster.zzz: there are num_gpus"),
        ("costs.device=H2000", "no device 'H2000'; did you mean 'H200'?"),
        ("costs.actor_model=qwen2.5-7", "no model 'qwen2.5-7'; did you mean 'qwen2.5-7b'?"),
    ],
)
def test_unknown_fields_devices_and_models_suggest_near_ones(
    override: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = oppo(capsys, "validate", "h200-single", "--set", override)
    assert code == 2
    assert words in err


def test_policies_are_listed_with_their_settings_and_who_runs_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = oppo(capsys, "policies", "--json")
    assert code == 0
    listed = {each["name"]: each for each in json.loads(out)}
    assert list(listed) == list(SHIPPED)
    for name, policy in SHIPPED.items():
        # What is told as a default is what the policy takes when nothing is said, bit for bit.
        defaults = {key: each["default"] for key, each in listed[name]["settings"].items()}
        assert check_settings(name, defaults) == policy.Settings()
        assert listed[name]["summary"]
    assert [name for name, each in listed.items() if each["bound"]] == ["oracle"]
    assert "verl" in listed["april"]["frameworks"]
    assert listed["oppo"]["frameworks"] == []
    for columns in (60, 80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = oppo(capsys, "policies")
        assert max(map(len, out.splitlines())) <= columns
        starts = [line.split()[0] for line in out.partition("\n\n")[0].splitlines() if line[0] != " "]
        assert starts == list(SHIPPED)
        assert "settings: overcommit 1.0," in out
        assert "chunk_size {control: race}" in " ".join(out.split())


class Installed(Policy):
    """Nothing but a name."""

    name = "installed"
    summary = "somebody's own"


def test_policies_of_installed_packages_are_listed_too_and_a_broken_one_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = EntryPoints(
        EntryPoint(name, value, ENTRY_POINT_GROUP)
        for name, value in (("theirs", f"{__name__}:Installed"), ("broken", "no.such.module:Policy"))
    )
    for module in (listing, registry):
        monkeypatch.setattr(module, "entry_points", points.select)
    code, out, _ = oppo(capsys, "policies", "--json")
    listed = {each["name"]: each for each in json.loads(out)}
    assert code == 0
    assert listed["theirs"]["summary"] == "somebody's own"
    assert "no.such.module:Policy) cannot be imported" in listed["broken"]["summary"]


@pytest.mark.parametrize("given", ["--framework=verll", "--engine=vlm", "--device=H300"])
def test_a_wrong_answer_that_is_given_is_refused_before_anything_is_asked(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oppo_sim.cli.scenario._on_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: pytest.fail("asked"))
    assert run(["scenario", "init", given, "-o", "-"]) == 2
    assert given.partition("=")[2] in capsys.readouterr().err


def test_a_file_that_is_printed_names_one_in_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--model", "qwen2.5-3b", "--gpus", "1", "--device", "L40S", "--framework", "TRL")
    code, printed, err = oppo(capsys, "init", *given, "--lora-rank", "16", "-o", "-")
    assert code == 0, err
    assert "# Next: oppo compare scenario.yaml, then oppo tune scenario.yaml --framework" in printed
    assert "num_replicas: 1 # 1 GPU, 1 each" in printed
    # generate() uses the trained weights: nothing sleeps.
    assert "sleep_mode" not in printed
