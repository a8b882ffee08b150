#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the GPU modules of a build are made of: they export their entry alone, hold no generated protobuf (a process has one copy of
it), and takt_cuda has device code for every architecture that is promised.

    tests/cuda/module_test.py BUILD      exit 77: the build has no modules
"""
import collections
import pathlib
import re
import struct
import subprocess
import sys

SKIPPED = 77
PROMISED = {"sm_80", "sm_90", "compute_90"}
FATBIN_MAGIC, PTX, ELF = 0xBA55ED50, 1, 2


def section(path, name):
    """The bytes of a section of an ELF file."""
    table = subprocess.run(["readelf", "--wide", "--section-headers", path], capture_output=True, text=True, check=True).stdout
    for line in table.splitlines():
        match = re.match(r" *\[ *\d+\] (\S+) +\S+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", line)
        if match and match[1] == name:
            offset, size = int(match[2], 16), int(match[3], 16)
            return pathlib.Path(path).read_bytes()[offset : offset + size]
    return b""


def architectures(fatbin):
    """How often each architecture occurs in .nv_fatbin. The section is a row of fat binaries, one for each source, with a header (magic,
    version, size of header, size) and entries (kind, -, size of header, size; architecture at byte 28)."""
    found = collections.Counter()
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != FATBIN_MAGIC:
            at += 8  # padding between sources
            continue
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", fatbin, entry)
            (arch,) = struct.unpack_from("<I", fatbin, entry + 28)
            found[{PTX: "compute_", ELF: "sm_"}[kind] + str(arch)] += 1
            entry += entry_header + entry_size
        at = end
    return found


def symbols(path, *options):
    return subprocess.run(["nm", "--demangle", "--defined-only", *options, path], capture_output=True, text=True, check=True).stdout.splitlines()


def check(module, entry, has_kernels):
    errors = []
    exported = [line.split(" ", 2)[2] for line in symbols(module, "--dynamic")]
    if exported != [entry]:
        errors.append(f"exports {exported}, not {entry} alone")
    protobuf = [line for line in symbols(module) if "takt::v1::" in line or "descriptor_table" in line]
    if protobuf:
        errors.append(f"holds generated protobuf, which a process has one copy of: {protobuf[0]}")
    if has_kernels:
        found = architectures(section(module, ".nv_fatbin"))
        print(f"{module}: device code: " + (", ".join(f"{arch} x {count}" for arch, count in sorted(found.items())) or "none"))
        if not PROMISED <= set(found):
            errors.append(f"lacks device code for {', '.join(sorted(PROMISED - set(found)))}")
    for error in errors:
        print(f"{module}: {error}", file=sys.stderr)
    return not errors


def main():
    folder = pathlib.Path(sys.argv[1]) / "lib" / "takt"
    modules = {folder / "takt_cuda.so": ("TaktCudaPlugin", True), folder / "takt_nccl.so": ("TaktNcclPlugin", False)}
    there = {module: what for module, what in modules.items() if module.exists()}
    for module in modules.keys() - there.keys():
        print(f"SKIPPED: {module} was not built: no CUDA toolkit, or no NCCL, when the build was configured")
    if not there:
        sys.exit(SKIPPED)
    sys.exit(0 if all([check(str(module), *what) for module, what in there.items()]) else 1)


main()
