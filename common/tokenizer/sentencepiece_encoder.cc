// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/sentencepiece_encoder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/piece_cache.h"
#include "common/tokenizer/sentencepiece.h"
#include "common/tokenizer/utf8.h"

namespace takt::tokenizer {
namespace {

// Positions are 32 bits wide.
constexpr std::size_t kMaxNormalizedBytes = std::numeric_limits<std::int32_t>::max() - 1;
// An unknown character scores so much less than the worst piece.
constexpr float kUnknownPenalty = 10.0F;

// A part of the text, and the piece that it became.
struct Segment {
  std::string_view text;
  std::int32_t id;
};

std::size_t CharLengthIn(std::string_view text) {
  return std::min(CharLength(text.front()), text.size());
}

// Merges as the reference does (bpe_model.cc). One caller at a time.
class ScoreMerger {
 public:
  explicit ScoreMerger(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Appends the segments of `text`, which is not empty.
  void Apply(std::string_view text, std::vector<Segment>& segments) {
    Begin(text);
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, IsLater);
      const Candidate best = heap_.back();
      heap_.pop_back();
      Symbol& left = SymbolAt(best.left);
      Symbol& right = SymbolAt(best.right);
      // One of the two may have been merged with another neighbour since.
      if (left.text.empty() || right.text.empty() ||
          left.text.size() + right.text.size() != best.size) {
        continue;
      }
      left.text = Joined(left.text, right.text);
      left.next = right.next;
      if (right.next >= 0) SymbolAt(right.next).previous = best.left;
      right.text = {};
      Propose(left.previous, best.left);
      Propose(best.left, left.next);
    }
    for (std::int32_t i = 0; i >= 0; i = SymbolAt(i).next) Resegment(SymbolAt(i).text, segments);
  }

 private:
  struct Symbol {
    std::string_view text;        // empty: it was merged into the one before
    std::int32_t previous, next;  // -1: there is none
    bool is_frozen;               // a user-defined piece is never merged
  };
  struct Candidate {
    float score;
    std::int32_t left, right;
    std::size_t size;  // bytes of both
  };
  static bool IsLater(const Candidate& a, const Candidate& b) {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
  }
  static std::string_view Joined(std::string_view left, std::string_view right) {
    return {left.data(), left.size() + right.size()};  // they lie side by side
  }
  Symbol& SymbolAt(std::int32_t index) { return symbols_[static_cast<std::size_t>(index)]; }

  void Begin(std::string_view text) {
    symbols_.clear();
    heap_.clear();
    taken_apart_.clear();
    while (!text.empty()) {
      const std::size_t frozen =
          tokenizer_.user_defined().empty() ? 0 : tokenizer_.user_defined().LongestKey(text);
      const std::size_t length = frozen > 0 ? frozen : CharLengthIn(text);
      const auto index = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({.text = text.substr(0, length),
                          .previous = index - 1,
                          .next = length < text.size() ? index + 1 : -1,
                          .is_frozen = frozen > 0});
      text.remove_prefix(length);
    }
    for (std::int32_t i = 1; i < static_cast<std::int32_t>(symbols_.size()); ++i) {
      Propose(i - 1, i);
    }
  }

  // Adds the pair, if it is a piece.
  void Propose(std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0 || SymbolAt(left).is_frozen || SymbolAt(right).is_frozen) return;
    const std::string_view both = Joined(SymbolAt(left).text, SymbolAt(right).text);
    const std::optional<std::int32_t> id = tokenizer_.FindText(both);
    if (!id.has_value()) return;
    heap_.push_back(
        {.score = tokenizer_.piece(*id).score, .left = left, .right = right, .size = both.size()});
    std::ranges::push_heap(heap_, IsLater);
    if (tokenizer_.piece(*id).type == PieceType::kUnused) {
      taken_apart_.insert_or_assign(both, std::pair(SymbolAt(left).text, SymbolAt(right).text));
    }
  }

  // Takes unused pieces apart again: they are steps of merges, not results.
  void Resegment(std::string_view text, std::vector<Segment>& segments) const {
    const std::int32_t id = tokenizer_.FindToken(text).value_or(tokenizer_.unknown_id());
    const auto parts = taken_apart_.find(text);
    if (tokenizer_.piece(id).type != PieceType::kUnused || parts == taken_apart_.end()) {
      segments.push_back({.text = text, .id = id});
      return;
    }
    Resegment(parts->second.first, segments);
    Resegment(parts->second.second, segments);
  }

  const SentencePieceTokenizer& tokenizer_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::map<std::string_view, std::pair<std::string_view, std::string_view>> taken_apart_;
};

// Finds the best path as the reference does (unigram_model.cc, EncodeOptimized), with its types:
// sums are floats, and the bonus of a user-defined piece is a double. One caller at a time.
class BestPath {
 public:
  explicit BestPath(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Apply(std::string_view text, std::vector<Segment>& segments) {
    nodes_.assign(text.size() + 1, Node());
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t length = CharLengthIn(text.substr(begin));
      Extend(text, begin, length);
      begin += length;
    }
    const std::size_t first = segments.size();
    for (std::size_t end = text.size(); end > 0;) {
      const Node& node = nodes_[end];
      const auto begin = static_cast<std::size_t>(node.begin);
      segments.push_back({.text = text.substr(begin, end - begin), .id = node.id});
      end = begin;
    }
    std::reverse(segments.begin() + static_cast<std::ptrdiff_t>(first), segments.end());
  }

