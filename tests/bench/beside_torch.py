#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs training steps of `takt-bench train` and of PyTorch at its best (torch_baseline.py), in turns on one device, and prints one table:
tokens per second, their ratio, and the model FLOP utilization of both. The utilization is by both conventions (attention counted
causally, and as if nothing were masked), over one formula and the dense peak of the device.

    tests/bench/beside_torch.py --takt build/release/bin/takt-bench [--python VENV/bin/python] [--rows gpt2-124m ...] [-o json]
    tests/bench/beside_torch.py --takt build/release/bin/takt-bench --device cpu     # a small row that shows whether both run
"""
import argparse
import json
import os
import subprocess
import sys

# {model: sequences of a step, sequences of a microbatch, tokens of a sequence}. GPT-2 has 524,288 tokens a step.
ROWS = {
    "gpt2-124m": (512, 64, 1024),
    "gpt2-355m": (512, 32, 1024),
    "gpt2-774m": (512, 32, 1024),
    "gpt2-1558m": (512, 16, 1024),
    "llama-1b": (64, 4, 4096),
    "llama-8b-slice": (32, 2, 4096),
}
CPU_ROWS = {"tiny": (4, 4, 64)}
# The causal MFU, in per cent, that docs/gpu-checks.md asks for on an H200.
TARGETS = {"gpt2-124m": 45, "gpt2-355m": 50, "gpt2-774m": 53, "gpt2-1558m": 55, "llama-1b": 60, "llama-8b-slice": 66}


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"beside_torch.py: exit {done.returncode}: {' '.join(command)}")
    return json.loads(done.stdout.splitlines()[-1])


def row(options, model, batch, microbatch, context):
    common = ["--device", options.device, "--model", model, "--batch", str(batch), "--microbatch", str(microbatch),
              "--context", str(context), "--precision", options.precision, "--threads", str(options.threads),
              "--steps", str(options.steps), "--warmup", str(options.warmup), "-o", "json"]
    baseline = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_baseline.py")
    torch = run([options.python, baseline, *common, "--variants", *options.variants])
    takt = run([options.takt, "train", *common])
    causal = takt["model_flops"] / (batch * context)  # of a token
    every = causal + takt["attention_flops"] / (batch * context)

    def side(tokens_per_second, peak_bytes):
        return {
            "tokens_per_second": tokens_per_second,
            "mfu_causal": tokens_per_second * causal / options.peak,
            "mfu_non_causal": tokens_per_second * every / options.peak,
            "peak_gib": peak_bytes / 2**30,
        }

    best = torch["best"]
    return {
        "model": model,
        "takt": side(takt["tokens_per_second"], takt["peak_bytes"]),
        "torch": side(best["tokens_per_second"], best["peak_bytes"]),
        "ratio": takt["tokens_per_second"] / best["tokens_per_second"],
        "torch_variant": best["variant"],
        "torch_version": torch["torch"],
        "device": torch["device"],
        "target_mfu_causal": TARGETS.get(model, 0) / 100,
    }


def print_text(options, rows):
    print(f"{rows[0]['device']}, {options.precision}, PyTorch {rows[0]['torch_version']}, peak {options.peak / 1e12:.1f} TFLOP/s")
    print(f"{'':15} {'tokens/s':>22} {'':>6} {'MFU causal %':>15} {'MFU non-causal %':>17} {'peak GiB':>13}")
    print(f"{'model':15} {'takt':>11}{'PyTorch':>11} {'ratio':>6} {'takt':>8}{'PyTorch':>8} {'takt':>8}{'PyTorch':>9} {'takt':>6}{'PyTorch':>8}  PyTorch's best")
    for r in rows:
        a, b = r["takt"], r["torch"]
        print(f"{r['model']:15} {a['tokens_per_second']:11.0f}{b['tokens_per_second']:11.0f} {r['ratio']:6.3f} "
              f"{100 * a['mfu_causal']:8.1f}{100 * b['mfu_causal']:8.1f} {100 * a['mfu_non_causal']:8.1f}{100 * b['mfu_non_causal']:9.1f} "
              f"{a['peak_gib']:6.2f}{b['peak_gib']:8.2f}  {r['torch_variant']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takt", required=True, help="takt-bench")
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *CPU_ROWS])
    parser.add_argument("--variants", nargs="+", default=["*"], help="of torch_baseline.py")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--peak", type=float, default=989.5e12, help="FLOP/s: dense bf16 of an H100 or H200 SXM")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    shapes = {**ROWS, **CPU_ROWS}
    rows = [row(options, model, *shapes[model]) for model in options.rows or (ROWS if options.device == "cuda" else CPU_ROWS)]
    if options.output == "json":
        print(json.dumps({"rows": rows}))
    else:
        print_text(options, rows)


main()
