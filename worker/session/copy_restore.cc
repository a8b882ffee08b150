// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_restore.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/session/copy_choice.h"
#include "worker/session/copy_transfer.h"
#include "worker/session/parameter_state.h"

namespace takt::session {
namespace {

using worker_checkpoint::StateCopies;
using worker_checkpoint::StateCopy;

constexpr absl::Duration kPatience = absl::Hours(1);

// Rank 0 says one of these in each round, and only the first is not the last word.
constexpr std::string_view kTry = "try ", kGo = "go", kNone = "none ", kEnd = "end ";

std::string OfferKey(int rank) { return absl::StrCat("copies/offer/", rank); }
std::string ChoiceKey(int round) { return absl::StrCat("copies/choice/", round); }

std::span<float> ValuesOf(const std::shared_ptr<StateCopy>& copy, LayerId layer) {
  return copy == nullptr ? std::span<float>() : copy->Values(layer);
}

// Writes the parts of a layer that are wanted.
absl::Status Write(const model::Layer& layer, std::span<const float> values,
                   const worker_checkpoint::LayerTarget& target, backend::MemoryBackend& memory) {
  const auto put = [&](std::span<float> to, std::size_t first) -> absl::Status {
    const std::span<const float> from = values.subspan(first, to.size());
    if (!memory.memory_is_host())
      return memory.CopyFromHost(std::as_bytes(from), reinterpret_cast<std::byte*>(to.data()));
    std::memcpy(to.data(), from.data(), from.size_bytes());
    return absl::OkStatus();
  };
  for (const model::Parameter& parameter : layer.parameters) {
    const auto size = static_cast<std::size_t>(parameter.elements());
    const auto wanted = std::ranges::find(target.parameters, &parameter,
                                          &worker_checkpoint::ParameterTarget::parameter);
    const bool is_wanted = wanted != target.parameters.end();
    for (int part = 0; part <= parameter.moments; ++part) {
      const std::span<float> to = !is_wanted  ? std::span<float>()
                                  : part == 0 ? wanted->weight
                                  : part == 1 ? wanted->m
                                              : wanted->v;
      const std::size_t first = !is_wanted  ? 0
                                : part == 0 ? wanted->first_weight
                                            : wanted->first_moment;
      if (!to.empty()) RETURN_IF_ERROR(put(to, first));
      values = values.subspan(size);
    }
  }
  return absl::OkStatus();
}

class Restorer {
 public:
  Restorer(const CopyRestoreOptions& options, const StateCopies& held, train::ParameterStore& store)
      : options_(options),
        held_(held),
        store_(store),
        targets_(LoadTargets(*options.model, store)) {}

  absl::StatusOr<std::optional<StepId>> Run() {
    const CopyOffer offer = Offer();
    if (rank() != Rank(0)) {
      RETURN_IF_ERROR(
          options_.meeting.rendezvous->Set(OfferKey(rank().value()), FormatOffer(offer)));
      return Follow();
    }
    std::vector<std::string> keys;
    for (int other = 1; other < options_.meeting.num_ranks; ++other)
      keys.push_back(OfferKey(other));
    ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                     options_.meeting.rendezvous->WaitAll(keys, kPatience));
    std::vector<CopyOffer> offers = {offer};
    for (int other = 1; other < options_.meeting.num_ranks; ++other) {
      absl::StatusOr<CopyOffer> parsed = ParseOffer(texts[static_cast<std::size_t>(other - 1)]);
      if (!parsed.ok()) {
        Log(LogLevel::kWarning, "a rank's offer of copies is not used",
            {{"rank", std::to_string(other)}, {"error", std::string(parsed.status().message())}});
      }
      offers.push_back(parsed.ok() ? *std::move(parsed) : CopyOffer());
    }
    return Propose(offers);
  }

 private:
  Rank rank() const { return options_.meeting.rank; }

  CopyOffer Offer() const {
    CopyOffer offer;
    for (const worker_checkpoint::LayerTarget& target : targets_)
      offer.needs.push_back(target.layer);
    for (const std::shared_ptr<StateCopy>& copy : held_) {
      if (copy->step() == StepId(0)) continue;
      for (const LayerId layer : copy->layers())
        offer.held[copy->step()].try_emplace(layer, copy->hash(layer));
    }
    return offer;
  }

