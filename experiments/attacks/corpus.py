"""Whole files to be broken: a small one of every kind that a command reads, and the command that reads it."""

import gzip
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.attacks.batch import TrainingInputBatch
from oppo_sim.cli.main import run
from oppo_sim.costs.terms import CostTerms
from oppo_sim.scenario.load import find_shipped
from oppo_sim.scenario.yaml_text import dump_yaml
from tests.cli_runs import write_scenario
from tests.fit_logs import fit_scenario, verl_log
from tests.test_costs_profile import content

OUT = "out"
"""Where a command writes; gone before the next case."""


@dataclass(frozen=True)
class Target:
    """What is broken, in the folder of all files, and what then reads it."""

    name: str
    files: tuple[str, ...]
    """One of these is broken; a name that ends in ``/`` is a folder, of which any file may be."""
    commands: tuple[tuple[str, ...], ...]
    """One of these is run."""


def _import(name: str, file: str, *options: str) -> Target:
    words = ("trace", "import", "--from")
    return Target(
        f"log {name}",
        (file,),
        tuple((*words, source, file, *options, "-o", f"{OUT}.parquet") for source in (name, "auto")),
    )


_SMALL = ("--seeds", "2", "--jobs", "1")
FILES = (
    Target(
        "scenario",
        ("tiny.yaml",),
        (
            ("simulate", "tiny.yaml", "--steps", "2", "-o", OUT),
            ("scenario", "validate", "tiny.yaml"),
            ("scenario", "show", "tiny.yaml"),
            ("compare", "tiny.yaml", "--steps", "2", *_SMALL, "-o", OUT),
        ),
    ),
    Target(
        "composed scenario",
        ("single.yaml",),
        (
            ("simulate", "single.yaml", "--steps", "2", "--set", "rollout_batch_size=16", "-o", OUT),
            ("scenario", "validate", "single.yaml"),
        ),
    ),
    Target("profile", ("profile.json",), (("simulate", "profiled.yaml", "--steps", "2", "-o", OUT),)),
    *(
        Target(
            f"trace {kind}",
            (f"trace.{kind}",),
            (
                *(("trace", command, f"trace.{kind}") for command in ("show", "fit")),
                ("simulate", "tiny.yaml", "--trace", f"trace.{kind}", "--steps", "2", "-o", OUT),
                ("trace", "convert", f"trace.{kind}", "-o", f"{OUT}.csv"),
            ),
        )
        for kind in ("csv", "csv.gz", "parquet")
    ),
    _import("generic", "rollouts.jsonl"),
    _import("generic", "rollouts.csv"),
    _import("generic", "rollouts.parquet"),
    _import("verl", "verl.jsonl", "--max-response-length", "512"),
    _import("verl", "metrics.jsonl", "--rows-per-step", "16"),
    _import("verl", "console.log", "--rows-per-step", "16"),
    _import("trl", "completions_00001.parquet"),
    _import("trl", "trainer_state.json", "--rows-per-step", "16"),
    _import("trl", "events.out.tfevents.1", "--rows-per-step", "16"),
    _import("slime", "rollout_3.pt"),
    _import("skyrl", "global_step_1_training_input.pkl"),
    _import("burstgpt", "burstgpt.csv"),
    _import("mooncake", "mooncake.jsonl"),
    _import("areal", "areal.jsonl"),
)
"""What is broken with files alone."""

TARGETS = (
    *FILES,
    Target(
        "fit log",
        ("train.log",),
        (
            (
                "fit",
                "train.log",
                "--scenario",
                "small.yaml",
                "--fit-steps",
                "4",
                "--draws",
                "20",
                "--no-figures",
                "-o",
                OUT,
            ),
        ),
    ),
    *(
        Target(f"{kind} folder", (f"{kind}/",), (("report", kind, "-o", f"{OUT}.html"),))
        for kind in ("simulated", "compared", "swept", "tuned", "fitted")
    ),
    Target(
        "journal of a sweep",
        ("swept/runs.jsonl", "swept/sweep.json"),
        (("sweep", "tiny.yaml", "--grid", "policy.chunk_size=4,8", *_SMALL, "-o", "swept"),),
    ),
    Target(
        "journal of a tuning",
        ("tuned/runs.jsonl", "tuned/tune.json"),
        (("tune", "tiny.yaml", "--trials", "5", *_SMALL, "-o", "tuned"),),
    ),
)

_ROLLOUTS = [
    {
        "response_length": 20 + 7 * at % 300, "prompt_length": 12, "step": at // 8,
        "prompt_id": f"p{at // 2}", "finish_reason": "stop", "reward": 0.25 * (at % 4),
    }
    for at in range(32)
]  # fmt: skip
_FIGURES = {
    "response_length/mean": 200.0, "response_length/max": 512.0, "response_length/min": 20.0,
    "response_length/clip_ratio": 0.1, "prompt_length/mean": 81.4, "critic/score/mean": 0.25,
}  # fmt: skip


