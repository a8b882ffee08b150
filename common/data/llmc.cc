// SPDX-License-Identifier: Apache-2.0
#include "common/data/llmc.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

constexpr std::int64_t kHeaderBytes = 1024;

struct Kind {
  std::int64_t magic, version;
  TokenType type;
};
constexpr Kind kKinds[] = {{20240520, 1, TokenType::kU16}, {20240801, 7, TokenType::kU32}};

// Magic numbers of the other files that llm.c writes.
const char* OtherFile(std::int64_t magic) {
  switch (magic) {
    case 20240326:
      return ", that of a model";
    case 20240327:
      return ", that of a debugging state";
    case 20240328:
      return ", that of a tokenizer";
    case 20240522:
      return ", that of an evaluation set";
    case 20240527:
      return ", that of an optimizer state";
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<TokenValues> ParseLlmc(std::span<const std::byte> file) {
  const std::int64_t size = std::ssize(file);
  if (size < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", size, " bytes; the header of an llm.c shard alone has 1024"));
  }
  const TokenValues header(TokenType::kI32, file.first(kHeaderBytes));
  const std::int64_t magic = header.At(0), version = header.At(1), num_tokens = header.At(2);
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& candidate) { return candidate.magic == magic; });
  if (kind == std::end(kKinds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has magic ", magic, OtherFile(magic),
                     "; token shards of llm.c have 20240520 (uint16) or 20240801 (uint32)"));
  }
  if (version != kind->version) {
    return absl::InvalidArgumentError(absl::StrCat("has version ", version,
                                                   "; llm.c shards of magic ", magic,
                                                   " have version ", kind->version));
  }
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a header that announces ", num_tokens, " tokens"));
  }
  const std::int64_t announced = kHeaderBytes + num_tokens * WidthOf(kind->type);
  if (size != announced) {
    return absl::InvalidArgumentError(
        absl::StrCat(size < announced ? "is truncated: its" : "is longer than its header says: its",
                     " header announces ", num_tokens, " ", std::string(NameOf(kind->type)),
                     " tokens, ", announced, " bytes in all; it has ", size));
  }
  return TokenValues(kind->type, file.subspan(kHeaderBytes));
}

}  // namespace takt::data
