"""Measured tables: round trip, interpolation, extrapolation that is counted, and files that are refused.

The tables here are computed from a linear function; they are not measurements.
"""

import json
import pickle
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.interface import BatchShape, Costs, Demand
from oppo_sim.costs.linear import LinearEngine
from oppo_sim.costs.profile import Profile, ProfileRangeWarning, load_profile, save_profile
from oppo_sim.costs.profile_config import ProfileCostConfig
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario
from tests.fast_setups import ON_DEVICE, profile_content

TRUTH = LinearEngine(0.005, 2e-5, 4e-9, 0.004, 2e-5, 3e-10)
SIZES, CONTEXTS = (1, 8, 32, 128), (256, 1024, 2048, 4096)
TOKENS, MEAN_CONTEXTS = (64, 512, 4096, 32768), (64, 512, 2048)
BATCH_TOKENS = (1000, 10_000, 200_000)


def content() -> dict[str, object]:
    """A profile as JSON, its numbers from ``TRUTH``."""

    def forwards(factor: float) -> dict[str, object]:
        seconds = [[factor * TRUTH.prefill_time(t, t * c) for c in MEAN_CONTEXTS] for t in TOKENS]
        return {"tokens": list(TOKENS), "mean_context": list(MEAN_CONTEXTS), "seconds": seconds}

    rows = [
        {
            "n_running": n,
            "kv_tokens": [n * c for c in CONTEXTS],
            "seconds": [TRUTH.decode_time(n, n * c) for c in CONTEXTS],
        }
        for n in SIZES
    ]
    stages = {
        name: [1e-5 * (i + 1) * t for t in BATCH_TOKENS]
        for i, name in enumerate(("old_log_prob", "ref", "values", "adv"))
    }
    return {
        "format": "oppo-profile/1",
        "name": "computed",
        "measured": {
            "hardware": "none",
            "software": {"numpy": "0"},
            "engine": {"max_num_seqs": 128},
            "method": "computed from a linear function by a test; not a measurement",
            "repeats": 1,
            "date": "2026-01-01",
            "raw_samples": "none",
        },
        "decode": {"rows": rows},
        "prefill": forwards(1.0),
        "score": forwards(2.0),
        "score_ref": forwards(3.0),
        "training": {
            "tokens": list(BATCH_TOKENS),
            **stages,
            "update_critic": [0.1, 1.0, 20.0],
            "update_actor": [0.2, 2.0, 40.0],
        },
        "update_weights": 2.5,
        "demands": {"decode": {"memory": 0.8, "arithmetic": 0.2}},
        "contention_factor": 1.1,
        "kv_capacity_tokens": 500_000,
    }


def context(**training: object) -> CostContext:
    return CostContext(1, 1, 16, 512, 2048, TrainingConfig(**training))  # type: ignore[arg-type]


def costs(**training: object) -> Costs:
    return costs_from_profile(Profile.model_validate(content()), context(**training))


