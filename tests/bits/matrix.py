# SPDX-License-Identifier: Apache-2.0
"""The jobs whose bits are recorded. Each is a small job that takes seconds; together they reach every family of models and schedules and
every option that may change what is computed or in which order."""
import copy
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
STEPS = 6
PARALLELISM = ("pipeline", "data", "schedule", "chunks", "group", "stage_layers", "recompute", "transport", "threads")


class Patch:
    """A named part of a job file, which is merged into the rest of it."""

    def __init__(self, name, **fields):
        self.name = name
        self.fields = fields


class Job:
    """A job file. `resumed`: the job files that go on from its checkpoint, one after the other."""

    def __init__(self, name, spec, resumed=()):
        self.name = name
        self.spec = spec
        self.resumed = list(resumed)


def merged(spec, fields):
    result = copy.deepcopy(spec)
    for key, value in fields.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


BASE = {
    "name": "bits",
    "data": {"train": {"path": "text.txt", "format": "bytes"}, "shuffle": True},
    "batch": {"global": 8, "microbatch": 1},
    "optimizer": {
        "adamw": {"learning_rate": 3e-3, "clip_norm": 1.0},
        "lr_schedule": {"warmup_steps": 2, "decay": "cosine", "decay_steps": 8},
    },
    "steps": STEPS,
    "parallelism": {"pipeline": 1, "data": 1, "schedule": "1f1b", "threads": 1},
    "checkpoint": {"directory": "checkpoint"},
    "seed": 11,
}
SHAPE = {"layers": 8, "hidden": 32, "heads": 4, "context": 16, "vocab": 256}

# Models.
GPT2 = Patch("gpt2", model={"family": "gpt2", **SHAPE})
LLAMA = Patch("llama", model={"family": "llama", "kv_heads": 2, "inner": 48, **SHAPE})
LLAMA_TIED = Patch("llama tied", model={"family": "llama", "kv_heads": 2, "inner": 48, "tied_head": True, **SHAPE})
LLAMA_ROPE = Patch("llama stretched rope", model={
    "family": "llama", "inner": 48, "head_size": 16, "positions": 32, **SHAPE,
    "rope_scaling": {"factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_positions": 8}})
QWEN2 = Patch("qwen2", model={"family": "qwen2", "kv_heads": 1, "inner": 48, **SHAPE})
QWEN2_TIED = Patch("qwen2 tied", model={"family": "qwen2", "kv_heads": 2, "inner": 48, "tied_head": True, **SHAPE})
QWEN3 = Patch("qwen3", model={"family": "qwen3", "kv_heads": 2, "inner": 48, "head_size": 12, **SHAPE})
MISTRAL = Patch("mistral", model={"family": "mistral", "kv_heads": 2, "inner": 48, "attention_window": 7, **SHAPE})
MIXTRAL = Patch("mixtral", model={"family": "mixtral", "kv_heads": 2, "inner": 48, **SHAPE,
                                  "experts": {"count": 5, "per_token": 2, "auxiliary_loss": 0.01}})
MIXTRAL_SIGMOID = Patch("mixtral sigmoid", model={"family": "mixtral", "kv_heads": 2, "inner": 48, **SHAPE,
                                                  "experts": {"count": 5, "per_token": 2, "scores": "sigmoid"}})
QWEN3_MOE = Patch("qwen3_moe", model={"family": "qwen3_moe", "kv_heads": 2, "inner": 48, "head_size": 12, **SHAPE,
                                      "experts": {"count": 6, "per_token": 3, "inner": 20, "normalize": False, "dense_blocks": [0, 5]}})
# Its losses are not computed from tokens; its steps and checkpoints are recorded nevertheless.
EMULATED = Patch("emulated", data=None, model={
    "family": "emulated", "layers": 8, "forward_ms": 0.2, "input_grad_ms": 0.2, "weight_grad_ms": 0.2, "activation_bytes": 4096})


def golden(name, context, batch, masked=False):
    """A Hugging Face folder as the start, and the data that belongs to it."""
    folder = GOLDEN / "models" / name
    train = {"path": str(folder / "train_batches.safetensors"), "format": "safetensors"} if masked else \
        {"path": str(folder / "tokens.bin"), "format": "uint16"}
    return Patch(f"init_from {name}", model={"init_from": str(folder), "context": context},
                 data={"train": train, "shuffle": False}, batch={"global": batch})


