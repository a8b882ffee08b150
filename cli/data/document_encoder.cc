// SPDX-License-Identifier: Apache-2.0
#include "cli/data/document_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"
#include "common/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;

// Returns "a.jsonl:12". line: a view of the part.
std::string WhereIs(const TextPart& part, std::string_view line) {
  const std::string_view whole = part.whole();
  const auto num_before = std::count(whole.data(), line.data(), '\n');
  return absl::StrCat(part.path, ":", num_before + 1);
}

}  // namespace

DocumentCounts& DocumentCounts::operator+=(const DocumentCounts& other) {
  documents += other.documents;
  tokens += other.tokens;
  bytes += other.bytes;
  replaced += other.replaced;
  input_bytes += other.input_bytes;
  return *this;
}

absl::StatusOr<EncodedUnit> DocumentEncoder::Encode(const TextUnit& unit) {
  EncodedUnit out{.next = unit.next};
  for (const TextPart& part : unit.parts) RETURN_IF_ERROR(EncodePart(part, out));
  out.counts.documents = std::ssize(out.lengths);
  out.counts.tokens = std::ssize(out.ids);
  out.counts.input_bytes = unit.bytes;
  return out;
}

absl::Status DocumentEncoder::EncodePart(const TextPart& part, EncodedUnit& out) {
  if (options_.kind == DocumentKind::kFiles) {
    const absl::Status status = EncodeDocument(part.text(), out);
    if (status.ok()) return status;
    return InvalidField(
        {.field = "IN",
         .value = part.path,
         .rule = std::string(status.message()),
         .fix = "cut the file, or make a document of each line: --documents lines"});
  }
  for (std::string_view rest = part.text(); !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) RETURN_IF_ERROR(EncodeLine(part, line, out));
  }
  return absl::OkStatus();
}

absl::Status DocumentEncoder::EncodeLine(const TextPart& part, std::string_view line,
                                         EncodedUnit& out) {
  const auto wrong = [&](std::string rule, std::string fix) {
    return InvalidField({.field = "IN",
                         .value = std::string(FirstBytes(line, 80)),
                         .rule = std::move(rule),
                         .fix = std::move(fix),
                         .where = WhereIs(part, line)});
  };
  const std::string fix = "mend or remove the line";
  if (options_.kind == DocumentKind::kLines) {
    const absl::Status status = EncodeDocument(line, out);
    return status.ok() ? status : wrong(std::string(status.message()), fix);
  }
  std::string storage;
  const tokenizer::CleanText clean = tokenizer::ReplaceInvalidUtf8(line, storage);
  const json object = json::parse(clean.text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return wrong("must be a JSON object", "mend the line, or say --documents lines");
  }
  const auto text = object.find(options_.text_field);
  if (text == object.end() || !text->is_string()) {
    return wrong(absl::StrCat("must have a field `", options_.text_field, "` with text"),
                 "name the field that has it: --field NAME");
  }
  out.counts.replaced += clean.replaced;
  const absl::Status status = EncodeDocument(text->get_ref<const std::string&>(), out);
  return status.ok() ? status : wrong(std::string(status.message()), fix);
}

absl::Status DocumentEncoder::EncodeDocument(std::string_view bytes, EncodedUnit& out) {
  const tokenizer::CleanText clean = tokenizer::ReplaceInvalidUtf8(bytes, clean_);
  const std::size_t begin = out.ids.size();
  if (options_.begin_of_document.has_value()) out.ids.push_back(*options_.begin_of_document);
  const std::size_t begin_of_text = out.ids.size();
  RETURN_IF_ERROR(encoder_->Encode(clean.text, out.ids));
  if (out.ids.size() == begin_of_text) {
    out.ids.resize(begin);
    return absl::OkStatus();
  }
  if (options_.end_of_document.has_value()) out.ids.push_back(*options_.end_of_document);
  out.lengths.push_back(static_cast<std::int32_t>(out.ids.size() - begin));
  out.counts.bytes += static_cast<std::int64_t>(clean.text.size());
  out.counts.replaced += clean.replaced;
  return absl::OkStatus();
}

}  // namespace takt::cli
