# SPDX-License-Identifier: Apache-2.0
"""Models made by transformers, trained here with a learning rate of 0, exported and opened again.

usage: interop.py BIN

For each model: transformers writes a folder (some in bfloat16, some in shards), safetensors writes
a batch; `takt local run` takes one step on them; its loss must be torch's. The exported folder must
have the same tensors to the byte for Python's safetensors, and the same logits to the bit for
transformers. The golden models are compared with their golden logits as well.
"""

import contextlib
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import safetensors
import safetensors.torch
import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "models"
BATCH, LENGTH = 4, 12

LLAMA = dict(vocab_size=131, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
LLAMA3_ROPE = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)

# name, configuration, dtype of the folder, largest shard of the folder and of the export
MODELS = [
    ("gpt2", lambda: transformers.GPT2Config(vocab_size=131, n_positions=32, n_embd=48, n_layer=3, n_head=4,
                                             bos_token_id=1, eos_token_id=2), torch.float32, "5GB"),
    ("gpt2-inner-sharded-bf16", lambda: transformers.GPT2Config(vocab_size=131, n_positions=32, n_embd=48, n_layer=2,
                                                                n_head=3, n_inner=100,
                                                                bos_token_id=0, eos_token_id=0), torch.bfloat16, "20KB"),
    ("llama-untied", lambda: transformers.LlamaConfig(**LLAMA), torch.float32, "40KB"),
    ("llama-tied-bf16", lambda: transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.bfloat16, "5GB"),
    ("llama-rope-scaled", lambda: transformers.LlamaConfig(**LLAMA, rope_theta=500.0, rope_scaling=LLAMA3_ROPE), torch.float32, "5GB"),
    ("llama-head-dim-f16", lambda: transformers.LlamaConfig(**LLAMA, head_dim=16), torch.float16, "5GB"),
    ("qwen2-untied", lambda: transformers.Qwen2Config(**LLAMA), torch.float32, "5GB"),
    ("qwen2-tied-bf16", lambda: transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True), torch.bfloat16, "40KB"),
    ("qwen3-head-dim", lambda: transformers.Qwen3Config(**LLAMA, head_dim=20), torch.float32, "5GB"),
    ("qwen3-tied-bf16", lambda: transformers.Qwen3Config(**LLAMA, head_dim=16, tie_word_embeddings=True), torch.bfloat16, "40KB"),
    ("mistral-window", lambda: transformers.MistralConfig(**LLAMA, sliding_window=5), torch.float32, "5GB"),
    ("mistral-no-window", lambda: transformers.MistralConfig(**LLAMA, sliding_window=None), torch.bfloat16, "5GB"),
    ("mixtral", lambda: transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2, sliding_window=None), torch.float32, "40KB"),
    ("qwen3-moe-dense-block", lambda: transformers.Qwen3MoeConfig(**LLAMA, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                                                  norm_topk_prob=True, mlp_only_layers=[1]), torch.float32, "5GB"),
    ("qwen3-moe-unnormed-bf16", lambda: transformers.Qwen3MoeConfig(**LLAMA, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                                                                    norm_topk_prob=False), torch.bfloat16, "5GB"),
]


def quiet(call, *args, **options):
    with contextlib.redirect_stderr(io.StringIO()):
        return call(*args, **options)


def make_model(config, dtype):
    """Gives biases and norms other values than their initial ones, so that a forgotten one shows."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.to(dtype)


def load(folder):
    """Loads in float32, in which we compute, whatever the dtype of the folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def tensors_of(folder):
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safetensors.safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}, file
            for name in opened.keys():
                assert name not in tensors, name
                tensors[name] = opened.get_tensor(name)
    return tensors


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


def train_one_step(binaries, work, folder, batch):
    """The loss of `batch`, and the checkpoint after a step that changes nothing."""
    safetensors.torch.save_file({name: tensor.to(torch.int32) for name, tensor in batch.items()}, work / "batch.safetensors")
    rows, length = batch["tokens"].shape
    (work / "job.yaml").write_text(f"""
name: interop
model: {{init_from: {folder}, context: {length}}}
data: {{train: {{path: {work}/batch.safetensors, format: safetensors}}, shuffle: false}}
batch: {{global: {rows}, microbatch: 1}}
optimizer: {{adamw: {{learning_rate: 0}}}}
steps: 1
parallelism: {{pipeline: 2, schedule: 1f1b}}
checkpoint: {{directory: {work}/checkpoints, every_steps: 1, resume: none}}
seed: 1
""")
    lines = run(binaries / "takt", "-o", "json", "local", "run", work / "job.yaml", "--workers", 2, "--device", "cpu")
    steps = [step for step in map(json.loads, lines.splitlines()) if "loss" in step]
    assert len(steps) == 1, lines
    return steps[0]["loss"], work / "checkpoints"


def torch_loss(model, batch):
    with torch.no_grad():
        logits = model(batch["tokens"].long()).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten()).item()


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8),
                                                                     b.contiguous().view(torch.uint8))


def export(binaries, work, checkpoints, shard):
    out = work / "exported"
    run(binaries / "takt", "checkpoint", "export", checkpoints, out, "--max-shard-size", shard)
    return out


def check_round_trip(name, binaries, folder, shard, batch, golden_logits=None):
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        loss, checkpoints = train_one_step(binaries, work, folder, batch)
        exported = export(binaries, work, checkpoints, shard)
        before, after = tensors_of(folder), tensors_of(exported)
        assert before.keys() == after.keys(), set(before) ^ set(after)
        for tensor in before:
            assert same_bits(before[tensor], after[tensor]), tensor
        original, loaded = quiet(load, folder), quiet(load, exported)
        assert loaded.config.bos_token_id == original.config.bos_token_id
        with torch.no_grad():
            logits = [model(batch["tokens"].long()).logits for model in (original, loaded)]
        assert torch.equal(*logits)
        quiet(load, checkpoints / "latest")  # the checkpoint itself opens too
        off = abs(loss - torch_loss(loaded, batch))
        assert off < 1e-5, f"loss is off by {off}"
        num_files = len(list(exported.glob("*.safetensors")))
        note = f"{name}: {len(after)} tensors in {num_files} files, loss off by {off:.1e}"
        if golden_logits is not None:
            off = (logits[1][0] - golden_logits).abs().max().item()
            assert off < 1e-5, f"logits are off by {off}"
            note += f", logits off by {off:.1e} from the golden ones"
        print(note, flush=True)


def main(binaries):
    print(f"safetensors {safetensors.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, "
          f"Python {sys.version.split()[0]}")
    for name, config, dtype, shard in MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            model = make_model(config(), dtype)
            quiet(model.save_pretrained, folder, max_shard_size=shard)
            generator = torch.Generator().manual_seed(2)
            rows = torch.randint(model.config.vocab_size, (BATCH, LENGTH + 1), generator=generator)
            batch = {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}
            check_round_trip(name, binaries, folder, shard, batch)
    for name in ("gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny", "mixtral-tiny", "qwen3moe-tiny",
                 "qwen3moe-unnormed", "gpt2-ignore-index"):
        batch = safetensors.torch.load_file(GOLDEN / name / "batch.safetensors")
        logits = safetensors.torch.load_file(GOLDEN / name / "expected.safetensors")["logits"]
        check_round_trip(name, binaries, GOLDEN / name, "5GB", batch, logits)
    print("interop: all agree")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
