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
#include "common/checkpoint/hash.h"
#include "common/model/split_layers.h"
#include "worker/session/copy_choice.h"
#include "worker/session/copy_transfer.h"
#include "worker/session/kernel_plan.h"
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
absl::Status Write(const model::Model& model, std::span<const float> values,
                   const worker_checkpoint::LayerTarget& target, backend::MemoryBackend& memory) {
  const auto put = [&](std::span<float> to, std::size_t first) -> absl::Status {
    const std::span<const float> from = values.subspan(first, to.size());
    if (!memory.memory_is_host())
      return memory.CopyFromHost(std::as_bytes(from), reinterpret_cast<std::byte*>(to.data()));
    std::memcpy(to.data(), from.data(), from.size_bytes());
    return absl::OkStatus();
  };
  for (const model::Parameter& parameter : model.layers[target.layer.value()].parameters) {
    const auto size = static_cast<std::size_t>(model::ElementsHere(model, parameter));
    const auto wanted = std::ranges::find(target.parameters, &parameter,
                                          &worker_checkpoint::ParameterTarget::parameter);
    const bool is_wanted = wanted != target.parameters.end();
    using Target = worker_checkpoint::ParameterTarget;
    for (const auto part : worker_checkpoint::PartsOf<Target>(parameter)) {
      if (is_wanted && !((*wanted).*part).empty()) {
        const bool is_weight = part == &Target::weight;
        RETURN_IF_ERROR(
            put((*wanted).*part, is_weight ? wanted->first_weight : wanted->first_moment));
      }
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

  absl::StatusOr<std::optional<RestoredCopies>> Run() {
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
    const std::string& plan = options_.kernel_plan;
    if (!plan.empty()) offer.kernels = checkpoint::HashOf(std::as_bytes(std::span(plan)));
    for (const worker_checkpoint::LayerTarget& target : targets_)
      offer.needs.push_back(PieceHere(target.layer, part()));
    for (const std::shared_ptr<StateCopy>& copy : held_) {
      if (copy->step() == StepId(0)) continue;
      for (const LayerId layer : copy->layers()) {
        offer.held[copy->step()].try_emplace(PieceHere(layer, copy->part()), copy->hash(layer));
      }
    }
    return offer;
  }

  absl::StatusOr<std::optional<RestoredCopies>> Propose(std::span<const CopyOffer> offers) {
    const control::Assignment& assignment = *options_.assignment;
    CopyLimits limits{.at_least = std::max(assignment.saved, StepId(1)),
                      .at_most = assignment.copies.at_most,
                      .needs_kernels = assignment.device == config::DeviceKind::kCuda};
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

  absl::StatusOr<std::optional<RestoredCopies>> Follow() {
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

  absl::StatusOr<std::optional<RestoredCopies>> None(const std::string& reason) const {
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
    RETURN_IF_ERROR(PassKernels(choice, round));
    ASSIGN_OR_RETURN(std::vector<Link> links, OpenLinks(choice, round));
    absl::Status first;
    for (Link& link : links) {
      for (const LayerId piece : link.pieces) {
        const absl::Status status = Pass(link, choice.step, piece);
        if (!status.ok() && !absl::IsDataLoss(status)) return status;
        first.Update(status);
      }
    }
    RETURN_IF_ERROR(first);
    for (const worker_checkpoint::LayerTarget& target : targets_) {
      if (sources_.contains(target.layer)) continue;
      const std::shared_ptr<StateCopy> own = FindHeld(choice.step, target.layer, part());
      if (own == nullptr || !own->Verify(target.layer)) {
        return absl::DataLossError(
            absl::StrCat("layer ", target.layer.value(), " of step ", choice.step.value(),
                         " is damaged or missing in the memory of rank ", rank().value()));
      }
      sources_[target.layer] = own;
    }
    return absl::OkStatus();
  }

  absl::Status PassKernels(const CopyChoice& choice, int round) {
    kernel_plan_ = options_.kernel_plan;
    if (!choice.kernels || *choice.kernels == Rank(0)) return absl::OkStatus();
    const std::string key = absl::StrCat("copies/kernels/", round);
    transport::Rendezvous& rendezvous = *options_.meeting.rendezvous;
    if (*choice.kernels == rank()) return SendPlanText(rendezvous, key, options_.kernel_plan);
    if (rank() != Rank(0)) return absl::OkStatus();
    ASSIGN_OR_RETURN(kernel_plan_, ReceivePlanText(rendezvous, key, *choice.kernels));
    return absl::OkStatus();
  }

  // What goes between this rank and another one, in one direction.
  struct Link {
    std::unique_ptr<transport::SendChannel> send;  // null: this rank receives
    std::unique_ptr<transport::RecvChannel> recv;
    std::vector<LayerId> pieces;
    std::shared_ptr<StateCopy> into;  // where they go, if this rank receives
  };

  // All ranks open their channels by sender and receiver, since each opening waits for its peer.
  absl::StatusOr<std::vector<Link>> OpenLinks(const CopyChoice& choice, int round) {
    std::map<std::pair<Rank, Rank>, std::vector<LayerId>> by_ranks;
    for (const CopyMove& move : choice.moves) {
      const bool known =
          PartOf(move.layer) < NumPartsOfLayers(*options_.model) &&
          (move.to != rank() || move.layer == PieceHere(LayerOf(move.layer), part()));
      if (!known)
        return absl::UnavailableError(absl::StrCat("the model has no layer ", move.layer.value()));
      by_ranks[{move.from, move.to}].push_back(move.layer);
    }
    const std::string name = absl::StrCat("copies-", round);
    std::vector<Link> links;
    for (auto& [ranks, pieces] : by_ranks) {
      const auto [from, to] = ranks;
      if (from != rank() && to != rank()) continue;
      Link& link = links.emplace_back();
      link.pieces = std::move(pieces);
      if (from == rank()) {
        ASSIGN_OR_RETURN(link.send, options_.transport->OpenSend(to, name, kCopyMessageBytes));
      } else {
        std::vector<LayerId> layers;
        for (const LayerId piece : link.pieces) layers.push_back(LayerOf(piece));
        ASSIGN_OR_RETURN(link.into, StateCopy::Create(*options_.model, std::move(layers), part()));
        ASSIGN_OR_RETURN(link.recv, options_.transport->OpenRecv(from, name, kCopyMessageBytes));
      }
    }
    return links;
  }

  absl::Status Pass(Link& link, StepId step, LayerId piece) {
    const CopiedState state{.generation = generation(), .step = step, .layer = LayerOf(piece)};
    if (link.recv != nullptr) {
      RETURN_IF_ERROR(RecvLayer(*link.recv, state, link.into->Values(state.layer)));
      sources_[state.layer] = link.into;
      return absl::OkStatus();
    }
    const std::shared_ptr<StateCopy> held = FindHeld(step, state.layer, PartOf(piece));
    if (held == nullptr)
      return absl::UnavailableError(absl::StrCat("layer ", state.layer.value(), " is not here"));
    return SendLayer(*link.send, state, held->Values(state.layer), held->hash(state.layer));
  }

  std::shared_ptr<StateCopy> FindHeld(StepId step, LayerId layer, int its_part) const {
    const LayerId piece = PieceHere(layer, its_part);
    const auto found = std::ranges::find_if(held_, [&](const std::shared_ptr<StateCopy>& copy) {
      return copy->step() == step && copy->Has(layer) && PieceHere(layer, copy->part()) == piece;
    });
    return found == held_.end() ? nullptr : *found;
  }

  absl::StatusOr<std::optional<RestoredCopies>> Fill(StepId step) {
    for (const worker_checkpoint::LayerTarget& target : targets_) {
      RETURN_IF_ERROR(Write(*options_.model, ValuesOf(sources_[target.layer], target.layer), target,
                            store_.backend()));
    }
    RETURN_IF_ERROR(store_.backend().Synchronize());
    return RestoredCopies{.step = step, .kernel_plan = kernel_plan_};
  }

  int num_layers() const { return static_cast<int>(options_.model->layers.size()); }
  int part() const { return PartOfLayers(*options_.model); }
  // Ranks that share experts have all of the other layers.
  LayerId PieceHere(LayerId layer, int its_part) const {
    const model::Model& model = *options_.model;
    const bool whole =
        model.experts.shares() && !model::HasExperts(model.layers[layer.value()].kind);
    return PieceOf(layer, whole ? 0 : its_part, num_layers());
  }
  LayerId LayerOf(LayerId piece) const { return LayerId(piece.value() % num_layers()); }
  int PartOf(LayerId piece) const { return piece.value() / num_layers(); }
  std::int64_t generation() const { return options_.assignment->key.generation.value(); }

  const CopyRestoreOptions& options_;
  const StateCopies& held_;
  train::ParameterStore& store_;
  const std::vector<worker_checkpoint::LayerTarget> targets_;
  std::string kernel_plan_;
  std::map<LayerId, std::shared_ptr<StateCopy>> sources_;  // of the step that was fetched last
};

}  // namespace

absl::StatusOr<std::optional<RestoredCopies>> RestoreFromCopies(const CopyRestoreOptions& options,
                                                                const StateCopies& held,
                                                                train::ParameterStore& store) {
  return Restorer(options, held, store).Run();
}

}  // namespace takt::session
