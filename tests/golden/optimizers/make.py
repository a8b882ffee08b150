#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden numbers of learning rates, optimizers and losses, beside this file.

usage: make.py        with a Python that has torch; the files beside it were made with torch 2.15.0

All numbers are computed in float64 by PyTorch: its schedulers, its optimizers, its cross-entropy and
its automatic gradients. It has no Lion and no square root of steps, so these follow the papers; its
Muon computes in bfloat16, so ours follows the papers in plain Python.
"""

import json
import math
import pathlib
import random
import struct

import torch

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 5


def write(name, cases):
    lines = ",\n".join("    " + json.dumps(case) for case in cases)
    (HERE / name).write_text('{\n  "version": 1,\n  "cases": [\n' + lines + "\n  ]\n}\n")


def rates_of(peak, schedule, steps):
    """The learning rate of each step, as an optimizer under PyTorch's schedulers has it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    lr = torch.optim.lr_scheduler
    warmup, least = schedule["warmup_steps"], schedule.get("min_learning_rate", 0.0)
    decay = schedule["decay"]
    if decay == "inverse_sqrt":  # Vaswani et al. 2017, section 5.3, with its factor chosen for the peak
        rate = lambda i: math.sqrt(warmup) * min((i + 1) ** -0.5, (i + 1) * warmup ** -1.5)
        chain = lr.LambdaLR(optimizer, rate)
    else:
        rise = lr.LinearLR(optimizer, start_factor=1 / warmup, end_factor=1.0, total_iters=warmup - 1)
        constant = lr.ConstantLR(optimizer, factor=1.0)
        length = schedule.get("decay_steps", 0) - (0 if decay == "wsd" else warmup)
        if decay == "cosine":
            parts = [lr.CosineAnnealingLR(optimizer, T_max=length, eta_min=least)]
        else:
            parts = [lr.LinearLR(optimizer, start_factor=1.0, end_factor=least / peak, total_iters=length)]
        milestones = [warmup - 1]
        if decay == "wsd":
            parts.insert(0, constant)
            milestones.append(warmup - 1 + schedule["stable_steps"])
        chain = lr.SequentialLR(optimizer, [rise, *parts], milestones=milestones)
    rates = []
    for i in range(steps):
        rates.append(max(optimizer.param_groups[0]["lr"], least if i >= warmup else 0.0))
        optimizer.step()
        chain.step()
    return rates


def learning_rates():
    schedules = [
        (12, {"decay": "cosine", "warmup_steps": 3, "decay_steps": 12, "min_learning_rate": 1e-4}),
        (15, {"decay": "linear", "warmup_steps": 3, "decay_steps": 12, "min_learning_rate": 1e-4}),
        (12, {"decay": "linear", "warmup_steps": 4, "decay_steps": 10}),
        (16, {"decay": "wsd", "warmup_steps": 3, "stable_steps": 5, "decay_steps": 4, "min_learning_rate": 2e-4}),
        (20, {"decay": "inverse_sqrt", "warmup_steps": 4}),
        (40, {"decay": "inverse_sqrt", "warmup_steps": 4, "min_learning_rate": 4e-4}),
    ]
    for steps, schedule in schedules:
        yield {"learning_rate": 1e-3, "lr_schedule": schedule, "rates": rates_of(1e-3, schedule, steps)}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


def trained(make):
    """Trains two tensors, each in a group of its own, and returns what they were after each step."""
    generator = torch.Generator().manual_seed(7)
    draw = lambda size: (torch.randn(6, generator=generator) * size).double()  # what f32 holds exactly
    tensors = [draw(1).requires_grad_() for _ in range(2)]
    initial = [t.tolist() for t in tensors]
    gradients = [[draw(0.1) for _ in tensors] for _ in range(STEPS)]
    optimizer = make([{"params": [t]} for t in tensors])
    after = []
    for step in gradients:
        for tensor, gradient in zip(tensors, step):
            tensor.grad = gradient.clone()
        optimizer.step()
        after.append([t.tolist() for t in tensors])
    return {"initial": initial, "gradients": [[g.tolist() for g in step] for step in gradients], "after": after}


