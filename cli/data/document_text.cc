// SPDX-License-Identifier: Apache-2.0
#include "cli/data/document_text.h"

#include <utility>

#include "common/tokenizer/utf8.h"

namespace takt::cli {
namespace {

constexpr std::int64_t kMaxShownTokens = 256;

// Collects documents, token by token.
class Collector {
 public:
  Collector(const tokenizer::Tokenizer& tokenizer, std::size_t count)
      : tokenizer_(tokenizer), count_(count) {}

  bool IsFull() const { return documents_.size() >= count_; }

  void Add(std::int64_t id) {
    ++document_.tokens;
    document_.is_whole = document_.tokens <= kMaxShownTokens;
    if (document_.is_whole) ids_.push_back(static_cast<std::int32_t>(id));
  }

  void End() {
    std::string storage;
    const std::string bytes = tokenizer_.Decode(ids_);
    document_.text = std::string(tokenizer::ReplaceInvalidUtf8(bytes, storage).text);
    documents_.push_back(std::exchange(document_, DocumentText()));
    ids_.clear();
  }

  std::vector<DocumentText> Take() {
    if (!IsFull() && document_.tokens > 0) End();
    return std::move(documents_);
  }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  const std::size_t count_;
  std::vector<DocumentText> documents_;
  DocumentText document_;  // the one that has not ended
  std::vector<std::int32_t> ids_;
};

}  // namespace

std::vector<DocumentText> FirstDocuments(const data::Corpus& corpus,
                                         const tokenizer::Tokenizer& tokenizer,
                                         std::optional<std::int64_t> end, int count) {
  Collector collector(tokenizer, static_cast<std::size_t>(count));
  for (const data::Corpus::Shard& shard : corpus.shards()) {
    for (std::int64_t i = 0; i < shard.file.tokens.size() && !collector.IsFull(); ++i) {
      const std::int64_t id = shard.file.tokens.At(i);
      if (end.has_value() && id == *end) {
        collector.End();
      } else {
        collector.Add(id);
      }
    }
  }
  return collector.Take();
}

}  // namespace takt::cli
