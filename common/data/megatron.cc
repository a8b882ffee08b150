// SPDX-License-Identifier: Apache-2.0
#include "common/data/megatron.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kHeaderBytes = 34;
constexpr std::uint64_t kSequenceBytes = 12;  // i32 length, i64 pointer
constexpr std::uint64_t kDocumentBytes = 8;

// The types by their codes, from 1.
constexpr TokenType kTypes[] = {TokenType::kU8,  TokenType::kI8,  TokenType::kI16, TokenType::kI32,
                                TokenType::kI64, TokenType::kF64, TokenType::kF32, TokenType::kU16};

template <class... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::uint64_t ReadU64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

struct Index {
  TokenType type = TokenType::kU8;
  TokenValues lengths, pointers;  // of the sequences
  TokenValues documents;          // first sequence of each, then the count of sequences
  TokenValues modes;              // of the sequences; usually none
};

absl::StatusOr<Index> ReadIndex(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes)
    return Bad("has an index of ", bytes.size(), " bytes; its header alone has 34");
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return Bad("has an index that does not begin with MMIDIDX");
  const std::uint64_t version = ReadU64(bytes.subspan(9));
  if (version != 1) return Bad("has an index of version ", version, "; version 1 is known");
  const auto code = static_cast<unsigned>(bytes[17]);
  if (code < 1 || code > std::size(kTypes))
    return Bad("has an index with type code ", code, "; codes are 1 to 8");
  const std::uint64_t num_sequences = ReadU64(bytes.subspan(18));
  const std::uint64_t num_boundaries = ReadU64(bytes.subspan(26));
  // Divides rather than multiplies, because the counts may be any number and a product could
  // overflow.
  std::span<const std::byte> rest = bytes.subspan(kHeaderBytes);
  const bool fits =
      num_sequences <= rest.size() / kSequenceBytes &&
      num_boundaries <= (rest.size() - num_sequences * kSequenceBytes) / kDocumentBytes;
  const std::uint64_t left =
      fits ? rest.size() - num_sequences * kSequenceBytes - num_boundaries * kDocumentBytes : 0;
  if (!fits || (left != 0 && left != num_sequences)) {
    return Bad("has an index that announces ", num_sequences, " sequences and ", num_boundaries,
               " document boundaries, which ", bytes.size(), " bytes ",
               fits ? "exceed" : "cannot hold");
  }
  const auto take = [&rest](TokenType type, std::uint64_t count) {
    const std::size_t size = count * WidthOf(type);
    const TokenValues values(type, rest.first(size));
    rest = rest.subspan(size);
    return values;
  };
  Index index{.type = kTypes[code - 1]};
  index.lengths = take(TokenType::kI32, num_sequences);
  index.pointers = take(TokenType::kI64, num_sequences);
  index.documents = take(TokenType::kI64, num_boundaries);
  index.modes = take(TokenType::kI8, left);
  return index;
}

absl::Status CheckSequences(const Index& index, std::int64_t data_bytes) {
  const std::int64_t width = WidthOf(index.type);
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < index.lengths.size(); ++i) {
    const std::int64_t length = index.lengths.At(i), pointer = index.pointers.At(i);
    if (length < 0) return Bad("has an index whose sequence ", i, " has length ", length);
    if (pointer != end) {
      return Bad("has an index whose sequence ", i, " begins at byte ", pointer,
                 "; the one before ends at ", end);
    }
    if (length > (data_bytes - end) / width) {
      return Bad("has an index whose sequence ", i, " of ", length, " ",
                 std::string(NameOf(index.type)), " tokens begins at byte ", pointer,
                 "; the data has ", data_bytes, " bytes");
    }
    end += length * width;
  }
  if (end == data_bytes) return absl::OkStatus();
  return Bad("has an index that describes ", end, " bytes of data; the data has ", data_bytes);
}

absl::Status CheckDocuments(const Index& index) {
  const TokenValues& documents = index.documents;
  const std::int64_t num_sequences = index.lengths.size();
  if (documents.size() == 0 || documents.At(0) != 0)
    return Bad("has an index whose documents do not begin with sequence 0");
  for (std::int64_t i = 1; i < documents.size(); ++i) {
    if (documents.At(i) >= documents.At(i - 1)) continue;
    return Bad("has an index whose document ", i - 1, " ends before it begins, at sequence ",
               documents.At(i));
  }
  const std::int64_t last = documents.At(documents.size() - 1);
  if (last == num_sequences) return absl::OkStatus();
  return Bad("has an index whose documents end at sequence ", last, "; there are ", num_sequences);
}

}  // namespace

absl::StatusOr<MegatronData> ParseMegatron(std::span<const std::byte> index_bytes,
                                           std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(const Index index, ReadIndex(index_bytes));
  RETURN_IF_ERROR(CheckSequences(index, std::ssize(data)));
  RETURN_IF_ERROR(CheckDocuments(index));
  if (const std::int64_t i = index.modes.FindOutside(1, false); i < index.modes.size()) {
    return Bad("has an index whose sequence ", i, " has mode ", index.modes.At(i),
               "; only text (mode 0) can be trained on");
  }
  return MegatronData{.tokens = TokenValues(index.type, data),
                      .num_sequences = index.lengths.size(),
                      .num_documents = index.documents.size() - 1};
}

}  // namespace takt::data
