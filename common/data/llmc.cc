// SPDX-License-Identifier: Apache-2.0
#include "common/data/llmc.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
constexpr std::pair<std::int64_t, const char*> kOtherFiles[] = {
    {20240326, ", that of a model"},
    {20240327, ", that of a debugging state"},
    {20240328, ", that of a tokenizer"},
    {20240522, ", that of an evaluation set"},
    {20240527, ", that of an optimizer state"}};

const char* OtherFile(std::int64_t magic) {
  const auto* const found =
      std::ranges::find(kOtherFiles, magic, [](const auto& other) { return other.first; });
  return found == std::end(kOtherFiles) ? "" : found->second;
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
  const auto* kind = std::ranges::find(kKinds, magic, &Kind::magic);
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