  absl::StatusOr<std::optional<StepId>> Propose(std::span<const CopyOffer> offers) {
    const control::Assignment& assignment = *options_.assignment;
    CopyLimits limits{.at_least = std::max(assignment.saved, StepId(1)),
                      .at_most = assignment.copies.at_most};
    for (int round = 0;; ++round) {
      const CopyChoice choice = ChooseCopies(offers, limits);
      if (!choice.reason.empty())
        Log(LogLevel::kWarning, "not all copies can be used", {{"reason", choice.reason}});
      if (choice.step == StepId(0)) {
        RETURN_IF_ERROR(Say(round, absl::StrCat(std::string(kNone), choice.reason)));
        return None(choice.reason);
      }
      RETURN_IF_ERROR(Say(round, absl::StrCat(std::string(kTry), FormatChoice(choice))));
      const absl::Status own = Fetch(choice, round);
      ASSIGN_OR_RETURN(const Complaint others, FirstComplaint(options_.meeting, ChoiceKey(round)));
      if (own.ok() && others.text.empty()) {
        RETURN_IF_ERROR(Say(round + 1, std::string(kGo)));
        return Fill(choice.step);
      }
      if (others.trouble || (!own.ok() && !absl::IsDataLoss(own))) {
        const std::string why = others.trouble ? others.text : std::string(own.message());
        RETURN_IF_ERROR(Say(round + 1, absl::StrCat(std::string(kEnd), why)));
        return own.ok() || absl::IsDataLoss(own) ? absl::UnavailableError(why) : own;
      }
      Log(LogLevel::kWarning, "a copy in memory is damaged; an older step is tried",
          {{"step", std::to_string(choice.step.value())},
           {"error", own.ok() ? others.text : std::string(own.message())}});
      limits.at_most = StepId(choice.step.value() - 1);
    }
  }

  absl::StatusOr<std::optional<StepId>> Follow() {
    StepId step;
    for (int round = 0;; ++round) {
      ASSIGN_OR_RETURN(const std::string said,
                       options_.meeting.rendezvous->Wait(ChoiceKey(round), kPatience));
      const std::string_view text = said;
      if (text == kGo && step > StepId(0)) return Fill(step);
      if (text.starts_with(kNone)) return None(said.substr(kNone.size()));
      if (!text.starts_with(kTry)) return absl::UnavailableError(absl::StrCat("rank 0: ", said));
      absl::StatusOr<CopyChoice> choice =
          ParseChoice(text.substr(kTry.size()), options_.meeting.num_ranks);
      absl::Status fetched = choice.ok() ? Fetch(*choice, round) : choice.status();
      const bool trouble = !fetched.ok() && !absl::IsDataLoss(fetched);
      RETURN_IF_ERROR(Answer(
          options_.meeting, ChoiceKey(round),
          absl::StrCat(trouble ? std::string(kTrouble) : "", std::string(fetched.message()))));
      if (trouble) return absl::UnavailableError(std::string(fetched.message()));
      if (fetched.ok()) step = choice->step;
    }
  }

  absl::Status Say(int round, const std::string& text) const {
    return options_.meeting.rendezvous->Set(ChoiceKey(round), text);
  }

  absl::StatusOr<std::optional<StepId>> None(const std::string& reason) const {
    if (!options_.assignment->copies.required) return std::nullopt;
    const std::int64_t asked = options_.assignment->job.copy_every_steps;
    return InvalidField({.field = "checkpoint.in_memory",
                         .value = asked == config::kAutoCopies ? "auto" : absl::StrCat(asked),
                         .rule = absl::StrCat("cannot bring the job's state back: ", reason,
                                              ", and the job saves no files"),
                         .fix = "submit the job again, and give it a checkpoint.directory"});
  }