# Options.
BF16 = Patch("bf16", precision="bf16")
FP8 = Patch("fp8", precision="fp8")
FP8_BLOCK = Patch("fp8 by block", precision="fp8", fp8={"recipe": "block"})
INEXACT = Patch("exact false", exact=False)
NO_CLIPPING = Patch("no clipping", optimizer={"adamw": {"clip_norm": 0}})
FEEDBACK = Patch("error feedback", optimizer={"adamw": {"clip_norm": 0}, "error_feedback": 0.75})
HARD_CLIPPING = Patch("clipped at 0.1", optimizer={"adamw": {"clip_norm": 0.1}})
VALIDATION = Patch("validation", data={
    "validation": {"path": "held_out.txt", "format": "bytes", "every_steps": 2, "batches": 2}})
CORPORA = Patch("two corpora", data={"train": [
    {"path": "text.txt", "format": "bytes", "weight": 0.7}, {"path": "held_out.txt", "format": "bytes", "weight": 0.3}]})
IN_FILE_ORDER = Patch("in file order", data={"shuffle": False})
OFTEN_SAVED = Patch("saved every 2 steps", checkpoint={"every_steps": 2})
PLAIN_ADAMW = Patch("other AdamW", optimizer={
    "adamw": {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0}, "lr_schedule": {"decay": "constant", "decay_steps": 0}})
# A job has one optimizer, so these replace the section.
LION = Patch("lion", optimizer={"adamw": None, "lion": {"learning_rate": 1e-3}})
SGD = Patch("sgd", optimizer={"adamw": None, "sgd": {"learning_rate": 0.1, "nesterov": True}})
PLAIN_SGD = Patch("sgd without momentum", optimizer={"adamw": None, "sgd": {"learning_rate": 0.1, "momentum": 0}})
MUON = Patch("muon", optimizer={"adamw": None, "muon": {"learning_rate": 1e-3, "adamw": {"weight_decay": 0}}})
WSD = Patch("wsd", optimizer={"lr_schedule": {"decay": "wsd", "stable_steps": 2, "decay_steps": 3}})
GROUPS = Patch("groups", optimizer={"groups": [
    {"parameters": "*.bias", "learning_rate_scale": 0.5}, {"parameters": "*wte*", "weight_decay": 0}]})
LOSS_TERMS = Patch("smoothed, z-loss", loss={"label_smoothing": 0.1, "z_loss": 1e-4})


def batch(total, microbatch=1):
    return Patch(f"batch {total}/{microbatch}", batch={"global": total, "microbatch": microbatch})


def job(*patches, then=(), **parallelism):
    """then: (steps of the first run, then the parallelism of each run that goes on, `steps` of them among it)."""
    unknown = set(parallelism) - set(PARALLELISM)
    if unknown:
        raise ValueError(f"not a field of parallelism: {unknown}")
    spec = BASE
    for patch in patches:
        spec = merged(spec, patch.fields)
    spec = merged(spec, {"parallelism": parallelism})
    if spec["data"] is None:
        del spec["data"]
    name = ", ".join([patch.name for patch in patches] + [f"{key} {value}" for key, value in parallelism.items()])
    name = name.replace(f"{GOLDEN}/", "")
    if not then:
        return Job(name, spec)
    first, *rest = then
    resumed = []
    for changes in rest:
        options = {key: value for key, value in changes.items() if key != "steps"}
        resumed.append(merged(spec, {"steps": changes["steps"], "parallelism": options}))
    name += f", {first} steps" + "".join(
        ", then " + ", ".join(f"{key} {value}" for key, value in changes.items()) for changes in rest)
    return Job(name, merged(spec, {"steps": first}), resumed)


def schedule_file(name):
    return f"file:{GOLDEN / 'schedules' / name}"


