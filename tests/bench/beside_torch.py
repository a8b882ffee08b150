#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs training steps of `takt-bench train` and of PyTorch at its best (torch_baseline.py), in turns on one device, and prints one table:
tokens per second, their ratio, and the model FLOP utilization of both. The utilization is by both conventions (attention counted
causally, and as if nothing were masked), over one formula and the dense peak of the device. On CPUs it is left out unless --peak says what
it is a share of.

    tests/bench/beside_torch.py --takt build/release/bin/takt-bench [--python VENV/bin/python] [--rows gpt2-124m ...] [-o json]
    tests/bench/beside_torch.py --takt build/release/bin/takt-bench --device cpu     # a small row that shows whether both run
    tests/bench/beside_torch.py --takt build/release/bin/takt-bench --device cpu --rows gpt2-124m
    tests/bench/beside_torch.py --takt build/release/bin/takt-bench --device cpu --rows gpt2-124m --pipeline 2

With --pipeline P both train on P processes of this machine: a job on `takt-worker`s with `takt` (the programs beside takt-bench), and
PyTorch's pipelining over Gloo (torch_pipeline.py).

In the first round both run in every way that may be their fastest. In later rounds each repeats the ways within a tenth of its best, and
the order of both changes from round to round. A side's best way has the highest median of tokens per second. A ratio is of one round; the
table has the median, the lowest and the highest of all rounds.
"""
import argparse
import contextlib
import functools
import itertools
import json
import os
import pathlib
import statistics
import sys

import side_by_side
import takt_pipeline

# {model: sequences of a step, sequences of a microbatch, tokens of a sequence}. GPT-2 has 524,288 tokens a step.
ROWS = {
    "gpt2-124m": (512, 64, 1024),
    "gpt2-355m": (512, 32, 1024),
    "gpt2-774m": (512, 32, 1024),
    "gpt2-1558m": (512, 16, 1024),
    "llama-1b": (64, 4, 4096),
    "llama-8b-slice": (32, 2, 4096),
}
CPU_ROWS = {"tiny": (4, 4, 64), "gpt2-124m": (8, 8, 256)}
PIPELINE_ROWS = {"tiny": (8, 1, 64), "gpt2-124m": (16, 2, 256)}
# What is left open depends on the device.
DEFAULTS = {
    "cuda": {"precision": ["bf16"], "rows": [*ROWS], "threads": [1], "rounds": 1, "steps": 20, "warmup": 10, "timeout": 3600, "peak": 989.5e12},
    "cpu": {"precision": ["f32", "bf16"], "rows": ["tiny"], "threads": [1, 2], "rounds": 3, "steps": 3, "warmup": 1, "timeout": 900, "peak": 0},
}
# With glibc's defaults PyTorch gives large tensors back to the kernel after each use, which then clears their pages anew. So it
# keeps its memory on CPUs, as Takt does. Large pages (THP_MEM_ALLOC_ENABLE) are left out: with them the kernel took more time, not less.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34)}
REPEATED = 0.9  # of the best way's rate: ways below are not repeated
# The causal MFU, in per cent, that docs/gpu-checks.md asks for on an H200.
TARGETS = {"gpt2-124m": 45, "gpt2-355m": 50, "gpt2-774m": 53, "gpt2-1558m": 55, "llama-1b": 60, "llama-8b-slice": 66}
HERE = pathlib.Path(__file__).resolve().parent


def run_torch(options, script, arguments, names):
    variants = names or options.variants
    command = [options.python, HERE / script, *arguments, "--timeout", options.timeout, "--variants", *variants, "-o", "json"]
    return side_by_side.run([command], environment=KEEP_MEMORY if options.device == "cpu" and options.memory == "keep" else None)


def run_takt(options, arguments, names):
    """`takt-bench train` has one way."""
    report = side_by_side.run([[options.takt, "train", *arguments, "-o", "json"]], options.timeout)
    return {"variants": [{"variant": "takt-bench train", **report}], "failures": {}}


def in_turns(rounds, sides):
    """Runs the sides, {name: call}, in turns and returns {name: reports of all rounds}. A call gets the names of the variants to run, or None
    for all."""
    reports = {name: [] for name in sides}
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            reports[name].append(sides[name](contenders(reports[name][0]) if turn else None))
    return reports


def contenders(report):
    if not report["variants"]:
        raise side_by_side.Failed("no way ran")
    best = max(variant["tokens_per_second"] for variant in report["variants"])
    return [variant["variant"] for variant in report["variants"] if variant["tokens_per_second"] >= REPEATED * best]


def rates(reports):
    """The tokens per second in all rounds of the way that is a side's best."""
    rounds = [{variant["variant"]: variant["tokens_per_second"] for variant in report["variants"]} for report in reports]
    names = [name for name in rounds[0] if all(name in each for each in rounds)]
    if not names:
        raise side_by_side.Failed("no way ran in every round")
    best = max(names, key=lambda name: statistics.median(each[name] for each in rounds))
    return best, [each[best] for each in rounds]


