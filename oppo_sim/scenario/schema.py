"""What a scenario file may say. Strict: unknown fields are refused, and nothing is converted ("8" is not 8,
true is not 1)."""

import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from oppo_sim.costs.config import CostConfig
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.dynamic_sampling import DynamicSampling
from oppo_sim.rewards import NoRewards, RewardConfig
from oppo_sim.scenario.cluster import ClusterConfig, Split
from oppo_sim.scenario.yaml_text import dump_yaml
from oppo_sim.traces.config import TraceConfig

FORMAT: Final = "oppo-scenario/1"
REQUIRED_IN_FILES = ("format",)
DEFAULT_POLICY = "oppo"

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=100_000)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RolloutConfig(_Section):
    """The rollout replicas."""

    num_replicas: Count = Field(1, description="data-parallel engines; each may span several GPUs, see costs")
    batching: Literal["continuous", "static"] = Field(
        "continuous", description="static: one padded batch a step, as a plain generate()"
    )
    kv_capacity_tokens: Tokens | Literal["auto"] | None = Field(
        None,
        description="KV of one replica; auto: what the cost model derives from device memory; null: ample",
    )
    kv_block_tokens: Annotated[int, Field(ge=1, le=65_536)] = Field(
        16, description="KV is allocated in blocks of this many tokens"
    )
    max_num_seqs: Count | None = Field(
        None, description="running rollouts of one replica at most; null: unbounded"
    )
    clear_kv_cache_on_weight_sync: bool = Field(
        True, description="KV of carried rollouts is recomputed after an update (false: kept, stale)"
    )
    keeps_kv_between_rounds: bool = Field(
        True,
        description=(
            "false: generate() is called anew for each round (stop_check chunk) and prefills what runs, as"
            " without a cache that outlasts the call"
        ),
    )
    clear_kv_cache_on_tool_call: bool = Field(
        False,
        description=(
            "KV of a rollout that waits for a tool is recomputed (false: kept, as long as no other needs the"
            " memory)"
        ),
    )
    enable_prefix_caching: bool = Field(
        False,
        description=(
            "samples of one prompt on one replica have the prompt in KV once, and prefill it once, as long as"
            " one of them has its KV there"
        ),
    )
    group_placement: Literal["spread", "together"] = Field(
        "spread",
        description=(
            "where the samples of a prompt go: each to the replica with the fewest unfinished, or all where"
            " the first one went"
        ),
    )


class ScoringConfig(_Section):
    """The scoring workers."""

    num_workers: Count = Field(1, description="reward-model workers, each with its own queue")
    max_scoring_tokens: Tokens = Field(
        16384, description="tokens of one scoring batch at most; a larger piece goes alone"
    )
    kv_capacity_tokens: Tokens | None = Field(
        None, description="KV of one worker for rollouts without a score; null: ample"
    )
    kv_block_tokens: Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description=(
            "tokens of a block of that KV, where a serving engine scores: of a rollout that goes on only"
            " whole blocks are prefilled, the rest with its next piece; null: as the cost profile measured"
            " it, else 1 (every token with its piece)"
        ),
    )
    prefix_cache_tokens: Tokens | None = Field(
        None,
        description=(
            "KV in which a serving engine that scores keeps the prefixes of one worker until newer ones need"
            " their room; what it has lost is prefilled again; null: as the cost profile measured it, else"
            " ample"
        ),
    )
    max_num_batched_tokens: Tokens | None = Field(
        None,
        description=(
            "tokens that such an engine prefills in one iteration at most, in which it needs the room of all"
            " of them; null: as the cost profile measured it, else a whole scoring batch"
        ),
    )
    link_bytes_per_s: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description=(
            "bandwidth of the link that pieces of one replica cross to the scorer; null: that between nodes"
            " where scoring has GPUs apart and the job spans nodes, else their bytes take no time"
        ),
    )
    bytes_per_token: Annotated[float, Field(gt=0)] = Field(
        8.0, description="bytes of a token on that link; 8: a 64-bit token id"
    )
    streamable: bool | None = Field(
        None,
        description=(
            "the reward model can score a growing prefix; null: yes, unless costs.reward_model is a verifier"
        ),
    )


