# SPDX-License-Identifier: Apache-2.0
"""Steps of a pipeline of Takt's workers on this machine, for beside_torch.py: the job that torch_pipeline.py trains. The workers' layers are
measured once (`takt profile`), as before any job that leaves its partition to the plan; then each variant is a job of its own.

A variant is schedule/transport."""
import array
import contextlib
import fnmatch
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import side_by_side

SCHEDULES = ["1f1b", "zb-h1", "zb-v", "auto"]
TRANSPORTS = ["tcp", "shm"]
# The models of tests/bench/train_job.cc.
MODELS = {
    "tiny": {"family": "gpt2", "layers": 4, "hidden": 64, "heads": 4, "vocab": 512},
    "gpt2-124m": {"family": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "vocab": 50257},
}
START_SECONDS = 60


def variants(patterns):
    every = ["/".join(parts) for parts in itertools.product(SCHEDULES, TRANSPORTS)]
    return [v for v in every if any(fnmatch.fnmatch(v, pattern) for pattern in patterns)]


class Pipeline:
    """A coordinator and workers. It is a context, and they end with it."""

    def __init__(self, takt, options, model, shape, precision):
        """`shape`: sequences of a step, sequences of a microbatch, tokens of a sequence."""
        self._takt, self._options, self._precision = takt, options, precision
        self._model, (self._batch, self._microbatch, self._context) = model, shape
        self._jobs = itertools.count(1)
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="takt-pipeline-")))
            state = self._folder / "state"
            stack.callback(self._call, "local", "down", "--state", state, seconds=START_SECONDS, fails=True)
            self._write_tokens()
            self._call("local", "up", "--state", state, "--workers", self._options.pipeline, "--threads", self._options.threads[0],
                       "--device", "cpu", seconds=START_SECONDS)
            self._address = (state / "address").read_text().strip()
            self._call("--coordinator", self._address, "profile", self._write_job("learn", "1f1b", "tcp"), seconds=self._options.timeout)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def measure(self, names):
        """The variants of these names, and why others failed."""
        results, failures = [], {}
        for name in names:
            try:
                results.append(self._run(name))
                print(f"takt {name:45} {results[-1]['step_seconds'] * 1e3:10.1f} ms", file=sys.stderr, flush=True)
            except side_by_side.Failed as error:
                failures[name] = str(error)
                print(f"takt {name:45} failed: {error}", file=sys.stderr, flush=True)
        return {"variants": results, "failures": failures}

    def _run(self, variant):
        name = f"job-{next(self._jobs)}"
        job = self._write_job(name, *variant.split("/"))
        self._call("--coordinator", self._address, "submit", job, seconds=START_SECONDS)
        try:
            lines = self._call("-o", "json", "--coordinator", self._address, "watch", name, seconds=self._options.timeout)
        except side_by_side.Failed:
            self._call("--coordinator", self._address, "cancel", name, seconds=START_SECONDS, fails=True)
            raise
        steps = [step for step in map(json.loads, lines.splitlines()) if "grad_norm" in step]
        counted = [step["step_seconds"] for step in steps[self._options.warmup :]]
        if len(counted) != self._options.steps:
            raise side_by_side.Failed(f"{len(steps)} steps were reported")
        step = statistics.median(counted)
        return {"variant": variant, "schedule": steps[-1]["schedule"], "step_seconds": step,
                "tokens_per_second": self._batch * self._context / step, "all_step_seconds": counted,
                "losses": [step["loss"] for step in steps]}

    def _call(self, *arguments, seconds, fails=False):
        """Returns what `takt` printed."""
        command = [str(word) for word in (self._takt, *arguments)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            why = f"it did not end within {seconds:g} s"
        else:
            lines = done.stderr.strip().splitlines() or [""]
            why = f"exit status {done.returncode}: {lines[-1]}" if done.returncode != 0 else None
        if why is None:
            return done.stdout
        if not fails:
            raise side_by_side.Failed(f"takt {' '.join(command[1:])}: {why}")

    def _write_tokens(self):
        """As many random tokens as the steps read; an id is an unsigned number of 32 bits."""
        generator = random.Random(1)
        steps = self._options.warmup + self._options.steps
        count, vocab = steps * self._batch * self._context + 1, MODELS[self._model]["vocab"]
        (self._folder / "tokens.bin").write_bytes(array.array("I", generator.choices(range(vocab), k=count)).tobytes())

    def _write_job(self, name, schedule, transport):
        file = self._folder / f"{name}.yaml"
        file.write_text(json.dumps({
            "name": name,
            "model": {**MODELS[self._model], "context": self._context},
            "data": {"train": {"path": "tokens.bin", "format": "uint32"}},
            "batch": {"global": self._batch, "microbatch": self._microbatch},
            "optimizer": {"adamw": {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "clip_norm": 1.0}},
            "steps": self._options.warmup + self._options.steps,
            "parallelism": {"pipeline": self._options.pipeline, "data": 1, "schedule": schedule, "transport": transport,
                            "threads": self._options.threads[0]},
            "precision": self._precision,
            "seed": 1,
        }))
        return file