def row(options, model, shape, precision, threads):
    batch, microbatch, context = shape
    common = ["--model", model, "--batch", batch, "--microbatch", microbatch, "--context", context, "--precision", precision,
              "--threads", threads, "--steps", options.steps, "--warmup", options.warmup]
    with contextlib.ExitStack() as stack:
        if options.pipeline:
            takt = os.path.join(os.path.dirname(options.takt), "takt")
            pipeline = stack.enter_context(takt_pipeline.Pipeline(takt, options, model, shape, precision))
            sides = {
                "torch": functools.partial(run_torch, options, "torch_pipeline.py", [*common, "--pipeline", options.pipeline]),
                "takt": lambda names: pipeline.measure(names or takt_pipeline.variants(options.takt_variants)),
            }
        else:
            common += ["--device", options.device]
            sides = {
                "torch": functools.partial(run_torch, options, "torch_baseline.py", common),
                "takt": functools.partial(run_takt, options, common),
            }
        reports = in_turns(options.rounds, sides)
    best = {name: rates(side) for name, side in reports.items()}
    ratios = [takt / torch for takt, torch in zip(best["takt"][1], best["torch"][1])]
    torch, takt = reports["torch"][0], reports["takt"][0]["variants"][0]
    result = {
        "model": model,
        "batch": batch,
        "microbatch": microbatch,
        "context": context,
        "precision": precision,
        "threads": threads,
        "pipeline": options.pipeline,
        **{name: {"tokens_per_second": statistics.median(of_rounds), "variant": way} for name, (way, of_rounds) in best.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "torch_variant": best["torch"][0],
        "torch_version": torch["torch"],
        "device": torch["device"],
        "libraries": torch.get("libraries"),
        "target_mfu_causal": TARGETS.get(model, 0) / 100 if options.device == "cuda" else 0,
        "rounds": reports,
    }
    if options.device == "cuda":
        result["takt"]["peak_gib"] = takt["peak_bytes"] / 2**30
        result["torch"]["peak_gib"] = torch["best"]["peak_bytes"] / 2**30
    if options.peak and not options.pipeline:
        causal = takt["model_flops"] / (batch * context)  # of a token
        every = causal + takt["attention_flops"] / (batch * context)
        for side in (result["takt"], result["torch"]):
            side["mfu_causal"] = side["tokens_per_second"] * causal / options.peak
            side["mfu_non_causal"] = side["tokens_per_second"] * every / options.peak
    return result


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def print_gpu(options, rows):
    print(f"{rows[0]['device']}, {rows[0]['precision']}, PyTorch {rows[0]['torch_version']}, peak {options.peak / 1e12:.1f} TFLOP/s")
    print(f"{'':15} {'tokens/s':>22} {'':>6} {'MFU causal %':>15} {'MFU non-causal %':>17} {'peak GiB':>13}")
    print(f"{'model':15} {'takt':>11}{'PyTorch':>11} {'ratio':>6} {'takt':>8}{'PyTorch':>8} {'takt':>8}{'PyTorch':>9} {'takt':>6}{'PyTorch':>8}  PyTorch's best")
    for r in rows:
        a, b = r["takt"], r["torch"]
        print(f"{r['model']:15} {a['tokens_per_second']:11.0f}{b['tokens_per_second']:11.0f} {r['ratio']:6.3f} "
              f"{100 * a['mfu_causal']:8.1f}{100 * b['mfu_causal']:8.1f} {100 * a['mfu_non_causal']:8.1f}{100 * b['mfu_non_causal']:9.1f} "
              f"{a['peak_gib']:6.2f}{b['peak_gib']:8.2f}  {r['torch_variant']}")


def print_cpu(options, rows):
    libraries = rows[0]["libraries"]
    products = ", ".join(f"{dtype} by {library}" for dtype, library in libraries["products"].items())
    print(f"{processor()}, {os.cpu_count()} cores; PyTorch {rows[0]['torch_version']} multiplies {products}")
    for line in [*libraries["built_with"], f"MKL says {libraries['mkl']}", f"oneDNN says {libraries['onednn_isa']}"]:
        print(f"  {line}")
    print(f"memory of PyTorch: {options.memory}")
    if options.pipeline:
        print(f"{options.pipeline} processes; threads are those of a process")
    utilization = "mfu_causal" in rows[0]["takt"]
    mfu = f" {'MFU causal %':>15} of {options.peak / 1e12:.2f} TFLOP/s" if utilization else ""
    print(f"{'':33} {'tokens/s':>22} {'ratio':>24}{mfu}")
    print(f"{'model':15} {'precision':>9} {'threads':>7} {'takt':>11}{'PyTorch':>11} {'median':>8}{'lowest':>8}{'highest':>8}"
          + (f" {'takt':>7}{'PyTorch':>8}" if utilization else "") + "  best of takt; of PyTorch")
    for r in rows:
        a, b = r["takt"], r["torch"]
        shares = f" {100 * a['mfu_causal']:7.1f}{100 * b['mfu_causal']:8.1f}" if utilization else ""
        print(f"{r['model']:15} {r['precision']:>9} {r['threads']:7} {a['tokens_per_second']:11.0f}{b['tokens_per_second']:11.0f} "
              f"{r['ratio']:8.3f}{min(r['ratios']):8.3f}{max(r['ratios']):8.3f}{shares}  {a['variant']}; {b['variant']}")
        for side, reports in r["rounds"].items():
            for variant, why in reports[0]["failures"].items():
                print(f"  {side} {variant} failed: {why}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takt", required=True, help="takt-bench")
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], help="default: bf16, on the CPU both")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *(model for model in CPU_ROWS if model not in ROWS)])
    parser.add_argument("--pipeline", type=int, default=0, help="processes of a pipeline, on the CPU")
    parser.add_argument("--variants", nargs="+", default=["*"], help="of torch_baseline.py or torch_pipeline.py")
    parser.add_argument("--takt-variants", nargs="+", default=["*"], help="of a pipeline: schedule/transport")
    parser.add_argument("--threads", nargs="+", type=int, help="on the CPU; default: 1 and 2, or 1 for a process of a pipeline")
    parser.add_argument("--memory", choices=["keep", "plain"], default="keep",
                        help="keep: on the CPU, PyTorch reuses memory; plain: as glibc does without being asked")
    parser.add_argument("--rounds", type=int, help="default: 1, on the CPU 3")
    parser.add_argument("--steps", type=int, help="default: 20, on the CPU 3")
    parser.add_argument("--warmup", type=int, help="default: 10, on the CPU 1")
    parser.add_argument("--timeout", type=int, help="seconds for a variant; default: 3600, on the CPU 900")
    parser.add_argument("--peak", type=float, help="FLOP/s; default: 989.5e12, dense bf16 of an H100 or H200 SXM; none on the CPU")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    if options.pipeline and options.device != "cpu":
        parser.error("--pipeline needs --device cpu")
    for name, value in DEFAULTS[options.device].items():
        if getattr(options, name) is None:
            setattr(options, name, [1] if name == "threads" and options.pipeline else value)
    if options.pipeline and len(options.threads) > 1:
        parser.error("--pipeline takes one number of --threads")
    return options


def main():
    options = arguments()
    side_by_side.exit_on_termination()
    shapes = PIPELINE_ROWS if options.pipeline else {**ROWS, **CPU_ROWS} if options.device == "cpu" else {**CPU_ROWS, **ROWS}
    missing = [model for model in options.rows if model not in shapes]
    if missing:
        sys.exit(f"beside_torch.py: there is no row {missing[0]} with --pipeline; there are {', '.join(shapes)}")
    rows, errors = [], []
    for model, precision, threads in itertools.product(options.rows, options.precision, options.threads):
        try:
            rows.append(row(options, model, shapes[model], precision, threads))
            print(f"{model} {precision}, {threads} threads: ratio {rows[-1]['ratio']:.3f}", file=sys.stderr, flush=True)
        except side_by_side.Failed as error:
            errors.append(f"beside_torch.py: {model} {precision}, {threads} threads: {error}")
            print(errors[-1], file=sys.stderr, flush=True)
    if not rows:
        return 1
    if options.output == "json":
        print(json.dumps({"processor": processor(), "torch_memory": options.memory, "rows": rows}))
    elif options.device == "cpu":
        print_cpu(options, rows)
    else:
        for precision in options.precision:
            print_gpu(options, [r for r in rows if r["precision"] == precision])
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
