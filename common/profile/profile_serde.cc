// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile_serde.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"

namespace takt::profile {
namespace {

using model::Fp8Recipe;
using model::LayerKind;
using model::Precision;
using model::Recompute;

template <class Value>
absl::Status Refuse(const char* what, Value value) {
  return absl::InvalidArgumentError(absl::StrCat("a profile's ", what, " cannot be ", value));
}

absl::Status CheckAmounts(const char* what, std::initializer_list<double> values) {
  for (const double value : values) {
    if (!(value >= 0 && value <= kMostAmount)) return Refuse(what, value);  // nor NaN
  }
  return absl::OkStatus();
}

// FLOPs and bytes are whole numbers. Times are divided by them.
absl::Status CheckWork(const Passes& work) {
  for (const double value : {work.forward, work.input_grad, work.weight_grad}) {
    if (value != 0 && value < 1) return Refuse("work", value);
  }
  return absl::OkStatus();
}

absl::Status CheckAtLeast(const char* what, std::int64_t least, std::int64_t value) {
  return value >= least ? absl::OkStatus() : Refuse(what, value);
}

// Reads the number of an enumerator.
template <class Enum>
absl::StatusOr<Enum> ReadName(const char* what, int number, std::initializer_list<Enum> known) {
  for (const Enum name : known) {
    if (static_cast<int>(name) == number) return name;
  }
  return Refuse(what, number);
}

v1::LayerPasses ToProto(const Passes& passes) {
  v1::LayerPasses out;
  out.set_forward(passes.forward);
  out.set_input_grad(passes.input_grad);
  out.set_weight_grad(passes.weight_grad);
  return out;
}

absl::StatusOr<Passes> ReadPasses(const char* what, const v1::LayerPasses& proto) {
  const Passes passes{.forward = proto.forward(),
                      .input_grad = proto.input_grad(),
                      .weight_grad = proto.weight_grad()};
  RETURN_IF_ERROR(CheckAmounts(what, {passes.forward, passes.input_grad, passes.weight_grad}));
  return passes;
}

v1::LayerShape ToProto(const LayerShape& shape) {
  // This names every field, so that a new one that is not written here does not compile.
  const auto& [kind, hidden, heads, kv_heads, head_size, inner, vocab, context, microbatch,
               products, activations, recompute, spread, fp8, attention_window, experts,
               chosen_experts, tensor, context_ranks, residual] = shape;
  v1::LayerShape out;
  out.set_kind(static_cast<int>(kind));
  out.set_hidden(hidden);
  out.set_heads(heads);
  out.set_kv_heads(kv_heads);
  out.set_head_size(head_size);
  out.set_inner(inner);
  out.set_vocab(vocab);
  out.set_context(context);
  out.set_microbatch(microbatch);
  out.set_products(static_cast<int>(products));
  out.set_activations(static_cast<int>(activations));
  out.set_recompute(static_cast<int>(recompute));
  out.set_spread(spread);
  out.set_fp8(static_cast<int>(fp8));
  out.set_attention_window(attention_window);
  out.set_experts(experts);
  out.set_chosen_experts(chosen_experts);
  if (tensor != 1) out.set_tensor(tensor);
  if (context_ranks != 1) out.set_context_ranks(context_ranks);
  if (residual != Precision::kF32) out.set_residual(static_cast<int>(residual));
  return out;
}

absl::StatusOr<LayerShape> FromProto(const v1::LayerShape& proto) {
  LayerShape shape{.hidden = proto.hidden(),
                   .heads = proto.heads(),
                   .kv_heads = proto.kv_heads(),
                   .head_size = proto.head_size(),
                   .inner = proto.inner(),
                   .vocab = proto.vocab(),
                   .context = proto.context(),
                   .microbatch = proto.microbatch(),
                   .spread = proto.spread(),
                   .attention_window = proto.attention_window(),
                   .experts = proto.experts(),
                   .chosen_experts = proto.chosen_experts(),
                   .tensor = proto.has_tensor() ? proto.tensor() : 1,
                   .context_ranks = proto.has_context_ranks() ? proto.context_ranks() : 1};
  const int least = std::min({shape.hidden, shape.heads, shape.kv_heads, shape.head_size,
                              shape.inner, shape.vocab, shape.context, shape.attention_window,
                              shape.experts, shape.chosen_experts});
  RETURN_IF_ERROR(CheckAtLeast("size of a layer", 0, least));
  RETURN_IF_ERROR(CheckAtLeast("microbatch", 1, shape.microbatch));
  RETURN_IF_ERROR(CheckAtLeast("number of ranks that share a layer", 1, shape.tensor));
  RETURN_IF_ERROR(CheckAtLeast("number of ranks that share a sequence", 1, shape.context_ranks));
  // An emulated job says itself what its layers take.
  ASSIGN_OR_RETURN(shape.kind,
                   ReadName("kind of layer", proto.kind(),
                            {LayerKind::kEmbedding, LayerKind::kGpt2Block, LayerKind::kGpt2Head,
                             LayerKind::kLlamaBlock, LayerKind::kLlamaHead, LayerKind::kQwen3Block,
                             LayerKind::kMixtralBlock, LayerKind::kQwen3MoeBlock}));
  const auto precisions = {Precision::kF32, Precision::kBf16};
  ASSIGN_OR_RETURN(shape.products, ReadName("precision", proto.products(), precisions));
  ASSIGN_OR_RETURN(shape.activations, ReadName("precision", proto.activations(), precisions));
  if (proto.has_residual()) {
    ASSIGN_OR_RETURN(shape.residual, ReadName("precision", proto.residual(), precisions));
  }
  ASSIGN_OR_RETURN(shape.fp8, ReadName("FP8 recipe", proto.fp8(),
                                       {Fp8Recipe::kNone, Fp8Recipe::kTensor, Fp8Recipe::kBlock}));
  ASSIGN_OR_RETURN(shape.recompute,
                   ReadName("recompute", proto.recompute(),
                            {Recompute::kNone, Recompute::kSelective, Recompute::kFull}));
  return shape;
}

v1::ProfileConditions ToProto(const Conditions& conditions) {
  const auto& [machine, threads, ranks_per_host] = conditions;
  v1::ProfileConditions out;
  out.set_machine(machine);
  out.set_threads(threads);
  out.set_ranks_per_host(ranks_per_host);
  return out;
}

absl::StatusOr<Conditions> FromProto(const v1::ProfileConditions& proto) {
  RETURN_IF_ERROR(CheckAtLeast("number of threads", 0, proto.threads()));
  RETURN_IF_ERROR(CheckAtLeast("number of ranks on a host", 1, proto.ranks_per_host()));
  return Conditions{.machine = proto.machine(),
                    .threads = proto.threads(),
                    .ranks_per_host = proto.ranks_per_host()};
}

absl::Status Read(const v1::Profile::Layer& proto, Profile& profile) {
  ASSIGN_OR_RETURN(const LayerShape shape, FromProto(proto.shape()));
  ASSIGN_OR_RETURN(const Conditions conditions, FromProto(proto.conditions()));
  ASSIGN_OR_RETURN(const Passes work, ReadPasses("work", proto.work()));
  RETURN_IF_ERROR(CheckWork(work));
  ASSIGN_OR_RETURN(const Passes seconds, ReadPasses("time of a layer", proto.seconds()));
  profile.AddLayer({shape, conditions}, {.work = work, .seconds = seconds});
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Rank& proto, Profile& profile) {
  ASSIGN_OR_RETURN(const Conditions conditions, FromProto(proto.conditions()));
  RETURN_IF_ERROR(
      CheckAmounts("time of an update", {proto.update_seconds(), proto.dispatch_seconds()}));
  profile.AddRank(conditions, {.update_seconds = proto.update_seconds(),
                               .dispatch_seconds = proto.dispatch_seconds()});
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Message& proto, Profile& profile) {
  RETURN_IF_ERROR(CheckAtLeast("size of a message", 0, proto.bytes()));
  RETURN_IF_ERROR(CheckAmounts("time of a message", {proto.seconds()}));
  profile.AddMessage(KeyOfMessage(proto.same_host(), proto.bytes()),
                     {.bytes = proto.bytes(), .seconds = proto.seconds()});
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Link& proto, Profile& profile) {
  RETURN_IF_ERROR(CheckAtLeast("size of a message", 0, proto.bytes()));
  RETURN_IF_ERROR(CheckAmounts("time of a message", {proto.seconds()}));
  profile.AddLink(KeyOfLink(proto.from_host(), proto.to_host(), proto.bytes()),
                  {.bytes = proto.bytes(), .seconds = proto.seconds()});
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Sum& proto, Profile& profile) {
  RETURN_IF_ERROR(CheckAtLeast("number of ranks of a sum", 2, proto.num_ranks()));
  RETURN_IF_ERROR(CheckAmounts("time of a sum", {proto.seconds_per_byte()}));
  profile.AddSum({.same_host = proto.same_host(), .num_ranks = proto.num_ranks()},
                 proto.seconds_per_byte());
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Meeting& proto, Profile& profile) {
  RETURN_IF_ERROR(CheckAtLeast("number of ranks of a meeting", 2, proto.num_ranks()));
  RETURN_IF_ERROR(CheckAtLeast("size of a meeting", 0, proto.bytes()));
  RETURN_IF_ERROR(CheckAmounts("time of a meeting", {proto.seconds()}));
  profile.AddMeeting(KeyOfMeeting(proto.same_host(), proto.num_ranks(), proto.bytes()),
                     {.bytes = proto.bytes(), .seconds = proto.seconds()});
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Pair& proto, Profile& profile) {
  ASSIGN_OR_RETURN(const Conditions conditions, FromProto(proto.conditions()));
  RETURN_IF_ERROR(CheckAmounts("ratio of a pair", {proto.ratio()}));
  profile.AddPair(conditions, proto.ratio());
  return absl::OkStatus();
}

absl::Status Read(const v1::Profile::Snapshot& proto, Profile& profile) {
  ASSIGN_OR_RETURN(const Conditions conditions, FromProto(proto.conditions()));
  RETURN_IF_ERROR(CheckAmounts("time of a snapshot", {proto.seconds_per_byte()}));
  profile.AddSnapshot(conditions, proto.seconds_per_byte());
  return absl::OkStatus();
}

}  // namespace

v1::Profile ToProto(const Profile& profile) {
  v1::Profile out;
  out.set_program_version(kTaktVersion);
  for (const auto& [key, sample] : profile.layers()) {
    v1::Profile::Layer& layer = *out.add_layers();
    *layer.mutable_shape() = ToProto(key.first);
    *layer.mutable_conditions() = ToProto(key.second);
    *layer.mutable_work() = ToProto(sample.work);
    *layer.mutable_seconds() = ToProto(sample.seconds);
  }
  for (const auto& [conditions, sample] : profile.ranks()) {
    v1::Profile::Rank& rank = *out.add_ranks();
    *rank.mutable_conditions() = ToProto(conditions);
    rank.set_update_seconds(sample.update_seconds);
    rank.set_dispatch_seconds(sample.dispatch_seconds);
  }
  for (const auto& [key, sample] : profile.messages()) {
    v1::Profile::Message& message = *out.add_messages();
    message.set_same_host(key.same_host);
    message.set_bytes(sample.bytes);
    message.set_seconds(sample.seconds);
  }
  for (const auto& [key, sample] : profile.links()) {
    v1::Profile::Link& link = *out.add_links();
    link.set_from_host(key.from);
    link.set_to_host(key.to);
    link.set_bytes(sample.bytes);
    link.set_seconds(sample.seconds);
  }
  for (const auto& [key, seconds_per_byte] : profile.sums()) {
    v1::Profile::Sum& sum = *out.add_sums();
    sum.set_same_host(key.same_host);
    sum.set_num_ranks(key.num_ranks);
    sum.set_seconds_per_byte(seconds_per_byte);
  }
  for (const auto& [key, sample] : profile.meetings()) {
    v1::Profile::Meeting& meeting = *out.add_meetings();
    meeting.set_same_host(key.same_host);
    meeting.set_num_ranks(key.num_ranks);
    meeting.set_bytes(sample.bytes);
    meeting.set_seconds(sample.seconds);
  }
  for (const auto& [conditions, ratio] : profile.pairs()) {
    v1::Profile::Pair& pair = *out.add_pairs();
    *pair.mutable_conditions() = ToProto(conditions);
    pair.set_ratio(ratio);
  }
  for (const auto& [conditions, seconds_per_byte] : profile.snapshots()) {
    v1::Profile::Snapshot& snapshot = *out.add_snapshots();
    *snapshot.mutable_conditions() = ToProto(conditions);
    snapshot.set_seconds_per_byte(seconds_per_byte);
  }
  return out;
}

absl::StatusOr<Profile> FromProto(const v1::Profile& proto) {
  Profile profile;
  for (const auto& layer : proto.layers()) RETURN_IF_ERROR(Read(layer, profile));
  for (const auto& rank : proto.ranks()) RETURN_IF_ERROR(Read(rank, profile));
  for (const auto& message : proto.messages()) RETURN_IF_ERROR(Read(message, profile));
  for (const auto& link : proto.links()) RETURN_IF_ERROR(Read(link, profile));
  for (const auto& sum : proto.sums()) RETURN_IF_ERROR(Read(sum, profile));
  for (const auto& meeting : proto.meetings()) RETURN_IF_ERROR(Read(meeting, profile));
  for (const auto& pair : proto.pairs()) RETURN_IF_ERROR(Read(pair, profile));
  for (const auto& snapshot : proto.snapshots()) RETURN_IF_ERROR(Read(snapshot, profile));
  return profile;
}

std::string FormatProfile(const Profile& profile) { return ToProto(profile).SerializeAsString(); }

absl::StatusOr<Profile> ParseProfile(const std::string& bytes) {
  v1::Profile proto;
  if (!proto.ParseFromString(bytes)) return absl::DataLossError("the profile is damaged");
  if (proto.program_version() != kTaktVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the profile was measured by version \"", proto.program_version(),
                     "\" of the program, and this is ", kTaktVersion));
  }
  absl::StatusOr<Profile> profile = FromProto(proto);
  if (!profile.ok()) return absl::DataLossError(profile.status().message());
  return profile;
}

}  // namespace takt::profile
