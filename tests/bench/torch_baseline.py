#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The strongest fair PyTorch beside `takt-bench train`: the same model, batch, optimizer and clipping, each way to run it measured, the
fastest named. Versions are printed: PyTorch's own move the figures by tens of per cent.

    tests/bench/torch_baseline.py --model gpt2-124m --batch 512 --microbatch 64 --context 1024
    tests/bench/torch_baseline.py --model tiny --device cpu --batch 4 --context 32 --steps 3 --warmup 1    # does the script work?

A variant is attention/compile/precision. attention: cudnn, flash, or sdpa (PyTorch's choice, on the CPU). compile: of the whole model or of
each block (`block:`), default, max-autotune, max-autotune-no-cudagraphs, reduce-overhead, or eager. precision: f32, autocast (over f32
weights), bf16 (pure, with f32 master weights). --variants takes patterns, e.g. 'cudnn/*/autocast'. One JSON object with -o json; on the CPU
it says which libraries multiplied matrices.
"""
import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
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
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return self.loss(x, targets)

    def embed(self, tokens):
        x = self.tokens(tokens)
        return x if self.positions is None else x + self.positions.weight[: tokens.shape[1]]

    def loss(self, x, targets):
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


def make_optimizer(parameters, precision):
    """`parameters` are already in their precision."""
    options = {"lr": 1e-4, "betas": (0.9, 0.95), "fused": True}
    return MasterAdamW(parameters, **options) if precision == "bf16" else torch.optim.AdamW(groups(parameters), **options)


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
        self.optimizer = make_optimizer(self.parameters, precision)
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
        modes, attentions = ["default"], ["sdpa"]
    compiled = ["eager"] + modes + [f"block:{mode}" for mode in modes]
    precisions = ["f32"] if options.precision == "f32" else ["autocast", "bf16"]
    every = ["/".join(parts) for parts in itertools.product(attentions, compiled, precisions)]
    return [v for v in every if any(fnmatch.fnmatch(v, pattern) for pattern in options.variants)]


@contextlib.contextmanager
def at_most(seconds):
    """Raises TimeoutError in the body after `seconds`; 0: never."""

    def stop(number, frame):
        raise TimeoutError(f"it did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# This program multiplies one matrix of each precision, while the libraries' own logs are switched on.
PRODUCTS = """
import torch
torch.set_grad_enabled(False)
for dtype in (torch.float32, torch.bfloat16):
    print("product", dtype, flush=True)
    torch.nn.functional.linear(torch.ones(64, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype))
"""


def libraries():
    """Which library multiplied matrices of each precision, as these libraries say themselves, and what PyTorch was built with."""
    environment = {**os.environ, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], stdout=subprocess.PIPE, text=True, env=environment, timeout=300)
    config = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    isa = re.search(r"onednn_verbose,.*cpu,isa:(.*)", done.stdout)
    built = [line.strip(" -") for line in config.splitlines() if "Math Kernel Library" in line or "MKL-DNN" in line or "CPU capability" in line]
    products = {}
    for part in done.stdout.split("product torch.")[1:]:
        onednn = re.search(r"primitive,exec,cpu,(?:matmul|inner_product),([^,]*)", part)
        mkl = re.search(r"MKL_VERBOSE (\w*GEMM\w*)\(", part)
        products[part.split()[0]] = f"oneDNN {onednn[1]}" if onednn else f"MKL {mkl[1]}" if mkl else "another library"
    mkl = re.search(r"MKL_VERBOSE (.*Library.*)", done.stdout) or re.search(r"MKL_VERBOSE ((?:Intel|oneMKL).*)", done.stdout)
    return {
        "blas": blas[1] if blas else "unknown",
        "built_with": built,
        "products": products,
        "onednn_isa": isa[1] if isa else None,
        "mkl": mkl[1] if mkl else None,
    }


def measure(options, variant):
    torch._dynamo.reset()
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with at_most(options.timeout):
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
    parser.add_argument("--timeout", type=int, default=0, help="seconds for a variant; 0: no limit")
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
        except Exception as error:  # out of memory, too slow, or a mode that cannot compile this; the others go on
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
    if options.device == "cpu":
        report |= {"threads": torch.get_num_threads(), "libraries": libraries()}
    if options.output == "json":
        print(json.dumps(report))
    else:
        print(f"PyTorch {report['torch']} (CUDA {report['cuda']}) on {report['device']}: {options.model}, best {best['variant']}: "
              f"{best['tokens_per_second']:.0f} tokens/s, {best['step_seconds'] * 1e3:.1f} ms a step, peak {best['peak_bytes'] / 2**30:.2f} GiB")
        if "libraries" in report:
            print(f"{report['threads']} threads; {report['libraries']}")


if __name__ == "__main__":
    main()