class PlacementConfig(_Section):
    """Which groups share devices."""

    scoring: Literal["separate", "rollout", "training"] = Field(
        "separate", description="devices of the scoring workers"
    )
    training: Literal["separate", "rollout"] = Field("rollout", description="devices of the training group")
    sharing: Literal["time_slice", "mps", "streams"] = Field(
        "time_slice",
        description=(
            "time_slice: separate processes on one device, whose kernels never run together; mps, streams:"
            " kernels of both run together"
        ),
    )
    interference: Annotated[float, Field(ge=1.0, le=100.0)] | None = Field(
        None,
        description=(
            "f: slow-down of activities that run together, beyond their shared demand; null: as the cost"
            " profile measured it, 1 where nobody did"
        ),
    )
    turn_s: Annotated[float, Field(ge=0.0, le=10.0)] | None = Field(
        None,
        description=(
            "seconds that a decode iteration takes longer while its device is shared in time slices (caches,"
            " launches); null: as the cost profile measured it, 0 where nobody did"
        ),
    )
    shares_host: bool | None = Field(
        None,
        description=(
            "the groups have devices (or cores) of their own in one machine: scoring beside decoding or"
            " training slows both, as the cost profile measured it of each, else by interference; null: no,"
            " and in validate yes"
        ),
    )

    @property
    def takes_turns(self) -> bool:
        """Scoring shares a device on which kernels of one process run at a time."""
        return self.sharing == "time_slice" and self.scoring != "separate"

    @model_validator(mode="after")
    def _one_place(self) -> "PlacementConfig":
        if self.shares_host and self.scoring != "separate":
            raise ValueError(
                f"shares_host is for scoring separate; scoring {self.scoring} shares a device already: leave"
                " shares_host out"
            )
        return self


class PolicyConfig(BaseModel):
    """A policy's name and, beside it, its own settings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field(
        DEFAULT_POLICY,
        min_length=1,
        description="a shipped policy, an installed one, or path/to/file.py:ClassName",
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the scenario gives; the rest are the policy's defaults."""
        return dict(self.model_extra or {})


class Published(_Section):
    """Speed-ups that somebody published of this set-up."""

    source: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="who, and of what")
    speedups: dict[str, Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="policy → times faster than the sequential baseline"
    )


