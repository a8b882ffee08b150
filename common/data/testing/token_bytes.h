// SPDX-License-Identifier: Apache-2.0
// Makes token files for tests.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace takt::data {

static_assert(std::endian::native == std::endian::little, "tests write numbers as they are");

inline std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

template <class T>
void Put(std::string& file, T value) {
  file.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
std::string Stream(const std::vector<std::int64_t>& tokens) {
  std::string file;
  for (const std::int64_t token : tokens) Put(file, static_cast<T>(token));
  return file;
}

inline std::string LlmcShard(std::int32_t magic, std::int32_t version, std::int32_t num_tokens,
                             const std::string& tokens) {
  std::string file;
  for (const std::int32_t value : {magic, version, num_tokens}) Put(file, value);
  file.resize(1024);
  return file + tokens;
}

struct MegatronIndex {
  std::uint64_t version = 1;
  std::uint8_t type_code = 8;  // uint16
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;
  std::string modes;

  std::string ToBytes() const {
    std::string file("MMIDIDX\0\0", 9);
    Put(file, version);
    Put(file, type_code);
    Put(file, std::uint64_t{lengths.size()});
    Put(file, std::uint64_t{documents.size()});
    for (const auto value : lengths) Put(file, value);
    for (const auto value : pointers) Put(file, value);
    for (const auto value : documents) Put(file, value);
    return file + modes;
  }
};

}  // namespace takt::data