def updates():
    def case(optimizer, make, groups=({}, {}), **options):
        def with_groups(params):
            for param, group in zip(params, groups):
                if "learning_rate_scale" in group:
                    param["lr"] = options["learning_rate"] * group["learning_rate_scale"]
                if "weight_decay" in group:
                    param["weight_decay"] = group["weight_decay"]
            return make(params)
        return {"optimizer": optimizer, "options": options, "groups": list(groups), **trained(with_groups)}

    adamw = lambda params: torch.optim.AdamW(params, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    shared = dict(learning_rate=0.01, weight_decay=0.1)
    yield case("adamw", adamw, beta1=0.9, beta2=0.95, epsilon=1e-8, **shared)
    groups = ({"learning_rate_scale": 0.25}, {"weight_decay": 0.0, "learning_rate_scale": 2})
    yield case("adamw", adamw, groups, beta1=0.9, beta2=0.95, epsilon=1e-8, **shared)
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
        sgd = lambda params: torch.optim.SGD(params, lr=0.01, momentum=momentum, nesterov=nesterov, weight_decay=0.1)
        yield case("sgd", sgd, momentum=momentum, nesterov=nesterov, **shared)
    sgd = lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=0.1)
    yield case("sgd", sgd, groups, momentum=0.9, nesterov=False, **shared)
    lion = lambda params: Lion(params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    yield case("lion", lion, beta1=0.9, beta2=0.99, **shared)
    yield case("lion", lion, groups, beta1=0.9, beta2=0.99, **shared)


def product(a, b):
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def transposed(a):
    return [list(column) for column in zip(*a)]


def combined(*terms):
    """The sum of matrices, each with its factor."""
    return [[math.fsum(factor * a[i][j] for factor, a in terms) for j in range(len(terms[0][1][0]))]
            for i in range(len(terms[0][1]))]


def orthogonal(d):
    """Jordan et al. 2024: five iterations of a quintic polynomial in the singular values of d / |d|."""
    if len(d) > len(d[0]):
        return transposed(orthogonal(transposed(d)))
    norm = math.sqrt(math.fsum(x * x for row in d for x in row))
    x = combined((1 / (norm + 1e-7), d))
    for _ in range(5):
        a = product(x, transposed(x))
        x = combined((3.4445, x), (-4.7750, product(a, x)), (2.0315, product(a, product(a, x))))
    return x


def muon():
    """Returns the parameter after each step. The factor of the rate is that of Liu et al. 2025, section 2.2."""
    generator = random.Random(7)
    in_f32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    for rows, columns in ((3, 5), (5, 3), (4, 4), (1, 6)):
        draw = lambda size: [[in_f32(generator.gauss(0, size)) for _ in range(columns)] for _ in range(rows)]
        for nesterov in (True, False):
            rate, momentum, decay = 0.125, 0.75, 0.0625
            p, m = draw(1), combined((0, draw(1)))
            case = {"rows": rows, "columns": columns, "learning_rate": rate, "momentum": momentum,
                    "nesterov": nesterov, "weight_decay": decay, "initial": p, "gradients": [], "after": []}
            for _ in range(STEPS):
                g = draw(0.1)
                m = combined((momentum, m), (1, g))
                d = combined((1, g), (momentum, m)) if nesterov else m
                size = 0.2 * math.sqrt(max(rows, columns))
                p = combined((1 - rate * decay, p), (-rate * size, orthogonal(d)))
                case["gradients"].append(g)
                case["after"].append(p)
            yield case


def losses():
    generator = torch.Generator().manual_seed(11)
    targets = torch.tensor([4, -100, 0, 6])
    scale = 0.25
    for smoothing, z_loss in ((0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.3, 1e-2)):
        logits = (torch.randn(4, 7, generator=generator) * 3).double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        # PaLM (Chowdhery et al. 2022, section 5): z_loss * log^2 Z
        loss = loss + z_loss * (torch.logsumexp(logits, 1) ** 2)[targets != -100].sum()
        (loss * scale).backward()
        yield {"label_smoothing": smoothing, "z_loss": z_loss, "scale": scale, "targets": targets.tolist(),
               "logits": logits.tolist(), "loss": loss.item(), "gradient": logits.grad.tolist()}


if __name__ == "__main__":
    write("learning_rates.json", learning_rates())
    write("updates.json", updates())
    write("losses.json", losses())
    write("muon.json", muon())