def _name_alone(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Scenario(_Section):
    """A training run to simulate: lengths, machine, costs, policy."""

    format: Literal["oppo-scenario/1"] = Field(FORMAT, description="version of the scenario format")
    name: str = Field("scenario", min_length=1, max_length=200, description="for titles and result tables")
    description: str = Field("", description="free text")
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(100, description="training steps to simulate")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="first steps, simulated but kept apart in summaries"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        0, description="of the draws of lengths and rewards"
    )
    rollout_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        description="B: rollouts trained a step, all samples counted"
    )
    group_size: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1, description="samples of one prompt, admitted and trained together"
    )
    max_prompt_length: Tokens = Field(1024, description="longer prompts of the trace are cut to it, tokens")
    max_response_length: Tokens = Field(description="longer responses of the trace are cut to it, tokens")
    trace: TraceConfig = Field(description="where response lengths come from, and how rollouts draw them")
    rollout: RolloutConfig = Field(RolloutConfig(), description="the rollout replicas")
    scoring: ScoringConfig = Field(ScoringConfig(), description="the scoring workers")
    training: TrainingConfig = Field(TrainingConfig(), description="what PPO does with a batch")
    placement: PlacementConfig = Field(PlacementConfig(), description="which groups share devices")
    cluster: ClusterConfig = Field(ClusterConfig(), description="how many GPUs there are, and who has which")
    costs: CostConfig = Field(description="where seconds come from")
    policy: Annotated[PolicyConfig, BeforeValidator(_name_alone)] = Field(
        PolicyConfig(name=DEFAULT_POLICY),
        description="the scheduling policy and its settings; a name alone takes its defaults",
    )
    policies: dict[str, dict[str, Any]] = Field(
        {}, description="settings of other policies, for a comparison"
    )
    rewards: RewardConfig = Field(
        NoRewards(), description="mean rewards of trained batches, for the overcommit controller"
    )
    dynamic_sampling: DynamicSampling = Field(
        DynamicSampling(), description="groups that teach nothing are dropped and replaced (DAPO)"
    )
    published: Published | None = Field(
        None, description="speed-ups that compare holds against its ranges; nothing else reads them"
    )
    real: dict[str, Any] | None = Field(None, description="how a real run is made; read by oppo_real only")

    _base_dir: Path | None = PrivateAttr(None)
    _source: str = PrivateAttr("scenario")
    _translations: tuple[str, ...] = PrivateAttr(())
    _given_as: Mapping[str, str] = PrivateAttr({})

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} leaves nothing of steps {self.steps}: lower it, or raise"
                " steps"
            )
        if self.rollout_batch_size % self.group_size:
            raise ValueError(
                f"rollout_batch_size {self.rollout_batch_size} is not a multiple of group_size"
                f" {self.group_size}: make it one, since groups are admitted and trained whole"
            )
        if self.dynamic_sampling.enable and self.group_size == 1:
            raise ValueError(
                "dynamic_sampling.enable needs groups: the only reward of a group of one equals itself, so"
                " set group_size to 2 or more"
            )
        generated = self.dynamic_sampling.gen_batch_size or self.rollout_batch_size
        short = generated < self.rollout_batch_size or generated % self.group_size
        if self.dynamic_sampling.enable and short:
            raise ValueError(
                f"dynamic_sampling.gen_batch_size {generated} is less than rollout_batch_size"
                f" {self.rollout_batch_size}, or no multiple of group_size {self.group_size}: it counts"
                " rollouts (prompts × samples a prompt)"
            )
        if self.policy.name in self.policies:
            raise ValueError(
                f"policies.{self.policy.name} is the scenario's own policy: put its settings under policy"
            )
        return self

    def __eq__(self, other: object) -> bool:
        # Where a scenario was read from is no part of what it says.
        return isinstance(other, Scenario) and self.to_plain() == other.to_plain()

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __repr__(self) -> str:
        facts = self._facts()
        return f"Scenario({', '.join(f'{name} {value}' for name, value in facts.items())})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        facts = {**self._facts(), "whole": "scenario.to_yaml()"}
        rows = (f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
        return f"<table>{''.join(rows)}</table>"

    def _facts(self) -> dict[str, Any]:
        """What identifies a scenario."""
        return {
            "name": self.name,
            "rollout_batch_size": self.rollout_batch_size,
            "policy": self.policy.name,
            "costs": self.costs.kind,
            "trace": self.trace.name or self.trace.path or "synth",
        }

    @property
    def split(self) -> Split:
        """Who has which GPUs, as its fields say."""
        reward = getattr(self.costs, "reward_model", None)
        degree = getattr(getattr(self.costs, "rollout", None), "tensor_parallel", 1)
        scoring: int | str = self.placement.scoring
        if getattr(reward, "kind", "model") == "verifier" and not self.training.stream_ref:
            scoring = "cpu"
        elif scoring == "separate":
            scoring = self.scoring.num_workers * int(getattr(reward, "tensor_parallel", 1))
        own = self.training.num_gpus or self.rollout.num_replicas * degree
        shared = self.placement.training == "rollout"
        return Split(self.rollout.num_replicas, degree, scoring, "rollout" if shared else own)

    @property
    def num_gpus(self) -> int:
        """GPUs that the job takes, idle ones included."""
        return self.cluster.num_gpus or self.split.num_gpus

    @property
    def base_dir(self) -> Path | None:
        """Folder in which relative paths of the scenario start; None: the working directory."""
        return self._base_dir

    @property
    def source(self) -> str:
        """The file or shipped name it was read from."""
        return self._source

    @property
    def translations(self) -> tuple[str, ...]:
        """One sentence for each name of another framework that was translated on reading."""
        return self._translations

    @property
    def given_as(self) -> Mapping[str, str]:
        """Names by which the GPUs were given, and what they decide: changed settings decide it again."""
        return self._given_as

    def for_steps(self, steps: int | None) -> "Scenario":
        """For so many training steps (None: its own): where the warm-up would leave none of them, as in a
        first look at five, a fifth of them are warm-up."""
        if not isinstance(steps, int) or not 0 < steps <= self.warmup_steps:
            return self
        return self.model_copy(update={"warmup_steps": steps // 5})

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) over everything that can change a result: all fields but ``name``, ``description``,
        ``published`` and ``real``."""
        plain = self.decisive()
        return hashlib.sha256(
            json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        ).hexdigest()

    def decisive(self) -> dict[str, Any]:
        """What can change a result, as ``to_plain``."""
        plain = self.to_plain()
        del plain["name"], plain["description"], plain["published"], plain["real"]
        return plain

    def to_plain(self) -> dict[str, Any]:
        """The whole scenario as dicts, lists, numbers and strings, defaults written out."""
        return {**self.model_dump(mode="json"), "costs": self.costs.to_plain()}

    def to_yaml(self) -> str:
        """The whole scenario as a file that ``load_scenario`` reads back unchanged, defaults written out."""
        return dump_yaml(self.to_plain())


def remember_origin(
    scenario: Scenario,
    base_dir: Path | None,
    source: str,
    translations: tuple[str, ...],
    given_as: Mapping[str, str] | None = None,
) -> Scenario:
    """The same scenario, knowing where it was read from; ``given_as`` of None: as it was."""
    copied = scenario.model_copy()
    copied._base_dir, copied._source, copied._translations = base_dir, source, translations
    copied._given_as = scenario._given_as if given_as is None else given_as
    return copied
