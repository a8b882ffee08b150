#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which folders include which, and that CMake links exactly what is included.

tests/includes.txt lists the folders of the product, each with the folders that its files may include. A line names only
folders of lines above it, so no folder can include itself by a detour. Files of tests (tests/, *_test.cc, *_testing.h,
fake_* and others that `IS_TEST` matches) may include any folder.

For each takt_library and takt_binary, the libraries that own the headers its files include must be the ones that it
links: under DEPS if one of its headers includes them, else under PRIVATE_DEPS. Libraries of other projects are not
checked.

  tests/includes.py           check, print what is wrong, exit 1 if anything is
  tests/includes.py --write   write the table anew from the includes, to be read as code before it is committed
"""

import graphlib
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path("tests/includes.txt")
HEADING = """\
# SPDX-License-Identifier: Apache-2.0
# FOLDER: the folders that its files may include. A line names only folders of lines above it (tests/includes.py).
"""
SOURCE = re.compile(r"\.(h|cc|cuh|cu)$")
IS_TEST = re.compile(r"^tests/|_(test|testing|benchmark|harness)\.|/(fake_[^/]*|testing/.*|tested_backends\.cc)$")
# Folders that count as the one above them, whose files they and it share.
PARTS = {"common/schedule/generators", "worker/backend/cuda/kernels", "worker/backend/cuda/emulator",
         "worker/train/instructions"}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def tracked():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if pathlib.Path(path).exists()]


def includes(path):
    return INCLUDE.findall(pathlib.Path(path).read_text())


def folder(path):
    return str(pathlib.Path(path).parent)


def whole_folder(path):
    return folder(folder(path)) if folder(path) in PARTS else folder(path)


def included_folders(files):
    """FOLDER -> the other folders of the product that its files include."""
    known = set(files)
    result = {}
    for path in files:
        if IS_TEST.search(path):
            continue
        used = result.setdefault(whole_folder(path), set())
        used |= {whole_folder(name) for name in includes(path) if name in known} - {whole_folder(path)}
    return result


def read_table():
    table = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, _, allowed = line.partition(":")
        table[name] = allowed.split()
    return table


def check_table(actual):
    table = read_table()
    above = set()
    for name, allowed in table.items():
        for other in allowed:
            if other not in above:
                yield f"{TABLE}: {name} names {other}, which is not on a line above it"
        above.add(name)
    for name in sorted(set(table) - set(actual)):
        yield f"{TABLE}: {name} has no sources"
    for name, used in sorted(actual.items()):
        for other in sorted(used - set(table.get(name, []))):
            yield f"{name} includes {other}, which {TABLE} does not allow"
        for other in sorted(set(table.get(name, [])) - used):
            yield f"{TABLE}: {name} does not include {other}"


def write_table(actual):
    order = graphlib.TopologicalSorter({name: sorted(used) for name, used in sorted(actual.items())})
    lines = [f"{name}: {' '.join(sorted(actual[name]))}".rstrip() for name in order.static_order()]
    TABLE.write_text(HEADING + "\n".join(lines) + "\n")


class Target:
    def __init__(self, cmake, kind, words):
        self.kind, self.name, self.folder = kind, words[0], folder(cmake)
        lists = {"SOURCES": [], "ALONE": [], "DEPS": [], "PRIVATE_DEPS": []}
        current = None
        for word in words[1:]:
            if word in lists:
                current = lists[word]
            elif current is not None:
                current.append(word)
        self.sources = [str(pathlib.Path(self.folder) / source) for source in lists["SOURCES"] + lists["ALONE"]
                        if "$" not in source]
        self.public = {dep for dep in lists["DEPS"] if dep.startswith("takt_")}
        self.private = {dep for dep in lists["PRIVATE_DEPS"] if dep.startswith("takt_")}


def read_targets(files):
    for cmake in files:
        if not cmake.endswith("CMakeLists.txt"):
            continue
        text = re.sub(r"#.*", "", pathlib.Path(cmake).read_text())
        for kind, arguments in re.findall(r"\b(takt_library|takt_binary)\(([^)]*)\)", text):
            yield Target(cmake, kind, arguments.split())


def header_owners(files, libraries):
    """HEADER -> the library of its .cc file, else the first one with sources in its folder."""
    of_source = {source: library for library in libraries for source in library.sources}
    of_folder = {}
    for library in libraries:
        for path in library.sources or [library.folder + "/"]:
            of_folder.setdefault(folder(path) if library.sources else library.folder, library)
    for header in files:
        if not header.endswith(".h") or re.search(r"_testing\.h$", header):
            continue
        owner = of_source.get(header[:-1] + "cc") or of_folder.get(folder(header))
        if owner is not None:
            yield header, owner


def check_links(files):
    targets = list(read_targets(files))
    owners = dict(header_owners(files, [target for target in targets if target.kind == "takt_library"]))

    def owner(name):
        if name in owners:
            return owners[name].name
        if re.search(r"^(takt/v1|grpc/health/v1|etcd/v3)/.*\.pb\.h$", name):
            return "takt_grpc" if name.endswith(".grpc.pb.h") else "takt_proto"
        return None

    def used(paths):
        return {owner(name) for path in paths for name in includes(path)} - {None}

    for target in targets:
        if target.name.startswith("takt_testing") or target.folder.startswith("tests"):
            continue
        headers = [header for header, library in owners.items() if library is target]
        public = used(headers) - {target.name}
        private = used(target.sources) - public - {target.name}
        if target.kind == "takt_binary":
            public, private = public | private, set()
        for kind, linked, needed in (("DEPS", target.public, public), ("PRIVATE_DEPS", target.private, private)):
            for dep in sorted(needed - linked):
                yield f"{target.folder}/CMakeLists.txt: {target.name} must link {dep} under {kind}"
            for dep in sorted(linked - needed):
                yield f"{target.folder}/CMakeLists.txt: {target.name} links {dep} under {kind} without a reason"


def main():
    files = tracked()
    actual = included_folders([path for path in files if SOURCE.search(path)])
    if sys.argv[1:] == ["--write"]:
        write_table(actual)
        return 0
    wrong = [*check_table(actual), *check_links(files)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
