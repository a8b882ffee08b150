// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

namespace takt::tokenizer {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) {
  for (AddedToken& token : tokens) {
    has_any_ = true;
    has_plain_ = has_plain_ || !token.special;
    by_first_byte_[static_cast<unsigned char>(token.content.front())].push_back(std::move(token));
  }
  for (std::vector<AddedToken>& same : by_first_byte_) {
    std::ranges::stable_sort(same, [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
  }
}

const AddedToken* AddedTokens::LongestAt(std::string_view text) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

std::optional<AddedTokens::Found> AddedTokens::Find(std::string_view text, std::size_t from,
                                                    bool special) const {
  if (!(special ? has_any_ : has_plain_)) return std::nullopt;
  for (std::size_t i = from; i < text.size(); ++i) {
    const AddedToken* token = LongestAt(text.substr(i));
    if (token == nullptr) continue;
    const std::size_t end = i + token->content.size();
    if (special || !token->special) return Found{.begin = i, .end = end, .id = token->id};
    i = end - 1;
  }
  return std::nullopt;
}

}  // namespace takt::tokenizer
