#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden case beside this file: a small mixtral whose routers score by sigmoids and balance by a bias.

usage: make.py           writes the files; no packages are needed
       make.py --check   compares gradients with finite differences and writes nothing

All numbers are computed in float64, forward and backward, from the published definitions: Mixtral (Jiang et al. 2024),
sigmoid scores with a bias in the choice alone (DeepSeek-V3, 2024, section 2.1.2), the bias moved by the sign of the
load (Wang et al. 2024, 2408.15664), and the auxiliary loss of Switch (Fedus et al. 2021, section 2.2) of each layer and
sequence over normalised scores.
"""

import json
import math
import pathlib
import random
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
C, H, G, D, F, E, K, V, T, B, BLOCKS, STEPS = 12, 2, 1, 4, 8, 4, 2, 29, 8, 2, 2, 10
EPS, THETA, AUX, BIAS_RATE = 1e-5, 10000.0, 0.02, 0.01
CLIP, DECAY, BETA1, BETA2, ADAM_EPS = 1.0, 0.1, 0.9, 0.95, 1e-8
BIAS = "gate.e_score_correction_bias"


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


# Matrices are lists of rows.
def linear(x, w):
    """x [N,in] by w [out,in]."""
    return [[sum(a * b for a, b in zip(row, column)) for column in w] for row in x]


def linear_back(x, w, dy, dw):
    """Adds the gradient of w to dw, and returns that of x."""
    for row, grad in zip(x, dy):
        for o, g in enumerate(grad):
            if g != 0.0:
                out = dw[o]
                for i, a in enumerate(row):
                    out[i] += g * a
    columns = list(zip(*w))
    return [[sum(g * b for g, b in zip(grad, column)) for column in columns] for grad in dy]


def add(x, y):
    return [[a + b for a, b in zip(p, q)] for p, q in zip(x, y)]


def norm(x, w):
    rstd = [1 / math.sqrt(sum(a * a for a in row) / len(row) + EPS) for row in x]
    return [[a * r * g for a, g in zip(row, w)] for row, r in zip(x, rstd)], rstd


def norm_back(x, w, rstd, dy, dw):
    dx = []
    for row, r, grad in zip(x, rstd, dy):
        for i, (a, g) in enumerate(zip(row, grad)):
            dw[i] += g * a * r
        scaled = [g * u for g, u in zip(grad, w)]
        mean = sum(s * a for s, a in zip(scaled, row)) / len(row)
        dx.append([r * s - r**3 * mean * a for s, a in zip(scaled, row)])
    return dx


def turn(x, heads, sign):
    """Rotary positions of pairs (i, i + D/2), or with sign -1 the inverse."""
    result = []
    for t, row in enumerate(x):
        out = list(row)
        for h in range(heads):
            for i in range(D // 2):
                angle = sign * t * THETA ** (-2 * i / D)
                c, s = math.cos(angle), math.sin(angle)
                a, b = row[h * D + i], row[h * D + i + D // 2]
                out[h * D + i], out[h * D + i + D // 2] = a * c - b * s, b * c + a * s
        result.append(out)
    return result


def attention(q, k, v):
    out = [[0.0] * (H * D) for _ in range(T)]
    shares = []
    for h in range(H):
        g = h // (H // G)
        for t in range(T):
            scores = [sum(q[t][h * D + i] * k[s][g * D + i] for i in range(D)) / math.sqrt(D) for s in range(t + 1)]
            top = max(scores)
            e = [math.exp(s - top) for s in scores]
            p = [x / sum(e) for x in e]
            shares.append(p)
            for i in range(D):
                out[t][h * D + i] = sum(p[s] * v[s][g * D + i] for s in range(t + 1))
    return out, shares


def attention_back(q, k, v, shares, dout):
    dq, dk, dv = ([[0.0] * len(x[0]) for _ in range(T)] for x in (q, k, v))
    for h in range(H):
        g = h // (H // G)
        for t in range(T):
            p = shares[h * T + t]
            d = [dout[t][h * D + i] for i in range(D)]
            dp = [sum(d[i] * v[s][g * D + i] for i in range(D)) for s in range(t + 1)]
            mean = sum(a * b for a, b in zip(p, dp))
            for s in range(t + 1):
                score = p[s] * (dp[s] - mean) / math.sqrt(D)
                for i in range(D):
                    dv[s][g * D + i] += p[s] * d[i]
                    dq[t][h * D + i] += score * k[s][g * D + i]
                    dk[s][g * D + i] += score * q[t][h * D + i]
    return dq, dk, dv


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Sequence:
    """The passes of one sequence."""

    def __init__(self, w, grads, tokens, targets):
        self.w, self.g, self.tokens, self.targets = w, grads, tokens, targets
        self.act, self.act_grad, self.router, self.choices, self.aux = {}, {}, {}, {}, 0.0
        self.margin = math.inf
        self.saved = {}

    def experts(self, block, n):
        w, prefix = self.w, f"model.layers.{block}.block_sparse_moe."
        logits = linear(n, w[prefix + "gate.weight"])
        bias = w[prefix + BIAS]
        rows, out = [], [[0.0] * C for _ in range(T)]
        for t in range(T):
            s = [sigmoid(x) for x in logits[t]]
            order = sorted(range(E), key=lambda e: (-(s[e] + bias[e]), e))
            self.margin = min(self.margin, s[order[K - 1]] + bias[order[K - 1]] - s[order[K]] - bias[order[K]])
            chosen = sorted(order[:K])
            total = sum(s[e] for e in chosen) + 1e-20
            row = []
            for e in chosen:
                gate = linear([n[t]], w[f"{prefix}experts.{e}.w1.weight"])[0]
                up = linear([n[t]], w[f"{prefix}experts.{e}.w3.weight"])[0]
                inner = [a * sigmoid(a) * b for a, b in zip(gate, up)]
                y = linear([inner], w[f"{prefix}experts.{e}.w2.weight"])[0]
                out[t] = [a + s[e] / total * b for a, b in zip(out[t], y)]
                row.append((e, gate, up, inner, y))
            rows.append((s, total, row))
        shares = [sum(1 for _, _, row in rows for each in row if each[0] == e) / (T * K) for e in range(E)]
        self.aux += E * sum(shares[e] * sum(s[e] / sum(s) for s, _, _ in rows) / T for e in range(E))
        self.router[block], self.choices[block] = logits, [[each[0] for each in row] for _, _, row in rows]
        return out, (rows, shares)

    def experts_back(self, block, n, saved, dout):
        w, g, prefix = self.w, self.g, f"model.layers.{block}.block_sparse_moe."
        rows, shares = saved
        dn, dlogits = [[0.0] * C for _ in range(T)], []
        for t, (s, total, row) in enumerate(rows):
            ds = [0.0] * E
            dweight = {}
            for e, gate, up, inner, y in row:
                weight = s[e] / total
                dweight[e] = sum(a * b for a, b in zip(dout[t], y))
                name = f"{prefix}experts.{e}."
                dinner = linear_back([inner], w[name + "w2.weight"], [[weight * a for a in dout[t]]], g[name + "w2.weight"])[0]
                dgate = [d * b * (sigmoid(a) + a * sigmoid(a) * (1 - sigmoid(a))) for d, a, b in zip(dinner, gate, up)]
                dup = [d * a * sigmoid(a) for d, a in zip(dinner, gate)]
                for part, d in (("w1.weight", dgate), ("w3.weight", dup)):
                    back = linear_back([n[t]], w[name + part], [d], g[name + part])[0]
                    dn[t] = [a + b for a, b in zip(dn[t], back)]
            mean = sum(dweight[e] * s[e] / total for e in dweight)
            for e in dweight:
                ds[e] += (dweight[e] - mean) / total
            # The auxiliary loss, which is a mean over the sequences of the batch. Shares are constants.
            everything = sum(s)
            dp = [AUX / B * E * shares[e] / T for e in range(E)]
            mean = sum(dp[e] * s[e] / everything for e in range(E))
            for e in range(E):
                ds[e] += (dp[e] - mean) / everything
            dlogits.append([d * x * (1 - x) for d, x in zip(ds, s)])
        back = linear_back(n, w[prefix + "gate.weight"], dlogits, g[prefix + "gate.weight"])
        return add(dn, back)

    def forward(self):
        w = self.w
        x = [list(w["model.embed_tokens.weight"][t]) for t in self.tokens]
        for b in range(BLOCKS):
            p = f"model.layers.{b}."
            self.act[f"blocks.{b}.input"] = x
            n1, r1 = norm(x, w[p + "input_layernorm.weight"])
            q = turn(linear(n1, w[p + "self_attn.q_proj.weight"]), H, 1)
            k = turn(linear(n1, w[p + "self_attn.k_proj.weight"]), G, 1)
            v = linear(n1, w[p + "self_attn.v_proj.weight"])
            a, shares = attention(q, k, v)
            middle = add(x, linear(a, w[p + "self_attn.o_proj.weight"]))
            n2, r2 = norm(middle, w[p + "post_attention_layernorm.weight"])
            y, experts = self.experts(b, n2)
            self.saved[b] = (x, n1, r1, q, k, v, a, shares, middle, n2, r2, experts)
            x = add(middle, y)
        self.act["final_norm.input"] = x
        n, self.rstd = norm(x, w["model.norm.weight"])
        self.act["final_norm.output"] = n
        self.logits = linear(n, w["lm_head.weight"])
        loss = 0.0
        self.probabilities = []
        for row, target in zip(self.logits, self.targets):
            top = max(row)
            e = [math.exp(z - top) for z in row]
            self.probabilities.append([z / sum(e) for z in e])
            loss -= math.log(self.probabilities[-1][target])
        return loss

    def backward(self):
        w, g = self.w, self.g
        dlogits = [[(p - (i == target)) / (B * T) for i, p in enumerate(row)]
                   for row, target in zip(self.probabilities, self.targets)]
        n = self.act["final_norm.output"]
        d = linear_back(n, w["lm_head.weight"], dlogits, g["lm_head.weight"])
        self.act_grad["final_norm.output"] = d
        d = norm_back(self.act["final_norm.input"], w["model.norm.weight"], self.rstd, d, g["model.norm.weight"])
        self.act_grad["final_norm.input"] = d
        for b in reversed(range(BLOCKS)):
            p = f"model.layers.{b}."
            x, n1, r1, q, k, v, a, shares, middle, n2, r2, experts = self.saved[b]
            dn = self.experts_back(b, n2, experts, d)
            name = p + "post_attention_layernorm.weight"
            d = add(d, norm_back(middle, w[name], r2, dn, g[name]))
            name = p + "self_attn.o_proj.weight"
            dq, dk, dv = attention_back(q, k, v, shares, linear_back(a, w[name], d, g[name]))
            dn = [[0.0] * C for _ in range(T)]
            for part, grad in (("q", turn(dq, H, -1)), ("k", turn(dk, G, -1)), ("v", dv)):
                name = f"{p}self_attn.{part}_proj.weight"
                dn = add(dn, linear_back(n1, w[name], grad, g[name]))
            name = p + "input_layernorm.weight"
            d = add(d, norm_back(x, w[name], r1, dn, g[name]))
            self.act_grad[f"blocks.{b}.input"] = d
        for token, row in zip(self.tokens, d):
            out = g["model.embed_tokens.weight"][token]
            for i, value in enumerate(row):
                out[i] += value


def shapes():
    result = {"model.embed_tokens.weight": (V, C)}
    for b in range(BLOCKS):
        p = f"model.layers.{b}."
        result |= {p + "input_layernorm.weight": (C,), p + "self_attn.q_proj.weight": (H * D, C),
                   p + "self_attn.k_proj.weight": (G * D, C), p + "self_attn.v_proj.weight": (G * D, C),
                   p + "self_attn.o_proj.weight": (C, H * D), p + "post_attention_layernorm.weight": (C,),
                   p + "block_sparse_moe.gate.weight": (E, C), p + "block_sparse_moe." + BIAS: (E,)}
        for e in range(E):
            name = f"{p}block_sparse_moe.experts.{e}."
            result |= {name + "w1.weight": (F, C), name + "w2.weight": (C, F), name + "w3.weight": (F, C)}
    return result | {"model.norm.weight": (C,), "lm_head.weight": (V, C)}


def fill(shape, value):
    return [[value() for _ in range(shape[1])] for _ in range(shape[0])] if len(shape) == 2 else [value() for _ in range(shape[0])]


def initial(random_source):
    weights = {}
    for name, shape in shapes().items():
        if name.endswith(BIAS):
            value = lambda: f32(random_source.gauss(0, 0.02))
        elif len(shape) == 1:
            value = lambda: f32(1 + random_source.gauss(0, 0.1))
        else:
            spread = 0.4 if "gate" in name else 0.15
            value = lambda: f32(random_source.gauss(0, spread))
        weights[name] = fill(shape, value)
    return weights


def flat(x):
    return [v for row in x for v in row] if isinstance(x[0], list) else list(x)


def run(weights, tokens, targets):
    """Returns the loss, the gradients and the sequences of one batch."""
    grads = {name: fill(shape, float) for name, shape in shapes().items()}
    sequences = [Sequence(weights, grads, *each) for each in zip(tokens, targets)]
    loss = sum(s.forward() for s in sequences) / (B * T)
    for s in sequences:
        s.backward()
    return loss, grads, sequences


def loads(sequences):
    return [[sum(row.count(e) for s in sequences for row in s.choices[b]) for e in range(E)] for b in range(BLOCKS)]


def rate(step):
    if step <= 3:
        return 1e-3 * step / 3
    return 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * (step - 3) / (STEPS - 3)))


def update(weights, grads, counts, scale, moments, step):
    for name, shape in shapes().items():
        if name.endswith(BIAS):
            load = counts[int(name.split(".")[2])]
            mean = B * T * K / E
            weights[name] = [w + BIAS_RATE * ((mean > n) - (mean < n)) for w, n in zip(weights[name], load)]
            continue
        m, v = moments.setdefault(name, ([0.0] * len(flat(weights[name])), [0.0] * len(flat(weights[name]))))
        result = []
        for i, (p, g) in enumerate(zip(flat(weights[name]), flat(grads[name]))):
            g *= scale
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            if len(shape) == 2:
                p *= 1 - rate(step) * DECAY
            result.append(p - rate(step) * (m[i] / (1 - BETA1**step)) / (math.sqrt(v[i] / (1 - BETA2**step)) + ADAM_EPS))
        columns = shape[-1]
        weights[name] = [result[i:i + columns] for i in range(0, len(result), columns)] if len(shape) == 2 else result


def write(name, tensors):
    """tensors: name -> (dtype, shape, flat values)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for key, (dtype, shape, values) in sorted(tensors.items()):
        raw = struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'i'}", *values)
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (HERE / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(weights):
    return {name: ("F32", shape, flat(weights[name])) for name, shape in shapes().items()}


def check(weights, tokens, targets):
    def total():
        sequences = [Sequence(weights, None, *each) for each in zip(tokens, targets)]
        return sum(s.forward() for s in sequences) / (B * T) + AUX / B * sum(s.aux for s in sequences)

    grads = run(weights, tokens, targets)[1]
    source, worst = random.Random(7), 0.0
    for name, shape in shapes().items():
        if name.endswith(BIAS):
            continue
        for _ in range(2):
            i, j = source.randrange(shape[0]), source.randrange(shape[-1])
            row, at = (weights[name][i], j) if len(shape) == 2 else (weights[name], i)
            got = grads[name][i][j] if len(shape) == 2 else grads[name][i]
            kept, step = row[at], 1e-6
            row[at] = kept + step
            high = total()
            row[at] = kept - step
            want = (high - total()) / (2 * step)
            row[at] = kept
            worst = max(worst, abs(got - want) / (abs(want) + 1e-4))
    print(f"worst relative difference to finite differences: {worst:.2g}")
    assert worst < 1e-4


def main():
    source = random.Random(20260)
    weights = initial(source)
    first = {name: flat(value) for name, value in weights.items()}
    stream = [[[source.randrange(V) for _ in range(T + 1)] for _ in range(B)] for _ in range(STEPS)]
    tokens = [[row[:-1] for row in batch] for batch in stream]
    targets = [[row[1:] for row in batch] for batch in stream]
    if "--check" in sys.argv:
        return check(weights, tokens[0], targets[0])
    write("model.safetensors", floats(weights))
    integers = lambda x: [v for batch in x for row in batch for v in row]
    write("train_batches.safetensors", {"tokens": ("I32", (STEPS, B, T), integers(tokens)),
                                        "targets": ("I32", (STEPS, B, T), integers(targets))})
    write("batch.safetensors", {"tokens": ("I32", (B, T), integers(tokens[:1])),
                                "targets": ("I32", (B, T), integers(targets[:1]))})
    steps, moments, margin = [], {}, math.inf
    for step in range(1, STEPS + 1):
        loss, grads, sequences = run(weights, tokens[step - 1], targets[step - 1])
        margin = min([margin] + [s.margin for s in sequences])
        length = math.sqrt(sum(g * g for name in shapes() if not name.endswith(BIAS) for g in flat(grads[name])))
        counts = loads(sequences)
        scale = min(1.0, CLIP / (length + 1e-6))
        steps.append({"step": step, "lr": rate(step), "loss": loss, "grad_norm": length, "clip_scale": scale,
                      "counted_targets": B * T, "auxiliary_loss": sum(s.aux for s in sequences) / B,
                      "expert_tokens": counts})
        if step == 1:
            s = sequences[0]
            expected = {f"grad.{name}": ("F32", shape, flat(grads[name]))
                        for name, shape in shapes().items() if not name.endswith(BIAS)}
            expected |= {f"act.{name}": ("F32", (T, C), flat(value)) for name, value in s.act.items()}
            expected |= {f"act_grad.{name}": ("F32", (T, C), flat(value)) for name, value in s.act_grad.items()}
            expected |= {f"router.{b}.logits": ("F32", (T, E), flat(value)) for b, value in s.router.items()}
            expected["logits"] = ("F32", (T, V), flat(s.logits))
            write("expected.safetensors", expected)
        update(weights, grads, counts, scale, moments, step)
    write("final_weights.safetensors", floats(weights))
    final, _, _ = run(weights, tokens[0], targets[0])
    train = {"case": "mixtral-sigmoid", "format_version": 1, "model_type": "mixtral",
             "parameters": sum(len(values) for values in first.values()), "batch_size": B, "sequence_length": T,
             "loss": steps[0]["loss"], "grad_norm": steps[0]["grad_norm"], "final_loss": final,
             "router": {"scores": "sigmoid", "bias_rate": BIAS_RATE, "smallest_margin": margin},
             "zero_gradients": [], "steps": steps}
    (HERE / "train.json").write_text(json.dumps(train, indent=1) + "\n")
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": C,
              "intermediate_size": F, "num_hidden_layers": BLOCKS, "num_attention_heads": H,
              "num_key_value_heads": G, "head_dim": D, "attention_dropout": 0.0, "rms_norm_eps": EPS,
              "rope_theta": THETA, "rope_scaling": None, "max_position_embeddings": 64, "initializer_range": 0.02,
              "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "vocab_size": V,
              "torch_dtype": "float32", "use_cache": True, "sliding_window": None, "num_local_experts": E,
              "num_experts_per_tok": K, "router_jitter_noise": 0.0, "router_aux_loss_coef": AUX,
              "output_router_logits": True}
    (HERE / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(f"loss {steps[0]['loss']:.6f} to {final:.6f}, smallest margin {margin:.2g}, loads {steps[0]['expert_tokens']}")


if __name__ == "__main__":
    main()