 private:
  struct Node {
    std::int32_t id = 0;
    float score = 0;          // of the best path to here
    std::int32_t begin = -1;  // of its last piece; -1: there is no path yet
  };

  // Prolongs the best path to `begin` by every piece. length: of the character there.
  void Extend(std::string_view text, std::size_t begin, std::size_t length) {
    const float score_here = nodes_[begin].score;
    bool has_single = false;
    std::int32_t trie_node = Trie::kRoot;
    for (std::size_t end = begin; end < text.size();) {
      trie_node = tokenizer_.text_pieces().Step(trie_node, text[end]);
      if (trie_node == Trie::kNone) break;
      ++end;
      const std::int32_t id = tokenizer_.text_pieces().ValueAt(trie_node);
      if (id == Trie::kNone) continue;
      const SentencePiece& piece = tokenizer_.piece(id);
      if (piece.type == PieceType::kUnused) continue;
      const auto size = static_cast<float>(end - begin);
      const double score =
          piece.type == PieceType::kUserDefined ? size * tokenizer_.max_score() - 0.1 : piece.score;
      Offer(end, begin, id, score + score_here);
      has_single = has_single || end - begin == length;
    }
    if (has_single) return;
    const float unknown_score = tokenizer_.min_score() - kUnknownPenalty;
    Offer(begin + length, begin, tokenizer_.unknown_id(), unknown_score + score_here);
  }

  void Offer(std::size_t end, std::size_t begin, std::int32_t id, double score) {
    Node& node = nodes_[end];
    if (node.begin >= 0 && score <= node.score) return;
    node = {
        .id = id, .score = static_cast<float>(score), .begin = static_cast<std::int32_t>(begin)};
  }

  const SentencePieceTokenizer& tokenizer_;
  std::vector<Node> nodes_;  // by the end of a path
};

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceTokenizer& tokenizer)
      : tokenizer_(tokenizer), merger_(tokenizer), best_path_(tokenizer) {}

  absl::Status Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (text.size() <= kMaxTextBytes) tokenizer_.normalizer().Normalize(text, normalized_);
    if (text.size() > kMaxTextBytes || normalized_.size() > kMaxNormalizedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", text.size(), " bytes; a text may have ", kMaxTextBytes,
                       ", or as many as make 2 GiB of normalized text"));
    }
    last_was_unknown_ = false;
    std::string_view rest = normalized_;
    while (!rest.empty()) {
      const std::size_t length = tokenizer_.words_are_apart() ? WordLength(rest) : rest.size();
      EncodePart(rest.substr(0, length), ids);
      rest.remove_prefix(length);
    }
    return absl::OkStatus();
  }

 private:
  // Returns the length of the blanks that `text` begins with and the word after them.
  static std::size_t WordLength(std::string_view text) {
    std::size_t begin = 0;
    while (text.substr(begin).starts_with(kSpaceSymbol)) begin += kSpaceSymbol.size();
    return std::min(text.find(kSpaceSymbol, begin), text.size());
  }

  void EncodePart(std::string_view part, std::vector<std::int32_t>& ids) {
    if (const auto known = cache_.Find(part)) {
      for (const std::int32_t id : *known) Append(id, ids);
      return;
    }
    segments_.clear();
    if (tokenizer_.model().is_unigram) {
      best_path_.Apply(part, segments_);
    } else {
      merger_.Apply(part, segments_);
    }
    part_ids_.clear();
    for (const Segment& segment : segments_) {
      if (segment.id != tokenizer_.unknown_id() || !tokenizer_.model().byte_fallback) {
        part_ids_.push_back(segment.id);
        continue;
      }
      for (const char byte : segment.text) part_ids_.push_back(tokenizer_.byte_id(byte));
    }
    cache_.Add(part, part_ids_);
    for (const std::int32_t id : part_ids_) Append(id, ids);
  }

  // Unknown characters side by side are one unknown piece.
  void Append(std::int32_t id, std::vector<std::int32_t>& ids) {
    const bool is_unknown = id == tokenizer_.unknown_id();
    if (!is_unknown || !last_was_unknown_) ids.push_back(id);
    last_was_unknown_ = is_unknown;
  }

  const SentencePieceTokenizer& tokenizer_;
  ScoreMerger merger_;
  BestPath best_path_;
  PieceCache cache_;  // of words
  std::string normalized_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> part_ids_;
  bool last_was_unknown_ = false;
};

}  // namespace

std::unique_ptr<Encoder> NewSentencePieceEncoder(const SentencePieceTokenizer& tokenizer) {
  return std::make_unique<SentencePieceEncoder>(tokenizer);
}

}  // namespace takt::tokenizer
