# SPDX-License-Identifier: Apache-2.0
# Writes the header OUT with the bytes of the file IN as the array NAME in NAMESPACE, at build time:
#   cmake -DIN=file -DOUT=file.h -DNAMESPACE=takt::x -DNAME=kBytes -P EmbedBytes.cmake
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1, " bytes "${bytes}")
file(WRITE ${OUT} "// Made by EmbedBytes.cmake.\n#pragma once\n\nnamespace ${NAMESPACE} {\n\n"
  "inline constexpr unsigned char ${NAME}[] = {${bytes}};\n\n}  // namespace ${NAMESPACE}\n")
