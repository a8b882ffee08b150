#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden data of common/tokenizer with the reference packages (tests/golden/tokenizer/README.md).

  python3 -m venv VENV && VENV/bin/pip install tokenizers sentencepiece
  VENV/bin/python tests/golden/tokenizer/generate.py

The script trains small vocabularies on a fixed text, one for each kind of tokenizer, and writes each as a folder. Then
it encodes and decodes every case of CASES with the references and writes their answers to expected.json.
"""

import base64
import io
import json
import os
import pathlib
import random
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

TEXT = """\
The quick brown fox jumps over the lazy dog. In the beginning was the word, and the word was with the others.
We don't know what they'll say; she's here, I'm there, we've been, you're late, he'd go. 12345 67 890 1000000
She said: "It isn't so." The end of the thing is better than the beginning of it. A B C, x = y + 1; return x;
def main(argument):\n    for index in range(10):\n        print(index)\n\n\ttab\tand  two   three blanks
Die Straße über dem Fluß, naïve café, Ελλάδα, русский текст, 日本語の文章です。日本語を書く。 中文文本 🙂🙂👩‍👩‍👧
"""

CASES = [
    b"", b" ", b"  ", b"\n", b"a", b"Hello, world. Is this-- a test?",
    b"don't DON'T I'll WE'VE they're he'd she'S 'tis", "I’m “quoted” — dash".encode(),
    b"0 12 345 6789 1234567890 3.14159 1,000,000", "\u0661\u0662\u0663 \u00bd \u00b2 \u2167".encode(),
    "日本語の文章です。 中文文本，测试。 한국어 \uac00\u1100\u1161".encode(),
    "🙂 👩‍👩‍👧 🇩🇪 ❤️ e\u0301 é \u0041\u030a \u212b ﬁ ſ 'ſ".encode(),
    "na\u00efve \u65e5\u672c\u8a9e 123\n\n  x\t\ty  ".encode(),
    b"\r\n\r\n\tcode();  // x\n    if (a) {\n        b;\n    }\n", b"a\nb \n c\r\nd\n\n\ne   f \t g",
    b"\x00\x01\x02\x1b[0m\x7f", "\u00a0x\u2003y\u2029z\u180eq\u200bw\ufeff".encode(), "\x85next\x0bvt\x0cff\x1cfs".encode(),
    b"\xff\xfe bad \xc3( \xe2\x82 \xf0\x9f\x98 end \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80 \x80",
    b"<|endoftext|>", b"one<|endoftext|>two <|endoftext|> <|endoftext", b"<tool> x </tool><tool>", b"</s> <s> <unk> <0x41>",
    b"<|end<|endoftext|>", b"keep<|keep|>this <|keep|>", "\u2581a \u2581 b\u2581".encode(), b"   leading and trailing   ",
    b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b" " * 300 + b"x" + b" " * 70, b"the " * 50,
    b"abcdefghijklmnopqrstuvwxyz" * 20, "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947".encode(),
    b"x\xcc\x81\xcc\x80\xcc\xa3 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\U0010ffff\ue000\u0378".encode(),
]


def random_cases():
    chance = random.Random(17)
    alphabet = " \n\t'sStTreabcdeXYZ019.,-<|>\u00e9e\u0301\u65e5\u672c\U0001f642\u00a0\u2581\u0660\u017f"
    for _ in range(40):
        yield "".join(chance.choice(alphabet) for _ in range(chance.randint(1, 60))).encode()
    for _ in range(10):
        yield bytes(chance.randrange(256) for _ in range(chance.randint(1, 40)))


def byte_level(normalizer, pre_tokenizer, vocab_size, added=()):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True) * 3, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def hugging_face_tokenizers():
    """NAME -> (the tokenizer, a change of its file)"""
    def as_strings(document):
        document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]

    def ignore_merges(document):
        document["model"]["ignore_merges"] = True
        # A token that no merges lead to.
        document["model"]["vocab"]["\u0120beginning\u0120"] = len(document["model"]["vocab"]) + 8
        document["model"]["vocab"]["abcdefghijklmnopqrstuvwxyz"] = len(document["model"]["vocab"]) + 8

    yield "gpt2", byte_level(None, pre_tokenizers.ByteLevel(add_prefix_space=False), 400), as_strings
    yield "llama3", byte_level(None, split(LLAMA3), 420), ignore_merges
    yield "qwen2", byte_level(normalizers.NFC(), split(QWEN2), 420,
                              [AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=True),
                               AddedToken("<|keep|>", special=True, normalized=False)]), lambda document: None
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False)])
    yield "digits", byte_level(None, digits, 380), lambda document: None


def sentencepiece_models(folder):
    """NAME -> the bytes of the model"""
    os.chdir(folder)  # the model holds the path of its rules
    rules = pathlib.Path("rules.tsv")
    rules.write_text("FB01\t66 69\nE9\t65 301\nA0\t20\n2003\t20\nD A\tA\n9\t20\nFF01\t21\n41 30A\tC5\n")
    common = dict(hard_vocab_limit=False, num_threads=1, minloglevel=2, pad_id=-1)
    lines = TEXT.splitlines() * 20
    for name, options in {
        "llama2": dict(model_type="bpe", vocab_size=420, byte_fallback=True, split_digits=True,
                       normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99),
        "bpe-wide": dict(model_type="bpe", vocab_size=200, split_by_whitespace=False, user_defined_symbols=["<tool>", "  "],
                         normalization_rule_name="identity", character_coverage=0.98),
        "unigram": dict(model_type="unigram", vocab_size=180, normalization_rule_tsv=str(rules), character_coverage=0.98,
                        user_defined_symbols=["<tool>"]),
        "unigram-bytes": dict(model_type="unigram", vocab_size=420, byte_fallback=True, add_dummy_prefix=False,
                              normalization_rule_name="identity", remove_extra_whitespaces=False),
    }.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **common, **options)
        yield name, model.getvalue()


def write(folder, name, text):
    path = HERE / folder
    path.mkdir(exist_ok=True)
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def main():
    cases = CASES + list(random_cases())
    texts = [case.decode("utf-8", errors="replace") for case in cases]
    expected = {"cases": [base64.b64encode(case).decode() for case in cases], "tokenizers": {}}
    for name, trained, change in hugging_face_tokenizers():
        document = json.loads(trained.to_str())
        change(document)
        text = json.dumps(document, ensure_ascii=False, indent=1)
        write(name, "tokenizer.json", text)
        write(name, "tokenizer_config.json", json.dumps({"eos_token": "<|endoftext|>"}))
        tokenizer = Tokenizer.from_str(text)
        special = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        tokenizer.encode_special_tokens = True
        plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        expected["tokenizers"][name] = {
            "plain": plain, "special": special,
            "decoded": [tokenizer.decode(ids, skip_special_tokens=False) for ids in special]}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in sentencepiece_models(folder):
            write(name, "tokenizer.model", model)
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            plain = [processor.encode(text) for text in texts]
            expected["tokenizers"][name] = {"plain": plain, "decoded": [processor.decode(ids) for ids in plain]}
    write(".", "expected.json", json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