def jobs():
    """All of them. Their names are unique: each says what it sets."""
    families = ["naive", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p",
                "interleaved-zb", "gis", "zb-v", "v-half", "v-min", "dualpipe-v"]
    two_copies = ["dualpipe", "chimera"]
    without_flush = ["pipedream", "pipedream-2bw"]
    # Under zb-1p, zb-2p and auto the order depends on the speed that workers measure when they start. It changes no bit of an exact
    # job, but it decides which products are merged: with `exact: false` such a job is not the same from run to run.
    split_backward = ["zb-h2", "zb-v", "interleaved-zb", schedule_file("zb2p/p4_m8.csv")]
    return [
        # Pipelines of one replica: each family of schedules, each number of ranks.
        *[job(GPT2, pipeline=ranks) for ranks in (1, 2, 3, 4)],
        *[job(GPT2, pipeline=2, schedule=family) for family in families if family != "1f1b"],
        *[job(GPT2, pipeline=4, schedule=family) for family in families if family != "1f1b"],
        *[job(GPT2, batch(16), pipeline=ranks, schedule=family) for family in two_copies for ranks in (2, 4)],
        job(GPT2, pipeline=4, schedule="auto"),
        job(GPT2, pipeline=2, data=2, schedule="auto", chunks=2),
        job(GPT2, pipeline=4, schedule=schedule_file("vhalf/p4_m8_v2.csv")),
        job(GPT2, pipeline=4, schedule=schedule_file("zb2p/p4_m8.csv")),
        # The other families of models, whose embedding and head are two tensors or one.
        *[job(model, pipeline=ranks) for model in (LLAMA, LLAMA_TIED, LLAMA_ROPE, QWEN2, QWEN2_TIED, QWEN3, MISTRAL, MIXTRAL, QWEN3_MOE)
          for ranks in (1, 3)],
        job(LLAMA, pipeline=4, schedule="zb-h1"),
        job(LLAMA, batch(16), pipeline=4, schedule="dualpipe"),
        job(QWEN2, pipeline=2, schedule="zb-v"),
        *[job(model, pipeline=4, schedule="zb-h1", threads=2) for model in (MIXTRAL, QWEN3_MOE)],
        job(MIXTRAL, batch(16), pipeline=2, data=2, schedule="dualpipe"),
        *[job(MIXTRAL_SIGMOID, pipeline=ranks) for ranks in (1, 2)],
        job(QWEN3_MOE, BF16, then=(3, {"steps": 6, "pipeline": 1}), pipeline=3),
        job(QWEN2_TIED, batch(12), pipeline=2, data=3, schedule="interleaved-1f1b"),
        # Replicas.
        *[job(GPT2, batch(12), pipeline=ranks, data=replicas) for replicas in (2, 3) for ranks in (1, 2)],
        job(GPT2, batch(16), pipeline=4, data=2, schedule="zb-h1"),
        job(GPT2, batch(16), pipeline=2, data=2, schedule="dualpipe"),
        job(LLAMA, batch(12), pipeline=1, data=3),
        # Chunks, groups, partitions, microbatches.
        job(GPT2, pipeline=2, schedule="interleaved-1f1b", chunks=4),
        job(GPT2, pipeline=2, schedule="interleaved-1f1b", chunks=2, group=4),
        job(GPT2, pipeline=3, schedule="1f1b", stage_layers=[1, 2, 5]),
        job(GPT2, pipeline=3, schedule="gpipe", stage_layers=[4, 3, 1]),
        job(GPT2, pipeline=2, schedule="interleaved-1f1b", chunks=2, stage_layers=[1, 3, 2, 2]),
        job(GPT2, batch(24, 3), pipeline=2),
        job(GPT2, batch(20, 2), pipeline=3, data=2),
        # Transports and threads.
        *[job(GPT2, pipeline=3, transport=transport) for transport in ("shm", "gloo")],
        job(GPT2, batch(12), pipeline=2, data=2, transport="gloo"),
        job(GPT2, batch(16), pipeline=4, schedule="dualpipe", transport="gloo"),
        job(GPT2, pipeline=2, threads=2),
        # Precision.
        *[job(model, BF16, pipeline=ranks) for model in (GPT2, LLAMA, QWEN2, QWEN3, MISTRAL, MIXTRAL) for ranks in (1, 2)],
        job(GPT2, BF16, batch(12), pipeline=2, data=3, schedule="zb-h1"),
        job(GPT2, BF16, batch(16), pipeline=4, schedule="chimera"),
        job(GPT2, FP8, pipeline=2, schedule="zb-h1"),
        job(LLAMA, FP8_BLOCK, then=(3, {"steps": 6, "pipeline": 1}), pipeline=2, recompute="selective"),
        # Recomputation.
        *[job(model, pipeline=2, recompute=mode) for model in (GPT2, LLAMA, QWEN3, MISTRAL, MIXTRAL, QWEN3_MOE)
          for mode in ("selective", "full")],
        job(GPT2, pipeline=3, recompute=["none", "selective", "full"]),
        job(GPT2, pipeline=2, schedule="zb-h1", recompute="full"),
        job(LLAMA, BF16, pipeline=2, schedule="zb-v", recompute="selective"),
        # Products of several microbatches at once.
        *[job(GPT2, INEXACT, pipeline=4, schedule=family) for family in split_backward],
        job(LLAMA, BF16, INEXACT, pipeline=2, schedule="zb-h2"),
        # Without a flush.
        *[job(LLAMA, NO_CLIPPING, pipeline=ranks, schedule=family) for family in without_flush for ranks in (2, 4)],
        job(LLAMA, NO_CLIPPING, VALIDATION, OFTEN_SAVED, pipeline=2, schedule="pipedream"),
        job(QWEN2, NO_CLIPPING, BF16, pipeline=2, schedule="pipedream", recompute="full"),
        job(GPT2, NO_CLIPPING, batch(12), pipeline=2, data=2, schedule="pipedream-2bw"),
        job(GPT2, NO_CLIPPING, VALIDATION, pipeline=3, schedule="pipedream-2bw"),
        job(GPT2, FEEDBACK, BF16, then=(3, {"steps": 6, "pipeline": 3}), pipeline=2, schedule="pipedream-2bw"),
        # Optimizer and data.
        *[job(GPT2, patch, pipeline=2) for patch in (NO_CLIPPING, HARD_CLIPPING, PLAIN_ADAMW, CORPORA, IN_FILE_ORDER)],
        *[job(GPT2, patch, pipeline=2) for patch in (LION, SGD, PLAIN_SGD, MUON, WSD, GROUPS, LOSS_TERMS)],
        job(LLAMA, LION, BF16, LOSS_TERMS, then=(3, {"steps": 6, "pipeline": 1}), pipeline=2, schedule="zb-h1"),
        *[job(GPT2, VALIDATION, pipeline=ranks) for ranks in (1, 3)],
        job(GPT2, VALIDATION, batch(16), pipeline=2, data=2, schedule="dualpipe"),
        job(LLAMA, VALIDATION, pipeline=2, schedule="zb-v"),
        # From Hugging Face folders; the last has targets that do not count.
        *[job(golden("gpt2-tiny", 32, 4), pipeline=ranks) for ranks in (1, 2)],
        job(golden("llama-tiny", 32, 4), pipeline=2, schedule="zb-h1"),
        job(golden("qwen2-tiny", 16, 4), BF16, pipeline=3),
        *[job(golden("gpt2-ignore-index", 24, 6, masked=True), pipeline=3, data=replicas) for replicas in (1, 2)],
        job(golden("gpt2-ignore-index", 24, 6, masked=True), INEXACT, pipeline=3, schedule="zb-h2"),
        # Resumed in the middle: as it was, and by another pipeline.
        job(GPT2, then=(3, {"steps": 6}), pipeline=2),
        job(GPT2, then=(3, {"steps": 6, "pipeline": 4, "schedule": "zb-h1"}), pipeline=2),
        job(GPT2, VALIDATION, then=(2, {"steps": 5, "pipeline": 3}, {"steps": 8, "pipeline": 1}), pipeline=4),
        job(LLAMA, BF16, then=(3, {"steps": 6, "pipeline": 1, "data": 2}), pipeline=2, data=2),
        job(LLAMA, NO_CLIPPING, then=(3, {"steps": 6}), pipeline=2, schedule="pipedream"),
        job(GPT2, batch(16), then=(3, {"steps": 6}), pipeline=2, schedule="dualpipe"),
        # Layers that only take time.
        job(EMULATED, pipeline=4),
        job(EMULATED, batch(12), pipeline=2, data=3, schedule="interleaved-1f1b"),
        job(EMULATED, NO_CLIPPING, pipeline=4, schedule="pipedream"),
    ]
