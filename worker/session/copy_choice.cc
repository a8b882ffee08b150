// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_choice.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace takt::session {
namespace {

constexpr char kNeeds[] = "needs", kKernels[] = "kernels";
constexpr char kKernelsOf[] = "kernels:";

absl::Status BadText(std::string_view what, std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("not ", std::string(what), ": ", std::string(text.substr(0, 60))));
}

// Reads a number that is not negative.
bool ReadNumber(absl::string_view text, std::int32_t& number) {
  return absl::SimpleAtoi(text, &number) && number >= 0;
}

absl::Status ReadNeeds(const std::vector<std::string>& words, CopyOffer& offer) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::int32_t layer = 0;
    if (!ReadNumber(words[i], layer)) return BadText("a layer", words[i]);
    offer.needs.emplace_back(layer);
  }
  return absl::OkStatus();
}

absl::Status ReadHeld(const std::vector<std::string>& words, CopyOffer& offer) {
  std::int64_t step = 0;
  if (!absl::SimpleAtoi(words[0], &step) || step <= 0) return BadText("a step", words[0]);
  std::map<LayerId, std::string>& layers = offer.held[StepId(step)];
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(words[i], absl::MaxSplits(':', 1));
    std::int32_t layer = 0;
    if (!ReadNumber(parts.first, layer) || parts.second.empty())
      return BadText("a layer and its hash", words[i]);
    layers[LayerId(layer)] = parts.second;
  }
  return absl::OkStatus();
}

absl::StatusOr<CopyMove> ReadMove(const std::string& word, int num_ranks) {
  const std::vector<std::string> parts = absl::StrSplit(word, absl::ByAnyChar(">:"));
  std::int32_t from = 0, to = 0, layer = 0;
  const bool valid = parts.size() == 3 && ReadNumber(parts[0], from) && ReadNumber(parts[1], to) &&
                     ReadNumber(parts[2], layer) && from < num_ranks && to < num_ranks &&
                     from != to;
  if (!valid) return BadText("a move of a layer", word);
  return CopyMove{Rank(from), Rank(to), LayerId(layer)};
}

// Tries one step.
class Chooser {
 public:
  Chooser(std::span<const CopyOffer> offers, StepId step) : offers_(offers), step_(step) {}

  CopyChoice Choose(bool needs_kernels) {
    for (std::size_t rank = 0; rank < offers_.size(); ++rank) {
      for (const LayerId layer : offers_[rank].needs) Serve(Rank(static_cast<int>(rank)), layer);
    }
    if (!lost_.empty() || !differing_.empty()) return {.reason = Reason()};
    if (const std::string reason = TakeKernels(needs_kernels); !reason.empty())
      return {.reason = reason};
    std::ranges::sort(choice_.moves, {}, [](const CopyMove& move) {
      return std::tuple(move.from, move.to, move.layer);
    });
    choice_.step = step_;
    return std::move(choice_);
  }

 private:
  // Returns null if the worker of this rank does not hold the layer.
  const std::string* HashOf(std::size_t rank, LayerId layer) const {
    const auto step = offers_[rank].held.find(step_);
    if (step == offers_[rank].held.end()) return nullptr;
    const auto found = step->second.find(layer);
    return found == step->second.end() ? nullptr : &found->second;
  }

  void Serve(Rank to, LayerId layer) {
    std::set<std::string> hashes;
    std::optional<Rank> donor;
    for (std::size_t i = 0; i < offers_.size(); ++i) {
      const std::string* const hash = HashOf(i, layer);
      if (hash == nullptr) continue;
      hashes.insert(*hash);
      const Rank rank(static_cast<int>(i));
      if (rank == to || !donor || (*donor != to && sent_[rank] < sent_[*donor])) donor = rank;
    }
    if (hashes.empty()) lost_.insert(layer.value());
    if (hashes.size() > 1) differing_.insert(layer.value());
    if (!donor || *donor == to) return;
    ++sent_[*donor];
    choice_.moves.push_back({*donor, to, layer});
  }

