// SPDX-License-Identifier: Apache-2.0
#include "common/data/row_packer.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/data/token_values.h"

namespace takt::data {
namespace {

constexpr std::size_t kMostOpen = 64;

void Append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void RowPacker::Add(const TrainingDocument& document) {
  const std::size_t length = document.tokens.size();
  TAKT_CHECK(length >= 1 && length <= context_ && document.targets.size() == length);
  auto row = std::ranges::find_if(
      open_, [&](const Row& each) { return each.tokens.size() + length <= context_; });
  if (row == open_.end()) {
    if (open_.size() == kMostOpen) {
      const auto fullest =
          std::ranges::max_element(open_, {}, [](const Row& each) { return each.tokens.size(); });
      Close(static_cast<std::size_t>(fullest - open_.begin()));
    }
    open_.emplace_back();
    row = open_.end() - 1;
  }
  Append(row->tokens, document.tokens);
  Append(row->targets, document.targets);
  row->documents.resize(row->tokens.size(), row->num_documents++);
  if (row->tokens.size() == context_) Close(static_cast<std::size_t>(row - open_.begin()));
}

void RowPacker::Finish() {
  while (!open_.empty()) Close(0);
}

void RowPacker::Close(std::size_t index) {
  Row& row = open_[index];
  padding_ += static_cast<std::int64_t>(context_ - row.tokens.size());
  row.tokens.resize(context_, kPaddingToken);
  row.targets.resize(context_, kIgnoredTarget);
  row.documents.resize(context_, row.num_documents);
  Append(tokens_, row.tokens);
  Append(targets_, row.targets);
  Append(documents_, row.documents);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
}

}  // namespace takt::data
