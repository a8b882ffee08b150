#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strongest fair PyTorch pipeline beside a job of Takt: torch.distributed.pipelining over Gloo on processes of this machine, with the
model, the optimizer and the precisions of torch_baseline.py. Each way to run it is measured, and the fastest is named.

    tests/bench/torch_pipeline.py --model gpt2-124m --batch 16 --microbatch 2 --context 256 --precision bf16
    tests/bench/torch_pipeline.py --model tiny --batch 4 --microbatch 1 --context 32 --steps 2    # does the script work?

A variant is schedule/compile/precision. schedule: 1f1b (a stage a rank), interleaved-zb (two stages a rank, one after the other), zbv (two
stages a rank, first and last on the same). compile: of each stage (default), of each block (block:default), or eager. precision: f32,
autocast, bf16. Each variant has processes of its own, which end with it; one that fails or takes too long is listed.

Blocks are divided by what a block and the head take here, so that the slowest rank has the least to do. If the head is the token embedding,
and both are on different ranks, each rank has a copy, and their gradients are summed, as Megatron does; zbv has both on one rank, with one
copy. Gradients are clipped to the norm over all ranks, in which both copies count once. A variant whose losses are not those of the others
is listed as failed.
"""
import argparse
import fnmatch
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import traceback

import side_by_side
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble
from torch_baseline import SHAPES, Model, libraries, make_optimizer

# {name: (class, stages of a rank)}
SCHEDULES = {
    "1f1b": (pipelining.Schedule1F1B, 1),
    "interleaved-zb": (pipelining.ScheduleInterleavedZeroBubble, 2),
    "zbv": (ScheduleZBVZeroBubble, 2),
}
COMPILED = ["eager", "default", "block:default"]


class Stage(nn.Module):
    """Some blocks of the model. The first stage also has the embedding, and the last one the head and the loss, so that they are compiled
    together."""

    def __init__(self, model, blocks, first, last, microbatches, autocast):
        super().__init__()
        self.blocks = nn.ModuleList(model.blocks[i] for i in blocks)
        self.tokens, self.positions = (model.tokens, model.positions) if first else (None, None)
        self.norm, self.head = (model.norm, model.head) if last else (None, None)
        self.register_buffer("cos", model.cos, persistent=False)
        self.register_buffer("sin", model.sin, persistent=False)
        self.microbatches, self.autocast = microbatches, autocast

    def forward(self, x, targets=None):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            if self.tokens is not None:
                x = Model.embed(self, x)
            for block in self.blocks:
                x = block(x, (self.cos, self.sin))
            return x if self.head is None else Model.loss(self, x, targets) / self.microbatches


def placed(schedule, ranks):
    """The rank of each stage."""
    if schedule == "zbv":
        return [*range(ranks), *reversed(range(ranks))]
    return [*range(ranks)] * SCHEDULES[schedule][1]


def divided(layers, ranks_of_stages, head):
    """How many blocks each stage has: the fullest rank has as little as can be, then the fullest stage, and the stages are even.
    The head counts as `head` blocks."""

    def cost(counts):
        stages = [*counts[:-1], counts[-1] + head]
        ranks = [sum(s for s, rank in zip(stages, ranks_of_stages) if rank == r) for r in set(ranks_of_stages)]
        return max(ranks), max(stages), sum(stage * stage for stage in stages)

    stages = len(ranks_of_stages)
    cuts = itertools.combinations_with_replacement(range(1, layers + 1), stages - 1)  # only the last stage may have no block
    every = ([b - a for a, b in itertools.pairwise((0, *cut, layers))] for cut in cuts)
    return min((counts for counts in every if all(counts[:-1])), key=cost)


def head_in_blocks(model, options, precision):
    """What the head and the loss take, divided by what a block takes, over all ranks, each of which measures at the same time."""
    hidden = torch.zeros(options.microbatch, options.context, SHAPES[options.model].hidden, dtype=model.norm.weight.dtype, requires_grad=True)
    targets = torch.zeros(options.microbatch, options.context, dtype=torch.long)
    block, rotary = model.blocks[0], (model.cos, model.sin)

    def seconds(forward):
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                result = forward()
            result.backward(torch.ones_like(result))
            best = min(best, time.perf_counter() - start)
        return best

    times = torch.tensor([seconds(lambda: model.loss(hidden, targets)), seconds(lambda: block(hidden, rotary))])
    model.zero_grad(set_to_none=True)
    dist.all_reduce(times)
    return (times[0] / times[1]).item()


class Rank:
    def __init__(self, options, variant):
        self.options, self.rank = options, options.rank
        name, compiled, self.precision = variant.split("/")
        schedule, _ = SCHEDULES[name]
        ranks = placed(name, options.pipeline)
        torch.manual_seed(1)
        shape = SHAPES[options.model]
        model = Model(shape, options.context)
        if self.precision == "bf16":
            model = model.to(torch.bfloat16)
        self.blocks = divided(shape.layers, ranks, head_in_blocks(model, options, self.precision))
        self.ends = None  # the ranks that have a copy of the token embedding each
        if shape.tied and ranks[0] != ranks[-1]:
            self.ends = dist.new_group([ranks[0], ranks[-1]])
            model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())
        microbatches = options.batch // options.microbatch
        # What stages receive and send is stated, so that nothing runs to find it out.
        tokens = torch.zeros(options.microbatch, options.context, dtype=torch.long)
        hidden = torch.zeros(options.microbatch, options.context, shape.hidden, dtype=model.norm.weight.dtype, requires_grad=True)
        loss = torch.zeros((), requires_grad=True)
        offsets = [0, *itertools.accumulate(self.blocks)]
        modules, stages = [], []
        for index, rank in enumerate(ranks):
            if rank != self.rank:
                continue
            first, last = index == 0, index == len(ranks) - 1
            module = Stage(model, range(offsets[index], offsets[index + 1]), first, last, microbatches, self.precision == "autocast")
            compile_stage(module, compiled)
            modules.append(module)
            stages.append(pipelining.PipelineStage(module, index, len(ranks), torch.device("cpu"), input_args=tokens if first else hidden,
                                                   output_args=loss if last else hidden))
        self.has_first, self.has_last = self.rank == ranks[0], self.rank == ranks[-1]
        self.schedule = schedule(stages if len(stages) > 1 else stages[0], microbatches, loss_fn=lambda loss, _: loss, scale_grads=False)
        self.parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
        self.head = model.head.weight
        self.tied = self.head if self.has_last else model.tokens.weight
        self.optimizer = make_optimizer(self.parameters, self.precision)
        windows = torch.randint(shape.vocab, (options.batch, options.context + 1))
        self.tokens, self.targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def step(self):
        """Returns the loss, on the rank with the last stage."""
        losses = []
        arguments = (self.tokens,) if self.has_first else ()
        targets = {"target": self.targets, "targets": self.targets} if self.has_last else {}
        self.schedule.step(*arguments, losses=losses, return_outputs=False, **targets)
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sum(loss.item() for loss in losses)

    def clip(self):
        if self.ends is not None and (self.has_first or self.has_last):
            dist.all_reduce(self.tied.grad, group=self.ends)
        counted = [p.grad for p in self.parameters if self.ends is None or not self.has_last or p is not self.head]
        square = nn.utils.get_total_norm(counted).float() ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(self.parameters, 1.0, square.sqrt())

    def run(self):
        losses, seconds = [], []
        for _ in range(self.options.warmup + self.options.steps):
            start = time.perf_counter()
            losses.append(self.step())
            seconds.append(time.perf_counter() - start)
        everyone = torch.tensor([*seconds, *losses], dtype=torch.float64)
        gathered = [torch.empty_like(everyone) for _ in range(self.options.pipeline)]
        dist.all_gather(gathered, everyone)
        every = torch.stack(gathered)
        slowest = every[:, : len(seconds)].max(0).values.tolist()[self.options.warmup :]
        step = statistics.median(slowest)
        return {
            "step_seconds": step,
            "tokens_per_second": self.options.batch * self.options.context / step,
            "all_step_seconds": slowest,
            "losses": every[:, len(seconds) :].sum(0).tolist(),
            "blocks": self.blocks,
        }


def compile_stage(module, how):
    """In place: the zero-bubble schedules refuse modules that torch.compile wraps."""
    for part in [] if how == "eager" else module.blocks if how.startswith("block:") else [module]:
        part.compile(fullgraph=True, dynamic=False)


def run_rank(options):
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("highest" if options.precision == "f32" else "high")
    dist.init_process_group("gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.pipeline)
    try:
        result = Rank(options, options.variants[0]).run()
        if options.rank == 0:
            print(json.dumps({"variant": options.variants[0], **result}), flush=True)
        dist.barrier()
    except Exception as error:
        traceback.print_exc()
        words = " ".join(str(error).split())
        print(f"rank {options.rank}: {type(error).__name__}: {words}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # what is left of Gloo and of the compiler has nothing to say


def measure(options, variant):
    with tempfile.TemporaryDirectory(prefix="takt-torch-") as folder:
        command = [sys.executable, pathlib.Path(__file__).resolve()]
        for name in ("model", "precision", "batch", "microbatch", "context", "pipeline", "threads", "steps", "warmup"):
            command += [f"--{name}", getattr(options, name)]
        command += ["--variants", variant, "--store", f"{folder}/store"]
        ranks = [[*command, "--rank", rank] for rank in range(options.pipeline)]
        environment = {"OMP_NUM_THREADS": str(options.threads), "GLOO_SOCKET_IFNAME": "lo"}
        return side_by_side.run(ranks, options.timeout or None, environment, quiet=True)


def check(result, results):
    """A compiled stage may leave out gradients where backward is split. The losses must fall as those of the first variant of the precision
    do."""
    same = [other for other in results if other["variant"].split("/")[2] == result["variant"].split("/")[2]]
    if not same:
        return
    expected, losses = same[0]["losses"], result["losses"]
    off = max(abs(a - b) for a, b in zip(expected, losses))
    if off > max(abs(expected[0] - expected[-1]), 1e-3) / 10:
        raise side_by_side.Failed(f"its losses {losses} differ from {expected} of {same[0]['variant']}")


def variants(options):
    precisions = ["f32"] if options.precision == "f32" else ["autocast", "bf16"]
    every = ["/".join(parts) for parts in itertools.product(SCHEDULES, COMPILED, precisions)]
    return [v for v in every if any(fnmatch.fnmatch(v, pattern) for pattern in options.variants)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--microbatch", type=int, default=2, help="sequences of a microbatch")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--pipeline", type=int, choices=[2, 3, 4], default=2, help="processes")
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--variants", nargs="+", default=["*"])
    parser.add_argument("--timeout", type=int, default=900, help="seconds for a variant; 0: no limit")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch % options.microbatch:
        parser.error(f"--microbatch {options.microbatch} does not divide --batch {options.batch}")
    return options


def main():
    options = arguments()
    if options.rank is not None:
        run_rank(options)
    side_by_side.exit_on_termination()
    results, failures = [], {}
    for variant in variants(options):
        try:
            result = measure(options, variant)
            check(result, results)
            results.append(result)
            print(f"{variant:50} {results[-1]['step_seconds'] * 1e3:10.1f} ms", file=sys.stderr, flush=True)
        except side_by_side.Failed as error:
            failures[variant] = str(error)
            print(f"{variant:50} failed: {error}", file=sys.stderr, flush=True)
    if not results:
        sys.exit("torch_pipeline.py: no variant ran")
    best = min(results, key=lambda result: result["step_seconds"])
    report = {"torch": torch.__version__, "model": options.model, "device": "cpu", "threads": options.threads, "best": best, "variants": results,
              "failures": failures, "libraries": libraries()}
    if options.output == "json":
        print(json.dumps(report))
    else:
        print(f"PyTorch {report['torch']} on {options.pipeline} processes: {options.model}, best {best['variant']}, blocks {best['blocks']}: "
              f"{best['tokens_per_second']:.0f} tokens/s, {best['step_seconds'] * 1e3:.1f} ms a step; {report['libraries']}")


if __name__ == "__main__":
    main()
