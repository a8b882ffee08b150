#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strongest fair PyTorch beside `takt-bench train`: the same model, batch, optimizer and clipping, each way to run it measured, the
fastest named. Versions are printed: PyTorch's own move the figures by tens of per cent.

    tests/bench/torch_baseline.py --model gpt2-124m --batch 512 --microbatch 64 --context 1024
    tests/bench/torch_baseline.py --model tiny --device cpu --batch 4 --context 32 --steps 3 --warmup 1    # does the script work?

A variant is attention/compile/precision. attention: cudnn, flash (math on the CPU). compile: of the whole model or of each block (`block:`),
default, max-autotune, max-autotune-no-cudagraphs, reduce-overhead, or eager. precision: f32, autocast (over f32 weights), bf16 (pure, with f32
master weights). --variants takes patterns, e.g. 'cudnn/*/autocast'. One JSON object with -o json.
"""
import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import itertools
import json
import statistics
import sys
import time

import torch
import torch._dynamo
import torch._inductor.config
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Shape:
    """The shapes of tests/bench/train_job.cc."""

    layers: int
    hidden: int
    heads: int
    inner: int
    vocab: int
    kv_heads: int = 0
    llama: bool = False
    tied: bool = True
    rope_theta: float = 10000.0


SHAPES = {
    "tiny": Shape(4, 64, 4, 256, 512),
    "tiny-llama": Shape(4, 64, 4, 172, 512, kv_heads=2, llama=True, tied=False),
    "gpt2-6m": Shape(8, 256, 8, 1024, 256),
    "gpt2-124m": Shape(12, 768, 12, 3072, 50257),
    "gpt2-355m": Shape(24, 1024, 16, 4096, 50257),
    "gpt2-774m": Shape(36, 1280, 20, 5120, 50257),
    "gpt2-1558m": Shape(48, 1600, 25, 6400, 50257),
    "llama-110m": Shape(12, 768, 12, 2048, 32000, llama=True, tied=False),
    "llama-1b": Shape(16, 2048, 32, 8192, 128256, kv_heads=8, llama=True, rope_theta=500000.0),
    "llama-8b-slice": Shape(8, 4096, 32, 14336, 128256, kv_heads=8, llama=True, tied=False, rope_theta=500000.0),
}


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.kv_heads = shape.kv_heads or shape.heads
        self.head_size = shape.hidden // shape.heads
        h, bias = shape.hidden, not shape.llama
        norm = nn.RMSNorm if shape.llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(h, eps=1e-5), norm(h, eps=1e-5)
        self.qkv = nn.Linear(h, (shape.heads + 2 * self.kv_heads) * self.head_size, bias=bias)
        self.out = nn.Linear(h, h, bias=bias)
        self.up = nn.Linear(h, 2 * shape.inner if shape.llama else shape.inner, bias=bias)  # SwiGLU: gate and up in one matmul
        self.down = nn.Linear(shape.inner, h, bias=bias)

    def forward(self, x, rotary):
        b, t, _ = x.shape
        heads, kv = self.shape.heads, self.kv_heads
        q, k, v = self.qkv(self.norm1(x)).view(b, t, heads + 2 * kv, self.head_size).transpose(1, 2).split([heads, kv, kv], dim=1)
        if self.shape.llama:
            q, k = rotate(q, rotary), rotate(k, rotary)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != heads)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        y = self.up(self.norm2(x))
        if self.shape.llama:
            gate, up = y.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(y, approximate="tanh"))


def rotate(x, rotary):
    cos, sin = rotary
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class Model(nn.Module):
    """The loss of a microbatch. It is here so that the cross entropy is compiled together with the head."""

    def __init__(self, shape, context):
        super().__init__()
        self.shape = shape
        padded = (shape.vocab + 127) // 128 * 128  # 50257 -> 50304, as a careful user does
        self.tokens = nn.Embedding(padded, shape.hidden)
        self.positions = None if shape.llama else nn.Embedding(context, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = (nn.RMSNorm if shape.llama else nn.LayerNorm)(shape.hidden, eps=1e-5)
        self.head = nn.Linear(shape.hidden, padded, bias=False)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)
        if shape.tied:
            self.head.weight = self.tokens.weight
        size = shape.hidden // shape.heads
        frequency = shape.rope_theta ** (-torch.arange(0, size, 2) / size)
        angle = torch.outer(torch.arange(context), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class MasterAdamW:
    """AdamW on f32 copies of bf16 parameters."""

    def __init__(self, parameters, **options):
        self.parameters = parameters
        self.masters = [p.detach().float() for p in parameters]
        self.optimizer = torch.optim.AdamW(groups(self.masters), **options)

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.masters)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None
        self.optimizer.zero_grad(set_to_none=True)


def groups(parameters):
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def attention(kind):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION]}
    return sdpa_kernel(kinds[kind], set_priority=True) if kind in kinds else contextlib.nullcontext()


class Run:
    def __init__(self, options, attention_kind, compiled, precision):
        self.options, self.attention, self.precision = options, attention_kind, precision
        device = options.device
        torch.manual_seed(1)
        model = Model(SHAPES[options.model], options.context).to(device)
        if precision == "bf16":
            model = model.to(torch.bfloat16)
        self.parameters = list(model.parameters())
        adamw = {"lr": 1e-4, "betas": (0.9, 0.95), "fused": device == "cuda"}
        if precision == "bf16":
            self.optimizer = MasterAdamW(self.parameters, **adamw)
        else:
            self.optimizer = torch.optim.AdamW(groups(self.parameters), **adamw)
        self.model = compile_model(model, compiled)
        shape = (options.batch, options.context + 1)
        windows = torch.randint(SHAPES[options.model].vocab, shape, device=device)
        self.tokens, self.targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def step(self):
        microbatches = self.options.batch // self.options.microbatch
        cast = torch.autocast(self.options.device, torch.bfloat16, enabled=self.precision == "autocast")
        for tokens, targets in zip(self.tokens.split(self.options.microbatch), self.targets.split(self.options.microbatch)):
            torch.compiler.cudagraph_mark_step_begin()
            with cast, attention(self.attention):
                loss = self.model(tokens, targets) / microbatches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=self.options.device == "cuda")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self):
        """The seconds of each measured step. Nothing waits for the device inside of a step."""
        cuda = self.options.device == "cuda"
        for _ in range(self.options.warmup):
            self.step()
        result = []
        for _ in range(self.options.steps):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            self.step()
            if cuda:
                torch.cuda.synchronize()
            result.append(time.perf_counter() - start)
        return result


def compile_model(model, how):
    if how == "eager":
        return model
    scope, _, mode = how.rpartition(":")
    options = {"fullgraph": True, "dynamic": False}
    if mode != "default":
        options["mode"] = mode
    if scope != "block":
        return torch.compile(model, **options)
    for block in model.blocks:
        block.compile(**options)
    return model


def variants(options):
    if options.device == "cuda":
        modes = ["default", "max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"]
        attentions = ["cudnn", "flash"]
    else:
        modes, attentions = ["default"], ["math"]
    compiled = ["eager"] + modes + [f"block:{mode}" for mode in modes]
    precisions = ["f32"] if options.precision == "f32" else ["autocast", "bf16"]
    every = ["/".join(parts) for parts in itertools.product(attentions, compiled, precisions)]
    return [v for v in every if any(fnmatch.fnmatch(v, pattern) for pattern in options.variants)]


def measure(options, variant):
    torch._dynamo.reset()
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = Run(options, *variant.split("/")).seconds()
    step = statistics.median(seconds)
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else 0
    return {
        "variant": variant,
        "step_seconds": step,
        "tokens_per_second": options.batch * options.context / step,
        "peak_bytes": peak,
        "all_step_seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--batch", type=int, default=512, help="sequences of a step")
    parser.add_argument("--microbatch", type=int, default=0, help="sequences of a microbatch; 0: the whole batch")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=0, help="on the CPU; 0: PyTorch's choice")
    parser.add_argument("--variants", nargs="+", default=["*"])
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    options.microbatch = options.microbatch or options.batch
    if options.batch % options.microbatch:
        parser.error(f"--microbatch {options.microbatch} does not divide --batch {options.batch}")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_baseline.py: this PyTorch sees no GPU")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("highest" if options.precision == "f32" else "high")
    torch._inductor.config.coordinate_descent_tuning = options.device == "cuda"

    results, failures = [], {}
    for variant in variants(options):
        try:
            results.append(measure(options, variant))
            print(f"{variant:50} {results[-1]['step_seconds'] * 1e3:10.1f} ms", file=sys.stderr, flush=True)
        except Exception as error:  # out of memory, or a mode that cannot compile this; the others go on
            failures[variant] = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            print(f"{variant:50} failed: {failures[variant]}", file=sys.stderr, flush=True)
        gc.collect()
    if not results:
        sys.exit("torch_baseline.py: no variant ran")
    best = min(results, key=lambda result: result["step_seconds"])
    report = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "model": options.model,
        "best": best,
        "variants": results,
        "failures": failures,
    }
    if options.output == "json":
        print(json.dumps(report))
    else:
        print(f"PyTorch {report['torch']} (CUDA {report['cuda']}) on {report['device']}: {options.model}, best {best['variant']}: "
              f"{best['tokens_per_second']:.0f} tokens/s, {best['step_seconds'] * 1e3:.1f} ms a step, peak {best['peak_bytes'] / 2**30:.2f} GiB")


main()
