// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_file.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"

namespace takt::data {
namespace {

std::uint32_t Load(const std::byte* bytes, int width) {
  std::uint32_t value = 0;
  for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<std::uint32_t>(bytes[i]);
  return value;
}

const char* NameOf(config::DataFormat format) {
  switch (format) {
    case config::DataFormat::kBytes:
      return "bytes";
    case config::DataFormat::kUint16:
      return "uint16";
    case config::DataFormat::kUint32:
      return "uint32";
    case config::DataFormat::kLlmc:
      return "llmc";
    case config::DataFormat::kMegatron:
      return "megatron";
    case config::DataFormat::kSafetensors:
      return "safetensors";
  }
  return "unknown";
}

}  // namespace

std::uint32_t TokenFile::Values::At(std::int64_t i) const {
  return Load(bytes.data() + i * width, width);
}

void TokenFile::Values::Read(std::int64_t begin, std::span<std::int32_t> out) const {
  // One loop a width, so that each is unrolled with a constant.
  const auto read = [&](auto constant_width) {
    const std::byte* from = bytes.data() + begin * constant_width.value;
    for (std::int32_t& value : out) {
      value = static_cast<std::int32_t>(Load(from, constant_width.value));
      from += constant_width.value;
    }
  };
  if (width == 1) read(std::integral_constant<int, 1>());
  if (width == 2) read(std::integral_constant<int, 2>());
  if (width == 4) read(std::integral_constant<int, 4>());
}

absl::Status TokenFile::Bad(const char* key, std::string value, std::string rule,
                            std::string fix) const {
  return InvalidField({.field = absl::StrCat(options_.field, ".", key),
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

absl::StatusOr<TokenFile> TokenFile::Open(std::span<const std::byte> file,
                                          TokenFileOptions options) {
  TAKT_CHECK(options.context >= 1);
  TokenFile tokens(std::move(options));
  if (file.empty()) {
    return tokens.Bad("path", tokens.options_.path, "the file is empty",
                      "name a file that holds tokens");
  }
  switch (tokens.options_.format) {
    case config::DataFormat::kBytes:
      RETURN_IF_ERROR(tokens.OpenStream(file, 1));
      return tokens;
    case config::DataFormat::kUint16:
      RETURN_IF_ERROR(tokens.OpenStream(file, 2));
      return tokens;
    case config::DataFormat::kUint32:
      RETURN_IF_ERROR(tokens.OpenStream(file, 4));
      return tokens;
    case config::DataFormat::kSafetensors:
      RETURN_IF_ERROR(tokens.OpenSafetensors(file));
      return tokens;
    case config::DataFormat::kLlmc:
    case config::DataFormat::kMegatron:
      break;
  }
  return tokens.Bad("format", NameOf(tokens.options_.format), "is not supported by this version",
                    "use bytes, uint16, uint32 or safetensors");
}

absl::Status TokenFile::OpenStream(std::span<const std::byte> file, int width) {
  if (file.size() % width != 0) {
    return Bad("path", options_.path,
               absl::StrCat("has ", file.size(), " bytes, which is no whole number of ",
                            NameOf(options_.format), " tokens"),
               "check data.*.format, or whether the file is complete");
  }
  tokens_ = {.bytes = file, .width = width};
  num_tokens_ = tokens_.size();
  num_windows_ = (num_tokens_ - 1) / options_.context;
  if (num_windows_ >= 1) return absl::OkStatus();
  return Bad("path", options_.path,
             absl::StrCat("holds ", num_tokens_, " tokens; one window needs model.context + 1 = ",
                          static_cast<std::int64_t>(options_.context) + 1),
             "use a longer file or a shorter context");
}

absl::Status TokenFile::OpenSafetensors(std::span<const std::byte> file) {
  const absl::StatusOr<checkpoint::SafetensorsView> view =
      checkpoint::SafetensorsView::Parse(file, options_.path);
  if (!view.ok()) {
    return Bad("path", options_.path,
               absl::StrCat("is not a safetensors file: ", view.status().message()),
               "check data.*.format");
  }
  const checkpoint::Tensor* tokens = view->Find("tokens");
  const checkpoint::Tensor* targets = view->Find("targets");
  if (tokens == nullptr || targets == nullptr) {
    return Bad("path", options_.path, "must hold the tensors `tokens` and `targets`",
               "name such a file");
  }
  const auto& shape = tokens->shape;
  if (tokens->dtype != "I32" || targets->dtype != "I32" || shape != targets->shape ||
      shape.size() < 2 || shape.size() > 3) {
    return Bad("path", options_.path,
               "`tokens` and `targets` must both be I32 of one shape, [N,T] or [batches,B,T]",
               "write them so");
  }
  if (shape.back() != options_.context) {
    return Bad(
        "path", options_.path,
        absl::StrCat("has rows of ", shape.back(), " tokens; model.context is ", options_.context),
        "make them equal");
  }
  tokens_ = {.bytes = tokens->bytes, .width = 4};
  targets_ = {.bytes = targets->bytes, .width = 4};
  num_tokens_ = tokens_.size();
  num_windows_ = num_tokens_ / options_.context;
  if (num_windows_ >= 1) return absl::OkStatus();
  return Bad("path", options_.path, "holds no rows", "name a file that holds tokens");
}

std::int64_t TokenFile::FindOutside(const Values& values, std::uint32_t limit, bool allow_ignored) {
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const std::uint32_t value = values.At(i);
    if (value >= limit && !(allow_ignored && static_cast<std::int32_t>(value) == kIgnoredTarget))
      return i;
  }
  return values.size();
}

absl::Status TokenFile::CheckVocab(int vocab) const {
  const bool has_targets = options_.format == config::DataFormat::kSafetensors;
  if (!has_targets && tokens_.width == 1 && vocab >= 256) return absl::OkStatus();
  const auto check = [&](const Values& values, const char* what, bool allow_ignored) {
    const std::int64_t at = FindOutside(values, static_cast<std::uint32_t>(vocab), allow_ignored);
    if (at == values.size()) return absl::OkStatus();
    const std::uint32_t value = values.At(at);
    const std::int64_t shown = has_targets ? static_cast<std::int32_t>(value) : std::int64_t{value};
    return Bad("path", options_.path,
               absl::StrCat("has ", what, " ", shown, " at position ", at, "; ids must be 0 to ",
                            vocab - 1, " (model.vocab - 1)", allow_ignored ? ", or -100" : ""),
               "raise model.vocab, or check data.*.format");
  };
  RETURN_IF_ERROR(check(tokens_, "token", false));
  return check(targets_, "target", true);
}

absl::Status TokenFile::CheckHolds(int global_batch) const {
  if (num_windows_ >= global_batch) return absl::OkStatus();
  return Bad("path", options_.path,
             absl::StrCat("holds ", num_windows_, " windows of ", options_.context,
                          " tokens; one step needs batch.global = ", global_batch),
             "use a longer file, a shorter context or a smaller batch");
}

void TokenFile::ReadWindow(std::int64_t window, std::span<std::int32_t> tokens,
                           std::span<std::int32_t> targets) const {
  TAKT_CHECK(window >= 0 && window < num_windows_);
  TAKT_CHECK(std::ssize(tokens) == options_.context && std::ssize(targets) == options_.context);
  const std::int64_t begin = window * options_.context;
  tokens_.Read(begin, tokens);
  if (options_.format == config::DataFormat::kSafetensors) {
    targets_.Read(begin, targets);
  } else {
    tokens_.Read(begin + 1, targets);
  }
}

}  // namespace takt::data
