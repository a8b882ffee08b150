// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// The dtypes in the format's own order.
constexpr std::pair<std::string_view, int> kDtypeBits[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};

// Returns the index in kDtypeBits, or -1.
int DtypeIndex(std::string_view dtype) {
  for (int i = 0; i < static_cast<int>(std::size(kDtypeBits)); ++i) {
    if (kDtypeBits[i].first == dtype) return i;
  }
  return -1;
}

absl::Status BadTensor(const std::string& name, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor \"", absl::Utf8SafeCHexEscape(name.substr(0, 100)), "\": ", std::string(what)));
}

// Returns the bytes of a tensor. Checks the product for overflow.
absl::StatusOr<std::uint64_t> SizeOf(const HeaderEntry& entry) {
  const int dtype = DtypeIndex(entry.dtype);
  if (dtype < 0) return BadTensor(entry.name, "unknown dtype");
  std::uint64_t bits = kDtypeBits[dtype].second;
  for (const std::uint64_t extent : entry.shape) {
    if (extent > static_cast<std::uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(bits, extent, &bits)) {
      return BadTensor(entry.name, "its shape is too large");
    }
  }
  if (bits % 8 != 0) return BadTensor(entry.name, "its elements do not fill whole bytes");
  return bits / 8;
}

std::uint64_t ReadU64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

absl::StatusOr<Header> ReadHeader(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes)
    return absl::InvalidArgumentError("too short for a safetensors file");
  const std::uint64_t length = ReadU64(file);
  if (length > kMaxHeaderBytes)
    return absl::InvalidArgumentError(absl::StrCat("header length ", length, " is too large"));
  if (length > file.size() - kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file ends inside its header of ", length, " bytes"));
  }
  return ParseHeader({reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                      static_cast<std::size_t>(length)});
}

}  // namespace

absl::StatusOr<SafetensorsView> SafetensorsView::Parse(std::span<const std::byte> file,
                                                       std::string_view name) {
  absl::StatusOr<Header> parsed = ReadHeader(file);
  if (!parsed.ok()) return Annotate(parsed.status(), name);
  Header header = *std::move(parsed);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + ReadU64(file));
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const HeaderEntry& a, const HeaderEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  SafetensorsView view;
  view.metadata_ = std::move(header.metadata);
  std::uint64_t position = 0;
  for (HeaderEntry& entry : header.entries) {
    const absl::StatusOr<std::uint64_t> size = SizeOf(entry);
    if (!size.ok()) return Annotate(size.status(), name);
    if (entry.begin != position) {
      return Annotate(BadTensor(entry.name, absl::StrCat("begins at ", entry.begin, " where ",
                                                         position, " was expected")),
                      name);
    }
    if (entry.end < entry.begin || entry.end - entry.begin != *size) {
      return Annotate(
          BadTensor(entry.name, absl::StrCat("its shape needs ", *size, " bytes, its offsets are ",
                                             entry.begin, " to ", entry.end)),
          name);
    }
    if (entry.end > data.size())
      return Annotate(BadTensor(entry.name, "the file ends before it does"), name);
    view.tensors_.push_back({.name = std::move(entry.name),
                             .dtype = std::move(entry.dtype),
                             .shape = {entry.shape.begin(), entry.shape.end()},
                             .bytes = data.subspan(entry.begin, *size)});
    position = entry.end;
  }
  if (position != data.size()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", data.size() - position,
                                                   " bytes follow the last tensor"));
  }
  return view;
}

const Tensor* SafetensorsView::Find(std::string_view name) const {
  const auto it = std::ranges::find(tensors_, name, &Tensor::name);
  return it == tensors_.end() ? nullptr : &*it;
}

void SortTensors(std::vector<Tensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(-DtypeIndex(a.dtype), a.name) < std::pair(-DtypeIndex(b.dtype), b.name);
  });
}

std::string FormatSafetensorsHeader(std::span<const Tensor> tensors,
                                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::size_t position = 0;
  for (const Tensor& tensor : tensors) {
    const HeaderEntry entry{.name = tensor.name,
                            .dtype = tensor.dtype,
                            .shape = {tensor.shape.begin(), tensor.shape.end()}};
    TAKT_CHECK(SizeOf(entry).ok() && *SizeOf(entry) == tensor.bytes.size());
    const std::size_t end = position + tensor.bytes.size();
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>(text.size() >> (8 * i));
  return header + text;
}

std::string FormatSafetensors(std::vector<Tensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  SortTensors(tensors);
  std::string file = FormatSafetensorsHeader(tensors, metadata);
  for (const Tensor& tensor : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return file;
}

}  // namespace takt::checkpoint