  // Gets all that this rank needs of the step, verified, and sends what it is asked for. Nothing of
  // the store changes. Errors: kDataLoss: a copy is damaged or missing.
  absl::Status Fetch(const CopyChoice& choice, int round) {
    sources_.clear();
    ASSIGN_OR_RETURN(std::vector<Link> links, OpenLinks(choice, round));
    absl::Status first;
    for (Link& link : links) {
      for (const LayerId layer : link.layers) {
        const absl::Status status =
            Pass(link, {.generation = generation(), .step = choice.step, .layer = layer});
        if (!status.ok() && !absl::IsDataLoss(status)) return status;
        first.Update(status);
      }
    }
    RETURN_IF_ERROR(first);
    for (const worker_checkpoint::LayerTarget& target : targets_) {
      if (sources_.contains(target.layer)) continue;
      const std::shared_ptr<StateCopy> own = FindHeld(choice.step, target.layer);
      if (own == nullptr || !own->Verify(target.layer)) {
        return absl::DataLossError(
            absl::StrCat("layer ", target.layer.value(), " of step ", choice.step.value(),
                         " is damaged or missing in the memory of rank ", rank().value()));
      }
      sources_[target.layer] = own;
    }
    return absl::OkStatus();
  }

  // The layers between this rank and another one, in one direction.
  struct Link {
    std::unique_ptr<transport::SendChannel> send;  // null: this rank receives
    std::unique_ptr<transport::RecvChannel> recv;
    std::vector<LayerId> layers;
    std::shared_ptr<StateCopy> into;  // where they go, if this rank receives
  };

  // All ranks open their channels by sender and receiver, since each opening waits for its peer.
  absl::StatusOr<std::vector<Link>> OpenLinks(const CopyChoice& choice, int round) {
    std::map<std::pair<Rank, Rank>, std::vector<LayerId>> by_ranks;
    for (const CopyMove& move : choice.moves) {
      if (move.layer.value() >= static_cast<int>(options_.model->layers.size()))
        return absl::UnavailableError(absl::StrCat("the model has no layer ", move.layer.value()));
      by_ranks[{move.from, move.to}].push_back(move.layer);
    }
    const std::string name = absl::StrCat("copies-", round);
    std::vector<Link> links;
    for (auto& [ranks, layers] : by_ranks) {
      const auto [from, to] = ranks;
      if (from != rank() && to != rank()) continue;
      Link& link = links.emplace_back();
      link.layers = std::move(layers);
      if (from == rank()) {
        ASSIGN_OR_RETURN(link.send, options_.transport->OpenSend(to, name, kCopyMessageBytes));
      } else {
        ASSIGN_OR_RETURN(link.into, StateCopy::Create(*options_.model, link.layers));
        ASSIGN_OR_RETURN(link.recv, options_.transport->OpenRecv(from, name, kCopyMessageBytes));
      }
    }
    return links;
  }

  absl::Status Pass(Link& link, const CopiedState& state) {
    if (link.recv != nullptr) {
      RETURN_IF_ERROR(RecvLayer(*link.recv, state, link.into->Values(state.layer)));
      sources_[state.layer] = link.into;
      return absl::OkStatus();
    }
    const std::shared_ptr<StateCopy> held = FindHeld(state.step, state.layer);
    if (held == nullptr)
      return absl::UnavailableError(absl::StrCat("layer ", state.layer.value(), " is not here"));
    return SendLayer(*link.send, state, held->Values(state.layer), held->hash(state.layer));
  }

  std::shared_ptr<StateCopy> FindHeld(StepId step, LayerId layer) const {
    const auto found = std::ranges::find_if(held_, [&](const std::shared_ptr<StateCopy>& copy) {
      return copy->step() == step && copy->Has(layer);
    });
    return found == held_.end() ? nullptr : *found;
  }

  absl::StatusOr<std::optional<StepId>> Fill(StepId step) {
    for (const worker_checkpoint::LayerTarget& target : targets_) {
      const model::Layer& layer = options_.model->layers[target.layer.value()];
      RETURN_IF_ERROR(
          Write(layer, ValuesOf(sources_[target.layer], target.layer), target, store_.backend()));
    }
    RETURN_IF_ERROR(store_.backend().Synchronize());
    return step;
  }

  std::int64_t generation() const { return options_.assignment->key.generation.value(); }

  const CopyRestoreOptions& options_;
  const StateCopies& held_;
  train::ParameterStore& store_;
  const std::vector<worker_checkpoint::LayerTarget> targets_;
  std::map<LayerId, std::shared_ptr<StateCopy>> sources_;  // of the step that was fetched last
};

}  // namespace

absl::StatusOr<std::optional<StepId>> RestoreFromCopies(const CopyRestoreOptions& options,
                                                        const StateCopies& held,
                                                        train::ParameterStore& store) {
  return Restorer(options, held, store).Run();
}

}  // namespace takt::session
