# SPDX-License-Identifier: Apache-2.0
"""Jobs of several stages that train until they are stopped, for dashboards to look at."""
import dashboards


def gpt(directory, steps=1_000_000, checkpoint_every=10):
    """A small GPT with all that a job can have: validation, checkpoints, a schedule of the learning rate. It learns our documents."""
    text = directory / "data.txt"
    text.write_text("".join(path.read_text() for path in sorted(dashboards.ROOT.glob("docs/*.md"))))
    return {
        "name": "gpt",
        "model": {"family": "gpt2", "layers": 4, "hidden": 64, "heads": 4, "context": 64, "vocab": 256},
        "data": {
            "train": {"path": str(text), "format": "bytes"},
            "validation": {"path": str(text), "format": "bytes", "every_steps": 5, "batches": 1},
        },
        "batch": {"global": 16, "microbatch": 4},
        "optimizer": {"adamw": {"learning_rate": 1e-3}, "lr_schedule": {"warmup_steps": 20, "decay": "cosine", "decay_steps": 10_000}},
        "steps": steps,
        "parallelism": {"pipeline": 4, "schedule": "1f1b", "threads": 1},
        "checkpoint": {"directory": str(directory / "checkpoints"), "every_steps": checkpoint_every, "keep": 2},
        "seed": 1,
    }


def experts(directory):
    """A small mixture of experts on two stages. It learns what gpt() does."""
    return {
        "name": "experts",
        "model": {
            "family": "mixtral",
            "layers": 2,
            "hidden": 32,
            "heads": 2,
            "kv_heads": 1,
            "inner": 48,
            "context": 64,
            "vocab": 256,
            "experts": {"count": 4, "per_token": 2},
        },
        "data": {"train": {"path": str(directory / "data.txt"), "format": "bytes"}, "shuffle": True},
        "batch": {"global": 16, "microbatch": 4},
        "steps": 1_000_000,
        "parallelism": {"pipeline": 2, "schedule": "1f1b", "threads": 1},
        "checkpoint": {"directory": str(directory / "experts"), "every_steps": 100},
        "seed": 1,
    }


def emulated():
    """Layers that only take time. There is nothing to learn and nothing to save."""
    return {
        "name": "emulated",
        "model": {
            "family": "emulated",
            "layers": 4,
            "forward_ms": 5,
            "input_grad_ms": 5,
            "weight_grad_ms": 5,
            "activation_bytes": 65536,
        },
        "batch": {"global": 8, "microbatch": 1},
        "steps": 1_000_000,
        "parallelism": {"pipeline": 4, "schedule": "1f1b"},
    }
