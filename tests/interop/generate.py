#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the text of `takt generate` and the loss of `takt eval` with those of transformers.

usage: generate.py BIN

For each model: transformers writes a folder of random weights whose tokens are bytes. `takt generate` continues a text
greedily, and every token must be the one of transformers, unless two logits are as close as rounding in f32. `takt eval`
scores a file of bytes, and the loss must be torch's. At the end both generate with a model of the size of gpt2-124m on
one thread, and the rates are printed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import transformers

PROMPT = "In the beginning, the takt was without form."
TOKENS = 60
POSITIONS = 128
TIE = 1e-4  # logits as close as this may change their order by rounding

LLAMA = dict(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=POSITIONS)
LLAMA3_ROPE = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)

# name, configuration, dtype of the folder
MODELS = [
    ("gpt2", lambda: transformers.GPT2Config(vocab_size=256, n_positions=POSITIONS, n_embd=48, n_layer=3, n_head=4,
                                             bos_token_id=1, eos_token_id=2), torch.float32),
    ("llama", lambda: transformers.LlamaConfig(**LLAMA), torch.float32),
    ("llama-tied-bf16", lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.bfloat16),
    ("llama-rope-scaled", lambda: transformers.LlamaConfig(**LLAMA, rope_theta=500.0, rope_scaling=LLAMA3_ROPE),
     torch.float32),
    ("qwen2", lambda: transformers.Qwen2Config(**LLAMA), torch.float32),
    ("qwen3-head-dim", lambda: transformers.Qwen3Config(**LLAMA, head_dim=20), torch.float32),
    ("mistral-window", lambda: transformers.MistralConfig(**LLAMA, sliding_window=9), torch.float32),
    ("mixtral", lambda: transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2,
                                                   sliding_window=None), torch.float32),
    ("qwen3-moe", lambda: transformers.Qwen3MoeConfig(**LLAMA, head_dim=20, moe_intermediate_size=24, num_experts=6,
                                                      num_experts_per_tok=3, norm_topk_prob=True), torch.float32),
]


def make_model(config, dtype):
    """Spreads the weights so far that the most probable tokens differ from place to place."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def takt(binaries, *arguments):
    done = subprocess.run([str(binaries / "takt"), "-o", "json", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}: {done.stderr[-2000:]}"
    return json.loads(done.stdout)


def check_tokens(model, prompt, tokens):
    """Follows our tokens, each of which must be transformers' choice after those before it. Returns the ties."""
    ids = torch.tensor([list(prompt) + tokens])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1:-1]
    best = logits.max(dim=1).values
    chosen = logits[torch.arange(len(tokens)), torch.tensor(tokens)]
    off = best - chosen
    assert off.max().item() < TIE, f"token {off.argmax().item()} is {off.max().item()} below the best"
    return int((off > 0).sum())


def check_generated(model, prompt, tokens):
    """The ids of transformers' own generation, with its cache, up to the first tie."""
    ids = torch.tensor([list(prompt)])
    model.generation_config.eos_token_id = None  # bytes have no end
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(tokens),
                              pad_token_id=0)[0, ids.shape[1]:].tolist()
    return made == tokens


def check_loss(binaries, folder, model, work):
    text = bytes((7 * i * i + 3 * i) % 251 for i in range(1000))
    (work / "text").write_bytes(text)
    context = 48
    result = takt(binaries, "eval", folder, "--data", work / "text", "--format", "bytes", "--context", context)
    windows = (len(text) - 1) // context
    total = 0.0
    for i in range(windows):
        ids = torch.tensor([list(text[i * context:(i + 1) * context + 1])])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits.double()
        total += torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
    off = abs(result["loss"] - total / (windows * context))
    assert result["tokens"] == windows * context and off < 1e-5, (result, off)
    return off


def check(name, config, dtype, binaries):
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        folder = work / "model"
        make_model(config(), dtype).save_pretrained(folder)
        model = load(folder)
        prompt = PROMPT.encode()
        result = takt(binaries, "generate", folder, "--prompt", PROMPT, "--tokenizer", "bytes", "--tokens", TOKENS)
        tokens = result["tokens"]
        assert len(tokens) == TOKENS and len(set(tokens)) > 3, tokens
        ties = check_tokens(model, prompt, tokens)
        assert ties > 0 or check_generated(model, prompt, tokens), tokens
        off = check_loss(binaries, folder, model, work)
        print(f"{name}: {len(tokens)} tokens, {ties} ties, loss off by {off:.1e}", flush=True)


def rates(binaries):
    """Tokens a second of both, with one thread and a model of GPT-2's size whose weights are random."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(temporary)
        ours = takt(binaries, "generate", temporary, "--prompt", PROMPT, "--tokenizer", "bytes", "--tokens", 64,
                    "--threads", 1)["tokens_per_second"]
        model = load(temporary)
        ids = torch.tensor([list(PROMPT.encode())])
        times = []
        for tokens in (1, 64):
            begin = time.monotonic()
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                           min_new_tokens=tokens, pad_token_id=0)
            times.append(time.monotonic() - begin)
        theirs = 63 / (times[1] - times[0])
        print(f"gpt2-124m on one thread: {ours:.1f} tokens/s, transformers {theirs:.1f}")


def main(binaries):
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for name, config, dtype in MODELS:
        check(name, config, dtype, binaries)
    rates(binaries)
    print("generate: all agree")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
