// SPDX-License-Identifier: Apache-2.0
#include "common/data/document_line.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/token_values.h"
#include "nlohmann/json.hpp"

namespace takt::data {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

absl::Status Wrong(std::string rule) { return absl::InvalidArgumentError(std::move(rule)); }

// Reads the list of a key, or returns nullopt if there is none. ignored: kIgnoredTarget is allowed.
absl::StatusOr<std::optional<Ids>> ReadIds(const json& object, const char* key,
                                           bool ignored = false) {
  const auto list = object.find(key);
  if (list == object.end()) return std::optional<Ids>();
  const auto wrong = [&] {
    return Wrong(absl::StrCat("`", key, "` must be a list of token ids",
                              ignored ? ", or -100 where nothing is scored" : ""));
  };
  if (!list->is_array()) return wrong();
  Ids ids;
  ids.reserve(list->size());
  for (const json& value : *list) {
    const bool is_id = value.is_number_integer() && value >= 0 &&
                       value <= std::numeric_limits<std::int32_t>::max();
    const bool is_ignored = ignored && value.is_number_integer() && value == kIgnoredTarget;
    if (!is_id && !is_ignored) return wrong();
    ids.push_back(value.get<std::int32_t>());
  }
  return std::optional<Ids>(std::move(ids));
}

// `input_ids`, with `labels` and `attention_mask` as Hugging Face has them: a label is the token's
// own id, and tokens with a mask of 0 are padding.
absl::StatusOr<TrainingDocument> FromInputIds(const json& object, const Ids& ids) {
  ASSIGN_OR_RETURN(const std::optional<Ids> labels, ReadIds(object, "labels", /*ignored=*/true));
  ASSIGN_OR_RETURN(const std::optional<Ids> mask, ReadIds(object, "attention_mask"));
  if (labels.has_value() && labels->size() != ids.size())
    return Wrong("`labels` and `input_ids` differ in length");
  if (mask.has_value() && mask->size() != ids.size())
    return Wrong("`attention_mask` and `input_ids` differ in length");
  TrainingDocument document;
  Ids kept_labels;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (mask.has_value() && (*mask)[i] == 0) continue;
    document.tokens.push_back(ids[i]);
    kept_labels.push_back(labels.has_value() ? (*labels)[i] : ids[i]);
  }
  for (std::size_t i = 1; i < kept_labels.size(); ++i) document.targets.push_back(kept_labels[i]);
  document.targets.resize(document.tokens.size(), kIgnoredTarget);
  return document;
}

// Reads `prompt` and `completion`, which are both ids or both texts.
absl::StatusOr<DocumentLine> FromPair(const json& object) {
  const auto prompt = object.find("prompt"), completion = object.find("completion");
  if (prompt == object.end()) return Wrong("has a `completion` without a `prompt`");
  if (completion == object.end()) return Wrong("has a `prompt` without a `completion`");
  DocumentLine line;
  line.has_texts = prompt->is_string() && completion->is_string();
  if (line.has_texts) {
    line.prompt = prompt->get<std::string>();
    line.completion = completion->get<std::string>();
    if (line.completion.empty()) return Wrong("has an empty `completion`");
    return line;
  }
  if (prompt->is_string() || completion->is_string())
    return Wrong("must have `prompt` and `completion` both as texts or both as token ids");
  ASSIGN_OR_RETURN(const std::optional<Ids> asked, ReadIds(object, "prompt"));
  ASSIGN_OR_RETURN(const std::optional<Ids> answer, ReadIds(object, "completion"));
  if (answer->empty()) return Wrong("has an empty `completion`");
  line.document.Append(*asked, /*scored=*/false);
  line.document.Append(*answer, /*scored=*/true);
  return line;
}

}  // namespace

void TrainingDocument::Append(const std::vector<std::int32_t>& ids, bool scored) {
  for (const std::int32_t id : ids) {
    if (!targets.empty()) targets.back() = scored ? id : kIgnoredTarget;
    tokens.push_back(id);
    targets.push_back(kIgnoredTarget);
  }
}

absl::StatusOr<DocumentLine> ParseDocumentLine(std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Wrong("must be a JSON object");
  ASSIGN_OR_RETURN(const std::optional<Ids> ids, ReadIds(object, "input_ids"));
  if (!ids.has_value()) {
    if (object.contains("prompt") || object.contains("completion")) return FromPair(object);
    return Wrong("must have `input_ids`, or `prompt` and `completion`");
  }
  DocumentLine parsed;
  ASSIGN_OR_RETURN(parsed.document, FromInputIds(object, *ids));
  return parsed;
}

}  // namespace takt::data