  // Says why the step cannot be taken; empty: it can.
  std::string TakeKernels(bool needed) {
    std::set<std::string> plans;
    for (std::size_t rank = 0; rank < offers_.size(); ++rank) {
      const CopyOffer& offer = offers_[rank];
      if (offer.kernels.empty() || !offer.held.contains(step_)) continue;
      plans.insert(offer.kernels);
      if (!choice_.kernels) choice_.kernels = Rank(static_cast<int>(rank));
    }
    const std::string of = absl::StrCat(" of step ", step_.value());
    if (plans.size() > 1) return absl::StrCat("the kernel plans", of, " differ");
    return needed && plans.empty() ? absl::StrCat("no worker knows the kernel plan", of) : "";
  }

  std::string Reason() const {
    const std::string of = absl::StrCat(" of step ", step_.value());
    if (lost_.empty())
      return absl::StrCat("the copies of layers ", absl::StrJoin(differing_, ", "), of, " differ");
    return absl::StrCat("no worker holds layers ", absl::StrJoin(lost_, ", "), of);
  }

  const std::span<const CopyOffer> offers_;
  const StepId step_;
  std::map<Rank, int> sent_;
  std::set<int> lost_, differing_;
  CopyChoice choice_;
};

}  // namespace

std::string FormatOffer(const CopyOffer& offer) {
  std::string text = kNeeds;
  for (const LayerId layer : offer.needs) absl::StrAppend(&text, " ", layer.value());
  if (!offer.kernels.empty()) absl::StrAppend(&text, "\n", kKernels, " ", offer.kernels);
  for (const auto& [step, layers] : offer.held) {
    absl::StrAppend(&text, "\n", step.value());
    for (const auto& [layer, hash] : layers) absl::StrAppend(&text, " ", layer.value(), ":", hash);
  }
  return text;
}

absl::StatusOr<CopyOffer> ParseOffer(std::string_view text) {
  CopyOffer offer;
  const std::string copy(text);
  for (const absl::string_view line : absl::StrSplit(copy, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) return BadText("an offer of copies", text);
    if (words[0] == kKernels && words.size() == 2) {
      offer.kernels = words[1];
      continue;
    }
    RETURN_IF_ERROR(words[0] == kNeeds ? ReadNeeds(words, offer) : ReadHeld(words, offer));
  }
  return offer;
}

CopyChoice ChooseCopies(std::span<const CopyOffer> offers, const CopyLimits& limits) {
  std::set<StepId> steps;
  for (const CopyOffer& offer : offers) {
    for (const auto& [step, layers] : offer.held) {
      if (step >= limits.at_least && step <= limits.at_most) steps.insert(step);
    }
  }
  std::string reason;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    CopyChoice choice = Chooser(offers, *step).Choose(limits.needs_kernels);
    if (reason.empty()) reason = choice.reason;
    if (choice.step == StepId(0)) continue;
    choice.reason = reason;
    return choice;
  }
  if (reason.empty()) {
    reason = absl::StrCat("no worker holds a copy of a step from ", limits.at_least.value(), " to ",
                          limits.at_most.value());
  }
  return {.reason = reason};
}

std::string FormatChoice(const CopyChoice& choice) {
  std::string text = absl::StrCat(choice.step.value());
  for (const CopyMove& move : choice.moves) {
    absl::StrAppend(&text, " ", move.from.value(), ">", move.to.value(), ":", move.layer.value());
  }
  if (choice.kernels) absl::StrAppend(&text, " ", kKernelsOf, choice.kernels->value());
  return text;
}

absl::StatusOr<CopyChoice> ParseChoice(std::string_view text, int num_ranks) {
  const std::vector<std::string> words = absl::StrSplit(std::string(text), ' ', absl::SkipEmpty());
  std::int64_t step = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &step) || step <= 0)
    return BadText("a choice of copies", text);
  CopyChoice choice{.step = StepId(step)};
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (std::int32_t rank = 0; absl::StartsWith(words[i], kKernelsOf)) {
      const std::string number = words[i].substr(sizeof(kKernelsOf) - 1);
      if (!ReadNumber(number, rank) || rank >= num_ranks) return BadText("a rank", words[i]);
      choice.kernels = Rank(rank);
      continue;
    }
    ASSIGN_OR_RETURN(const CopyMove move, ReadMove(words[i], num_ranks));
    choice.moves.push_back(move);
  }
  return choice;
}

}  // namespace takt::session
