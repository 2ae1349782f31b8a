"""``oppo calibrate`` from a scenario file to the simulator."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oppo_real.calibrate import session as session_module
from oppo_real.calibrate.contention import Meeting, Round
from oppo_real.cli.calibrate import _simulating
from oppo_sim.cli.main import oppo as group
from oppo_sim.cli.main import run as oppo
from oppo_sim.costs.profile import load_profile
from oppo_sim.costs.profile_config import ProfileCostConfig
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.yaml_text import dump_yaml

SCENARIO: dict[str, Any] = {
    "format": "oppo-scenario/1",
    "name": "tiny run",
    "steps": 2,
    "rollout_batch_size": 4,
    "max_prompt_length": 12,
    "max_response_length": 36,
    "trace": {"synth": {"parameters": {"mu": 2.5, "sigma": 0.5}, "rows": 50}, "prompt_length": 12},
    "training": {"num_ppo_epochs": 1},
    "scoring": {"max_scoring_tokens": 96},
    "costs": {"kind": "linear", "decode": {"fixed": 0.01}},
    "policy": {"name": "oppo", "chunk_size": 8, "overcommit": 1},
    "real": {"placement": {"threads": 1}},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def scenario_file(folder: Path, **changes: Any) -> str:
    path = folder / "tiny.yaml"
    path.write_text(dump_yaml({**SCENARIO, **changes}))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(group, ["calibrate", *arguments], catch_exceptions=False)


def test_the_profile_is_one_that_the_scenario_can_use(tmp_path: Path) -> None:
    output = tmp_path / "tiny.json"
    result = run(
        scenario_file(tmp_path),
        "-o",
        str(output),
        "--repeats",
        "1",
        "--budget-s",
        "100",
        "--no-contention",
        "--share",
        str(tmp_path / "shared"),
        "--json",
    )
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["visits"]["fresh"] == printed["visits"]["planned"]
    assert all(Path(file).stat().st_size > 0 for file in printed["files"].values())
    assert Path(printed["files"]["figure"]).read_bytes().startswith(b"\x89PNG")
    assert load_profile(output).name == "tiny run"
    shared = Path(printed["files"]["shared"])
    given = shared.read_text() + Path(printed["files"]["shared_samples"]).read_text()
    assert not [name for name in ("tiny run", tmp_path.name, str(Path.home())) if name in given]
    assert oppo(["costs", "profiles", str(shared)]) == 0
    assert load_profile(shared).decode == load_profile(output).decode

    measured = load_scenario(scenario_file(tmp_path, costs={"kind": "profile", "path": "tiny.json"}))
    setup = build_setup(measured)
    assert setup.costs.provenance["name"] == "tiny run"
    assert 0 < setup.costs.actor.decode_time(4, 80.0) < 10

    with pytest.raises(OppoError, match="exists"):
        run(scenario_file(tmp_path), "-o", str(output))
    again = run(
        scenario_file(tmp_path),
        "-o",
        str(output),
        "--force",
        "--repeats",
        "1",
        "--budget-s",
        "100",
        "--no-contention",
    )
    assert again.exit_code == 0
    assert " 0 of them new" in again.stdout
    assert "fitted costs" in again.stdout
    assert "held out" in again.stdout
    (command,) = [line for line in again.stdout.splitlines() if "oppo compare" in line]
    _, override = shlex.split(command)[-2:]
    used = load_scenario(scenario_file(tmp_path), (override,))
    assert build_setup(used).costs.provenance["name"] == "tiny run", "as it is printed"


def test_the_command_that_simulates_with_a_profile_has_all_that_was_given(tmp_path: Path) -> None:
    profile = tmp_path / "a, {b}: c.json"
    file = scenario_file(tmp_path)
    command = _simulating(file, ("rollout_batch_size=8", "seed=3"), profile)
    words = shlex.split(command)
    assert words[:3] == ["oppo", "compare", file]
    overrides = words[4::2]
    assert overrides[:2] == ["rollout_batch_size=8", "seed=3"]
    costs = load_scenario(file, overrides).costs
    assert (
        isinstance(costs, ProfileCostConfig) and costs.path is not None and tmp_path / costs.path == profile
    )


def test_interrupting_says_where_the_points_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "visit_point", interrupted)
    arguments = ["calibrate", scenario_file(tmp_path), "-o", str(tmp_path / "p.json"), "--no-contention"]
    result = CliRunner().invoke(group, arguments, standalone_mode=False)
    assert result.return_value == 130
    assert result.stderr.count("interrupted: what was measured is kept in ") == 1
    assert ".oppo-calibrate" in result.stderr
    assert not (tmp_path / "p.json").exists()


def test_what_cannot_be_measured_or_written_is_refused_before_an_engine_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, profile = scenario_file(tmp_path), str(tmp_path / "p.json")
    with pytest.raises(OppoError, match=r"^real.actor_args: the torch engine has no argument 'foo' here"):
        run(file, "-o", profile, "--set", "real.actor_args={foo: 1}")
    with pytest.raises(OppoError, match=r"^real.scorer_args: max_batched_tokens is 'many' but must be"):
        run(file, "-o", profile, "--set", "real.scorer_args={max_batched_tokens: many}")
    monkeypatch.setattr(session_module, "open_bench", lambda *_, **__: pytest.fail("built engines"))
    (tmp_path / "file").touch()
    for given in (
        ("-o", str(tmp_path / "file" / "p.json"), "--cache", str(tmp_path / "points")),
        ("-o", profile, "--cache", str(tmp_path / "file")),
        ("-o", str(tmp_path), "--force"),
    ):
        with pytest.raises(OppoError, match="a file stands where a folder is needed, or the reverse"):
            run(file, *given)


def test_rounds_that_tell_nothing_are_kept_and_where_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(
        _open: Any, _engines: Any, rounds: Mapping[Meeting, int], **_: Any
    ) -> Iterator[tuple[Meeting, Round]]:
        for meeting in rounds:
            yield meeting, Round((1.0, 1.0), (1.25, 1.25), (0.5, 0.5))

    monkeypatch.setattr(session_module, "measure_contention", disturbed)
    given = (scenario_file(tmp_path), "-o", str(tmp_path / "p.json"), "--repeats", "1", "--no-figures")
    said = " ".join(run(*given, "--budget-s", "60").stderr.split())
    assert "measure on a quieter machine" in said
    assert f"delete {tmp_path / '.oppo-calibrate'} before you measure anew" in said


def test_a_scenario_without_a_real_section_is_refused() -> None:
    with pytest.raises(OppoError, match="no real section"):
        run("paper-gsm8k-7b")


def test_a_model_that_is_too_short_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    model = {
        "model_type": "qwen2",
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
    with pytest.raises(OppoError, match="the actor takes 16"):
        run(scenario_file(tmp_path, real={"models": {"actor": model}}), "-o", str(tmp_path / "p.json"))