def make_files(folder: Path) -> None:
    """Write what ``FILES`` break into an empty folder."""
    write_scenario(folder)
    _archive(folder / "rollout_3.pt")
    shape = {"data": struct.pack("<12q", *([1] * 12)), "shape": (3, 4), "dtype": "int64", "format": "numpy"}
    (folder / "global_step_1_training_input.pkl").write_bytes(
        pickle.dumps(
            TrainingInputBatch(
                {"batch_dict": {"response_mask": shape, "attention_mask": shape}, "metadata": {"uids": ["a"]}}
            )
        )
    )
    frame = pd.DataFrame(_ROLLOUTS)
    for name in ("trace.csv", "rollouts.csv"):
        frame.to_csv(folder / name, index=False)
    (folder / "trace.csv.gz").write_bytes(gzip.compress((folder / "trace.csv").read_bytes(), mtime=0))
    for name in ("trace.parquet", "rollouts.parquet"):
        frame.to_parquet(folder / name, index=False)
    words = ["so the answer is", "therefore we find that", "wait, let me check this again"]
    pd.DataFrame(
        {
            "step": [1] * 6, "prompt": ["what is one and one?"] * 6, "completion": words * 2,
            "reward": [0.5] * 6, "advantage": [0.0] * 6,
        }
    ).to_parquet(folder / "completions_00001.parquet", index=False)  # fmt: skip
    _lines(folder / "rollouts.jsonl", _ROLLOUTS)
    texts = [{"input": "a question", "output": words[at % 3] * 9, "score": 1.0, "step": 1} for at in range(8)]
    _lines(folder / "verl.jsonl", texts)
    _lines(folder / "metrics.jsonl", [{"step": step, "data": _FIGURES} for step in range(4)])
    listed = " - ".join(f"{name}:np.float64({value})" for name, value in _FIGURES.items())
    (folder / "console.log").write_text(
        "".join(f"(TaskRunner pid=7) step:{step} - {listed}\n" for step in range(4))
    )
    history = [
        {"step": step, "completions/mean_length": 100.0, "completions/max_length": 300.0, "reward": 0.5}
        for step in range(1, 5)
    ]
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 4, "log_history": history}))
    (folder / "events.out.tfevents.1").write_bytes(b"".join(_event(step) for step in range(1, 5)))
    (folder / "burstgpt.csv").write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        + "".join(f"{at},ChatGPT,{10 + at},{20 + at},{30 + 2 * at},Conversation log\n" for at in range(20))
    )
    _lines(
        folder / "mooncake.jsonl",
        [
            {"timestamp": at * 10, "input_length": 30, "output_length": 20 + at, "hash_ids": [at]}
            for at in range(20)
        ],
    )
    _lines(
        folder / "areal.jsonl",
        [
            {"head_version": 1, "tail_version": 2, "reward": 0.5, "prompt_len": 12, "seqlen": 60 + at}
            for at in range(8)
        ],
    )
    (folder / "profile.json").write_text(json.dumps(content()))
    write_scenario(folder, "profiled.yaml", costs={"kind": "profile", "path": "profile.json"})
    (folder / "single.yaml").write_bytes(find_shipped("h200-single").read_bytes())


def make_corpus(folder: Path) -> None:
    """Write all files into an empty folder, which must be the current one: run folders remember it."""
    make_files(folder)
    scenario = folder / "tiny.yaml"
    small = fit_scenario()
    (folder / "small.yaml").write_text(dump_yaml(small.to_plain()))
    verl_log(folder / "train.log", small, CostTerms(decode=1.3), steps=8)
    for arguments in (
        ("simulate", scenario.name, "-o", "simulated"),
        ("compare", scenario.name, "--policies", "intra,oppo", *_SMALL, "-o", "compared"),
        ("sweep", scenario.name, "--grid", "policy.chunk_size=4,8", *_SMALL, "-o", "swept"),
        ("tune", scenario.name, *_SMALL, "--trials", "4", "-o", "tuned"),
        (
            "fit",
            "train.log",
            "--scenario",
            "small.yaml",
            "--draws",
            "20",
            "--fit-steps",
            "4",
            "--no-figures",
            "-o",
            "fitted",
        ),
    ):
        if run([*arguments, "--quiet"]) not in (0, 3):
            sys.exit(f"the corpus cannot be made: oppo {' '.join(arguments)}")


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _archive(path: Path) -> None:
    samples = [
        {"index": at, "group_index": at // 2, "tokens": [1] * (20 + at), "response_length": 10 + at,
         "reward": 0.5, "status": "completed", "weight_versions": ["3"]}
        for at in range(8)
    ]  # fmt: skip
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(
            "rollout_3/data.pkl", pickle.dumps({"rollout_id": 3, "samples": samples}, protocol=2)
        )
        archive.writestr("rollout_3/version", b"3\n")


def _event(step: int) -> bytes:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    def value(tag: str, figure: float) -> bytes:
        return field(1, field(1, tag.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", figure))

    figures: Mapping[str, float] = {"completions/mean_length": 100.0, "completions/max_length": 300.0}
    summary = b"".join(value(*each) for each in figures.items())
    data = bytes([2 << 3, step]) + field(5, summary)
    return struct.pack("<Q", len(data)) + b"\0" * 4 + data + b"\0" * 4