def test_round_trip_is_exact_and_stable(tmp_path: Path) -> None:
    profile = Profile.model_validate(content())
    save_profile(profile, tmp_path / "a.json")
    again = load_profile(tmp_path / "a.json")
    assert again == profile
    save_profile(again, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_scenario_gives_costs_with_the_measurement_in_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    built = ProfileCostConfig(kind="profile", path="profile.json").build(context(num_ppo_epochs=1), tmp_path)
    assert built.provenance["measured"] == content()["measured"]
    assert built.provenance["path"] == "profile.json"
    assert built.provenance["contention_factor"] == 1.1
    assert built.provenance["unused_training_fields"] == ["num_ppo_epochs"]
    assert built.contention_factor == 1.1
    assert built.actor_kv_capacity_tokens == 500_000
    assert built.actor.decode_demand(4, 1000) == Demand(0.8, 0.2)
    assert json.loads(json.dumps(built.provenance)) == built.provenance


def test_an_activity_asks_for_a_gpu_only_while_it_computes() -> None:
    plain = profile_content() | {"demands": {"score": {"memory": 0.5, "arithmetic": 1.0}}}
    context = CostContext(1, 1, 4, 12, 60, TrainingConfig())
    costs = costs_from_profile(Profile.model_validate({**plain, "on_device": ON_DEVICE}), context)
    # 2 rollouts with 18 tokens: 30 ms and 1.2 of the host; 0.01 + 2 * 0.002 + 18 * 0.0001 s on the device.
    assert costs.actor.decode_time(2, 18) == pytest.approx(0.0312)
    assert costs.actor.decode_demand(2, 18) == pytest.approx(Demand(0.0158 / 0.0312, 0.0))
    seconds, busy = costs.scorer.prefill_time(30, 300.0), 0.003 + 30 * 0.0009
    assert costs.scorer.prefill_demand(30, 300.0) == pytest.approx(
        Demand(0.5 * busy / seconds, busy / seconds)
    )
    assert costs.scorer.prefill_demand(4, 4.0).arithmetic < busy / seconds, "launches take most of it"
    nothing = {**ON_DEVICE, "score": {"fixed": 0.0, "per_token": 0.0, "per_pair": 0.0}}
    with pytest.raises(ValidationError, match="computes in no second"):
        Profile.model_validate({**plain, "on_device": nothing})
    without = costs_from_profile(Profile.model_validate(plain), context)
    assert without.scorer.prefill_demand(30, 300.0) == Demand(0.5, 1.0)


def test_a_scenario_runs_with_the_interference_that_its_profile_measured(tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(json.dumps(content()))
    (tmp_path / "alone.json").write_text(json.dumps({**content(), "contention_factor": None}))

    def built(path: str, **placement: object) -> Setup:
        plain = {
            "format": "oppo-scenario/1", "rollout_batch_size": 4, "max_response_length": 64,
            "trace": {"synth": {"mean": 12, "p99": 36, "rows": 60}, "prompt_length": 6},
            "costs": {"kind": "profile", "path": path},
            "rewards": {"kind": "saturating"},
            "placement": {"scoring": "rollout", **placement},
        }  # fmt: skip
        (tmp_path / "scenario.yaml").write_text(json.dumps(plain))
        return build_setup(load_scenario(tmp_path / "scenario.yaml"))

    measured = built("measured.json", sharing="mps")
    assert measured.machine.interference == 1.1
    # In time slices decoding and scoring take twice as long together: nothing of 1.1 is left to explain; of a
    # slow-down by 3 there is 1.5.
    assert built("measured.json").machine.interference == 1.0
    (tmp_path / "slow.json").write_text(json.dumps({**content(), "contention_factor": 3.0}))
    assert built("slow.json").machine.interference == 1.5
    assert not any("not measured" in text for text in measured.warnings)
    assert built("measured.json", interference=1.5).machine.interference == 1.5
    turns = {"interference": 1.2, "turn_s": 0.002}
    (tmp_path / "turns.json").write_text(json.dumps({**content(), "time_slices": turns}))

    def shared(**placement: object) -> tuple[float, float]:
        machine = built("turns.json", **placement).machine
        return machine.interference, machine.turn_s

    assert shared() == (1.2, 0.002), "as measured in turns"
    assert shared(turn_s=0.0) == (1.2, 0.0)
    assert shared(sharing="streams") == (1.1, 0.0), "nobody takes turns"
    apart = {"decode": 1.3, "score": 1.02}
    (tmp_path / "apart.json").write_text(json.dumps({**content(), "slowdowns": apart}))

    def slowed_by(path: str, **placement: object) -> tuple[float, float, float]:
        return built(path, scoring="separate", shares_host=True, **placement).machine.slowed_by

    assert slowed_by("apart.json") == (1.3, 1.02, 1.1), "decoding, scoring, training"
    assert slowed_by("measured.json") == (1.1, 1.1, 1.1), "an earlier release measured one factor"
    assert slowed_by("apart.json", interference=1.5) == (1.5, 1.5, 1.5), "as the scenario says"
    alone = built("alone.json")
    assert alone.machine.interference == 1.0
    assert alone.costs.provenance["contention_factor"] == "not measured"
    assert any("its interference was not measured" in text for text in alone.warnings)


@given(st.integers(1, 128), st.floats(256, 4096))
@settings(max_examples=50)
def test_decode_of_a_linear_truth_is_that_truth(n: int, mean: float) -> None:
    actor = costs().actor
    kv = n * mean
    assert actor.decode_time(n, kv) == pytest.approx(TRUTH.decode_time(n, kv), rel=1e-9)
    assert actor.without_padding().decode_time(n, kv) == actor.decode_time(n, kv)


@given(st.floats(64, 32768), st.floats(64, 2048))
@settings(max_examples=50)
def test_prefill_of_a_linear_truth_is_that_truth(tokens: float, mean: float) -> None:
    assert costs().actor.prefill_time(tokens, tokens * mean) == pytest.approx(
        TRUTH.prefill_time(tokens, tokens * mean), rel=1e-9
    )


def test_measured_points_come_back() -> None:
    built = costs()
    for n in SIZES:
        for c in CONTEXTS:
            assert built.actor.decode_time(n, n * c) == pytest.approx(TRUTH.decode_time(n, n * c), rel=1e-12)
    times = built.training.stage_times(BatchShape((1000,), (9000,)))
    assert list(times) == pytest.approx([0.1, 0.2, 0.3, 0.4, 1.0, 2.0, 2.5])
    assert built.scorer.prefill_time(512, 512 * 512) == pytest.approx(2 * TRUTH.prefill_time(512, 512 * 512))
    assert costs(stream_ref=True).scorer.prefill_time(512, 512 * 512) == pytest.approx(
        5 * TRUTH.prefill_time(512, 512 * 512)
    )


def bent() -> Profile:
    """Rows with a bend: slope 1e-6 up to a mean context of 100, 3e-6 beyond."""
    data = content()
    data["decode"] = {
        "rows": [
            {
                "n_running": n,
                "kv_tokens": [0, 100 * n, 200 * n],
                "seconds": [0.01, 0.01 + 1e-4 * n, 0.01 + 4e-4 * n],
            }
            for n in (2, 4)
        ]
    }
    return Profile.model_validate(data)


def test_lines_end_exactly_at_the_knots() -> None:
    actor = costs_from_profile(bent(), context()).actor
    assert list(actor.decode_line(2, 150)) == pytest.approx([0.01, 1e-6, 200])
    assert actor.decode_line(2, 200).kv_until == 200
    assert list(actor.decode_line(2, 200.1)) == pytest.approx([0.01 - 4e-4, 3e-6, 400])
    # Between the rows knots lie at the same mean context, and rows weigh half each.
    assert list(actor.decode_line(3, 10)) == pytest.approx([0.01, 1e-6, 300])
    assert actor.decode_time(3, 400) == pytest.approx(0.01 + 3e-4 + 3e-4)


def test_between_batch_sizes_rollouts_keep_their_mean_context() -> None:
    data = content()
    rows = [
        {"n_running": n, "kv_tokens": [0, 1000 * n], "seconds": [0.01, 0.01 + 5e-4 * n * n]} for n in (2, 4)
    ]
    data["decode"] = {"rows": rows}
    actor = costs_from_profile(Profile.model_validate(data), context()).actor
    # A mean context of 600: 0.01 + 0.6·5e-4·4 at 2, 0.01 + 0.6·5e-4·16 at 4; the mean of both at 3.
    assert actor.decode_time(3, 3 * 600) == pytest.approx(0.01 + 0.6 * 5e-4 * 10)


@given(st.integers(1, 200), st.integers(0, 900_000), st.floats(0, 1))
@settings(max_examples=50)
def test_the_line_is_the_time_wherever_it_is_valid(n: int, kv: int, part: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileRangeWarning)
        actor = costs().actor
        line = actor.decode_line(n, kv)
        assert line.kv_until >= kv
        later = kv + part * (min(line.kv_until, 1e7) - kv)
        assert actor.decode_line(n, later) == line
        assert actor.decode_time(n, later) == line.fixed + line.per_kv_token * later > 0


def test_extrapolation_is_linear_warned_about_once_and_counted() -> None:
    profile = Profile.model_validate(content())
    built = costs_from_profile(profile, context())
    assert built.actor.decode_time(8, 8 * 4096) > 0
    assert profile.out_of_range == {}
    with pytest.warns(
        ProfileRangeWarning,
        match=r"decode asked at n_running 256, kv_tokens 256000, outside their range",
    ) as caught:
        assert built.actor.decode_time(256, 256_000) == pytest.approx(TRUTH.decode_time(256, 256_000))
        assert built.actor.decode_time(8, 80_000) == pytest.approx(TRUTH.decode_time(8, 80_000))
        assert built.actor.decode_time(8, 100) == pytest.approx(TRUTH.decode_time(8, 100))
    assert len(caught) == 1
    with pytest.warns(ProfileRangeWarning, match=r"score asked at 10 tokens"):
        assert built.scorer.prefill_time(10, 1000) == pytest.approx(2 * TRUTH.prefill_time(10, 1000))
    with pytest.warns(ProfileRangeWarning, match=r"training asked at 400000 tokens"):
        assert built.training.stage_times(BatchShape((200_000,), (200_000,))).update_actor == pytest.approx(
            80.0
        )
    assert profile.out_of_range == {"decode": 3, "score": 1, "training": 1}
    assert profile == Profile.model_validate(content())  # counts are no part of a profile


def test_host_overheads_are_added() -> None:
    data = {
        **content(),
        "host": {"decode_per_iteration": 0.1, "decode_per_rollout": 0.01, "prefill": 0.2, "score": 0.3},
    }
    with_host, without = costs_from_profile(Profile.model_validate(data), context()), costs()
    assert with_host.actor.decode_time(8, 8192) - without.actor.decode_time(8, 8192) == pytest.approx(0.18)
    assert with_host.actor.prefill_time(512, 512**2) - without.actor.prefill_time(
        512, 512**2
    ) == pytest.approx(0.2)
    assert with_host.scorer.prefill_time(512, 512**2) - without.scorer.prefill_time(
        512, 512**2
    ) == pytest.approx(0.3)


def test_noise_at_the_end_of_a_row_never_leads_to_no_time() -> None:
    data = content()
    data["decode"] = {
        "rows": [{"n_running": n, "kv_tokens": [0, 100, 200], "seconds": [0.01, 0.02, 0.019]} for n in (1, 2)]
    }
    actor = costs_from_profile(Profile.model_validate(data), context()).actor
    with pytest.warns(ProfileRangeWarning):
        assert actor.decode_time(1, 1e9) == pytest.approx(0.019)


def test_extrapolation_to_no_time_is_refused() -> None:
    data = content()
    data["decode"] = {
        "rows": [{"n_running": n, "kv_tokens": [1000, 2000], "seconds": [0.001, 0.01]} for n in (1, 2)]
    }
    data["prefill"] = {"tokens": [100, 200], "mean_context": [1, 2], "seconds": [[0.01, 0.01], [0.03, 0.03]]}
    data["training"] = {"tokens": [1000, 2000], "update_actor": [0.1, 1.0]}
    built = costs_from_profile(
        Profile.model_validate(data), context(old_log_prob="behaviour", ref=False, critic="none")
    )
    with (
        pytest.warns(ProfileRangeWarning),
        pytest.raises(OppoError, match="decode extrapolates to no time at all at n_running 1"),
    ):
        built.actor.decode_line(1, 10)
    with (
        pytest.warns(ProfileRangeWarning),
        pytest.raises(OppoError, match="prefill extrapolates to no time at all at 10 tokens"),
    ):
        built.actor.prefill_time(10, 10)
    with (
        pytest.warns(ProfileRangeWarning),
        pytest.raises(OppoError, match=r"training.update_actor extrapolates to a negative time"),
    ):
        built.training.stage_times(BatchShape((5,), (5,)))


def test_a_stage_that_does_nothing_takes_none_beyond_its_table() -> None:
    """Three microseconds, and once sixty: its line is below zero a few tokens further."""
    data = content()
    data["training"] = {
        "tokens": [500, 2000, 3600],
        "ref": [3e-6, 6.4e-5, 3e-6],
        "update_actor": [0.1, 0.4, 0.7],
    }
    data["score_ref"] = None
    built = costs_from_profile(
        Profile.model_validate(data), context(old_log_prob="behaviour", ref=True, critic="none")
    )
    with pytest.warns(ProfileRangeWarning):
        passed = built.training.stage_times(BatchShape((1900,), (2000,)))
    assert passed.ref == 0.0
    assert passed.update_actor == pytest.approx(0.7 + 300 * 0.3 / 1600)


def test_missing_tables_are_refused_only_where_they_are_needed() -> None:
    data = content()
    data.pop("score_ref")
    training = data["training"]
    assert isinstance(training, dict)
    training.pop("ref")
    profile = Profile.model_validate(data)
    assert (
        costs_from_profile(profile, context(ref=False)).training.stage_times(BatchShape((500,), (500,))).ref
        == 0.0
    )
    with pytest.raises(OppoError, match=r"computed: training.ref was not measured"):
        costs_from_profile(profile, context())
    with pytest.raises(OppoError, match=r"computed: score_ref was not measured"):
        costs_from_profile(profile, context(stream_ref=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "oppo-profile/2"}, "not a cost profile of format oppo-profile/1"),
        ({"format": None}, "not a cost profile of format"),
        ({"decode": {"rows": []}}, "decode.rows"),
        (
            {"decode": {"rows": [{"n_running": 2, "kv_tokens": [1, 2], "seconds": [1.0, 2.0]}] * 2}},
            "n_running of the rows must rise strictly",
        ),
        (
            {"decode": {"rows": [{"n_running": 1, "kv_tokens": [2, 1], "seconds": [1.0, 2.0]}]}},
            "kv_tokens of n_running 1 must rise strictly",
        ),
        (
            {"decode": {"rows": [{"n_running": 1, "kv_tokens": [1, 2], "seconds": [1.0, 0.0]}]}},
            "greater than 0",
        ),
        (
            {"prefill": {"tokens": [1, 2], "mean_context": [1, 2], "seconds": [[1.0, 1.0]] * 3}},
            "seconds has 3 entries for a grid of 2",
        ),
        (
            {"prefill": {"tokens": [1, 2], "mean_context": [1, 2], "seconds": [[1.0, 1.0, 1.0]] * 2}},
            "seconds of 1 tokens has 3 entries",
        ),
        (
            {"training": {"tokens": [1, 2], "update_actor": [1.0, 2.0, 3.0]}},
            "update_actor has 3 entries for a grid of 2",
        ),
        ({"contention_factor": 0.9}, "contention_factor"),
        ({"speed": "fast"}, "speed"),
        ({"measured": {"hardware": "x"}}, "measured"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**content(), **change}))
    with pytest.raises(OppoError, match=words):
        load_profile(path)


def test_unreadable_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="cannot read the cost profile"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "nan.json").write_text(json.dumps({**content(), "update_weights": float("nan")}))
    with pytest.raises(OppoError, match="NaN is no JSON number"):
        load_profile(tmp_path / "nan.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(OppoError, match="not a cost profile"):
        load_profile(tmp_path / "list.json")
    with pytest.raises(OppoError, match="cannot write the cost profile"):
        save_profile(Profile.model_validate(content()), tmp_path / "none" / "x.json")


def test_costs_travel_between_processes() -> None:
    built = costs()
    copy = pickle.loads(pickle.dumps(built))
    assert copy.actor.decode_time(8, 8192) == built.actor.decode_time(8, 8192)
