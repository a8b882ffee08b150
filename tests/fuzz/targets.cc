// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/hf_index.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/cluster/cluster_serde.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/data/document_line.h"
#include "common/data/documents.h"
#include "common/data/llmc.h"
#include "common/data/megatron.h"
#include "common/data/row_packer.h"
#include "common/data/token_file.h"
#include "common/model/hf_config.h"
#include "common/model/hf_config_text.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/sentencepiece.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/trace/encoding.h"
#include "takt/v1/job_spec.pb.h"
#include "worker/transport/message_header.h"
#include "worker/transport/tcp/channel.h"
#include "worker/transport/tcp/introduction.h"

namespace takt::fuzz {
namespace {

using Bytes = std::span<const std::byte>;

std::string_view Text(Bytes input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

// Every value must be readable, as every checker and reader of windows does.
void ReadAll(const data::TokenValues& tokens) {
  const std::int64_t largest = tokens.Largest();
  const std::int64_t outside = tokens.FindOutside(largest + 1, false);
  for (std::int64_t i = 0; i < outside; ++i) TAKT_CHECK(tokens.At(i) <= largest);
  if (outside < tokens.size()) TAKT_CHECK(tokens.At(outside) < 0);
}

void Llmc(Bytes input) {
  const auto tokens = data::ParseLlmc(input);
  if (tokens.ok()) ReadAll(*tokens);
}

// Two bytes of size, so much data (zeros: it is the index that is in question), then the index.
void Megatron(Bytes input) {
  if (input.size() < 2) return;
  const std::size_t size = static_cast<std::size_t>(input[0]) | static_cast<std::size_t>(input[1])
                                                                    << 8;
  const std::vector<std::byte> data(size);
  const auto parsed = data::ParseMegatron(input.subspan(2), data);
  if (!parsed.ok()) return;
  TAKT_CHECK(parsed->num_sequences >= 0 && parsed->num_documents >= 0);
  ReadAll(parsed->tokens);
}

void Safetensors(Bytes input) {
  const auto view = checkpoint::SafetensorsView::Parse(input, "input");
  if (!view.ok()) return;
  const std::string written = checkpoint::FormatSafetensors(view->tensors(), view->metadata());
  const auto again = checkpoint::SafetensorsView::Parse(std::as_bytes(std::span(written)), "again");
  TAKT_CHECK(again.ok() && again->tensors().size() == view->tensors().size());
  for (const checkpoint::Tensor& tensor : view->tensors()) {
    const checkpoint::Tensor* same = again->Find(tensor.name);
    TAKT_CHECK(same != nullptr && same->dtype == tensor.dtype && same->shape == tensor.shape);
    TAKT_CHECK(std::ranges::equal(same->bytes, tensor.bytes));
  }
}

// Two bytes choose the vocabulary's size and the context. What rows say of their documents is
// refused, or gives starts that ops may rely on.
void Documents(Bytes input) {
  if (input.size() < 2) return;
  const auto vocab = static_cast<int>(input[0]) + 1, context = static_cast<int>(input[1]) + 1;
  const Bytes file = input.subspan(2);
  const auto parsed = data::ParseTokenFile(
      {.file = file}, {.format = config::DataFormat::kSafetensors, .path = "input"});
  if (!parsed.ok() || parsed->row_length != context) return;
  std::vector<std::int32_t> values(static_cast<std::size_t>(context)), starts(values.size());
  const auto check = [&] {
    for (std::size_t t = 0; t < starts.size(); ++t) {
      TAKT_CHECK(starts[t] >= 0 && starts[t] <= static_cast<std::int32_t>(t));
      TAKT_CHECK(t == 0 || starts[t] >= starts[t - 1]);
    }
    data::IgnoreLastOfDocuments(starts, values);
  };
  for (std::int64_t row = 0; row + context <= parsed->tokens.size(); row += context) {
    parsed->tokens.Read(row, values);
    data::StartsFromEnds(values, vocab - 1, starts);
    check();
    if (parsed->documents.size() > 0) {
      parsed->documents.Read(row, values);
      if (data::FirstWrongId(values) < context) continue;
      data::StartsFromIds(values, starts);
      check();
    }
    if (parsed->positions.size() > 0) {
      parsed->positions.Read(row, values);
      if (data::FirstWrongPosition(values) < context) continue;
      data::StartsFromPositions(values, starts);
      check();
    }
  }
}

// What is taken has a target for each token, and fits into rows.
void DocumentLine(Bytes input) {
  const auto line = data::ParseDocumentLine(Text(input));
  if (!line.ok() || line->has_texts) return;
  const data::TrainingDocument& document = line->document;
  TAKT_CHECK(document.tokens.size() == document.targets.size());
  if (document.tokens.empty()) return;
  TAKT_CHECK(document.targets.back() == data::kIgnoredTarget);
  TAKT_CHECK(std::ranges::min(document.tokens) >= 0);
  data::RowPacker rows(static_cast<int>(document.tokens.size()) + 1);
  rows.Add(document);
  rows.Finish();
  TAKT_CHECK(rows.padding() == 1 && rows.documents().back() == 1);
}

void ScheduleCsv(Bytes input) {
  absl::StatusOr<schedule::Schedule> schedule = schedule::ParseCsv(Text(input), "input");
  if (!schedule.ok()) return;
  const std::string text = schedule::FormatCsv(*schedule);
  const auto again = schedule::ParseCsv(text, "again");
  TAKT_CHECK(again.ok() && schedule::FormatCsv(*again) == text);
  const auto placement = schedule::InferPlacement(*schedule);
  if (!placement.ok()) return;
  schedule->placement = *placement;
  if (schedule::Validate(*schedule).ok()) (void)schedule::PeakInFlight(*schedule);
}

void JobYaml(Bytes input) {
  const config::JobFileOptions options{.name = "input"};
  const auto spec = config::ParseJobFile(Text(input), options);
  if (!spec.ok()) return;
  TAKT_CHECK(config::ParseJobFile(config::FormatJobFile(*spec), options).ok());
  const auto job = config::ToJobSpec(*spec);
  if (!job.ok()) {
    (void)config::LocateErrors(job.status(), Text(input), options);
    return;
  }
  TAKT_CHECK(config::ToJobSpec(config::ToProto(*job)).ok());
}

// The written form of a cluster has as many workers, and is written the same again.
void ClusterYaml(Bytes input) {
  const auto cluster = cluster::ParseCluster(Text(input), "input");
  constexpr std::size_t kEnoughWorkers = 10000;
  if (!cluster.ok() || cluster->offers.size() > kEnoughWorkers) return;
  const std::string text = cluster::FormatCluster(*cluster);
  const auto again = cluster::ParseCluster(text, "again");
  TAKT_CHECK(again.ok() && again->offers.size() == cluster->offers.size());
  TAKT_CHECK(cluster::FormatCluster(*again) == text);
}

// What is written of a model is read as the same model, whatever else the source said.
void HfConfig(Bytes input) {
  const auto config = model::ParseHfConfig(Text(input), "input");
  const std::string generation = model::FormatGenerationConfig(Text(input));
  TAKT_CHECK(!generation.empty());
  if (!config.ok() || !model::CheckConfig(*config).empty()) return;
  const std::string text = model::FormatHfConfig(
      *config, {.torch_dtype = model::TorchDtypeIn(Text(input)), .source = Text(input)});
  const auto again = model::ParseHfConfig(text, "again");
  TAKT_CHECK(again.ok() && model::FormatHfConfig(*again) == model::FormatHfConfig(*config));
}

void HfIndex(Bytes input) {
  const auto weight_map = checkpoint::ParseHfIndex(Text(input));
  if (!weight_map.ok()) return;
  for (const auto& [tensor, file] : *weight_map) {
    TAKT_CHECK(file.find('/') == std::string::npos && file != "..");
  }
  const auto again = checkpoint::ParseHfIndex(checkpoint::FormatHfIndex(*weight_map, 0));
  TAKT_CHECK(again.ok() && *again == *weight_map);
}

// The input is the text before the manifest's own hash, which no mutation would get right.
void Manifest(Bytes input) {
  (void)checkpoint::ParseManifest(Text(input), "input");
  const std::string text = absl::StrCat(std::string(Text(input)), ",\n  \"manifest_xxh3_128\": \"",
                                        checkpoint::HashOf(input), "\"\n}\n");
  const auto manifest = checkpoint::ParseManifest(text, "hashed");
  if (!manifest.ok()) return;
  const auto again = checkpoint::FormatManifest(*manifest);
  TAKT_CHECK(again.ok() && *again == text);
}

// What is taken has one form.
void StepTrace(Bytes input) {
  const auto step = trace::Decode(Text(input));
  if (step.ok()) TAKT_CHECK(trace::Encode(*step) == Text(input));
}

constexpr std::string_view kTexts[] = {"", "Hello, world.  It's 12345\n\n\tx",
                                       "e\xCC\x81 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x99\x82",
                                       "<|endoftext|><tool> \xE2\x96\x81 aaaaaaaaaaaaaaaaaaaa"};

// Every id can be decoded. Returns false if the text has no ids: an expression may take too long.
bool EncodeInRange(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                   std::vector<std::int32_t>& ids) {
  const auto encoder = tokenizer.NewEncoder({});
  if (!encoder->Encode(text, ids).ok()) return false;
  for (const std::int32_t id : ids) TAKT_CHECK(id >= 0 && id < tokenizer.vocab_size());
  return true;
}

// Ids are of the text and nothing else, unless the text is normalized or an added token is written
// in the alphabet of bytes.
void TokenizerJson(Bytes input) {
  absl::StatusOr<tokenizer::ByteLevelModel> model =
      tokenizer::ParseTokenizerJson(Text(input), "input");
  if (!model.ok()) return;
  const bool keeps_text =
      !model->nfc && std::ranges::all_of(model->added_tokens, &tokenizer::AddedToken::special);
  const tokenizer::ByteLevelTokenizer tokenizer(*std::move(model));
  for (const std::string_view text : kTexts) {
    std::vector<std::int32_t> ids;
    if (!EncodeInRange(tokenizer, text, ids)) return;
    if (keeps_text) TAKT_CHECK(tokenizer.Decode(ids) == text);
  }
}

void SentencePiece(Bytes input) {
  absl::StatusOr<tokenizer::SentencePieceModel> model =
      tokenizer::ParseSentencePieceModel(Text(input), "input");
  if (!model.ok()) return;
  const auto tokenizer = tokenizer::SentencePieceTokenizer::Create(*std::move(model), "input");
  if (!tokenizer.ok()) return;
  for (const std::string_view text : kTexts) {
    std::vector<std::int32_t> ids;
    if (!EncodeInRange(**tokenizer, text, ids)) return;
    (void)(*tokenizer)->Decode(ids);
  }
}

// Two bytes say how large a message is expected, and the rest is what the peer sends before it
// leaves. A message that is accepted must stand behind a header of the right tag and size.
void TcpMessage(Bytes input) {
  constexpr std::size_t kMostBytes = 64 << 10;  // a socket's buffer holds this
  if (input.size() < 2 || input.size() > kMostBytes) return;
  const auto size = static_cast<std::size_t>(input[0]) | static_cast<std::size_t>(input[1]) << 8;
  const Bytes wire = input.subspan(2);
  int ends[2];
  TAKT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  net::Socket ours(ends[0]);
  {
    const net::Socket peer(ends[1]);
    TAKT_CHECK(send(peer.fd(), wire.data(), wire.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
               static_cast<ssize_t>(wire.size()));
  }
  const auto receiver =
      transport::MakeTcpReceiver({.socket = std::move(ours),
                                  .max_bytes = kMostBytes,
                                  .channel = "F",
                                  .operation_timeout = absl::Minutes(1),
                                  .abort = std::make_shared<transport::AbortSignal>()});
  std::vector<std::byte> data(size);
  for (std::size_t taken = 0; receiver->Recv({.generation = 1, .step = 2}, data).ok();) {
    taken += sizeof(transport::MessageHeader);
    TAKT_CHECK(taken + size <= wire.size());
    TAKT_CHECK(std::ranges::equal(wire.subspan(taken, size), data));
    taken += size;
  }
}

// A client that does not know the secret cannot prove it, whatever it answers.
void TcpAnswer(Bytes input) {
  transport::Answer answer;
  if (input.size() != sizeof(answer)) return;
  std::memcpy(&answer, input.data(), sizeof(answer));
  const transport::TransportOptions options{
      .num_ranks = 2, .job = "fuzz", .generation = 1, .secret = "the secret of a generation"};
  TAKT_CHECK(!transport::IsProven(answer, {.nonce = {}}, options));
}

constexpr Target kTargets[] = {{"llmc", Llmc},
                               {"megatron", Megatron},
                               {"safetensors", Safetensors},
                               {"documents", Documents},
                               {"document_line", DocumentLine},
                               {"schedule_csv", ScheduleCsv},
                               {"job_yaml", JobYaml},
                               {"cluster_yaml", ClusterYaml},
                               {"hf_config", HfConfig},
                               {"hf_index", HfIndex},
                               {"manifest", Manifest},
                               {"step_trace", StepTrace},
                               {"tokenizer_json", TokenizerJson},
                               {"sentencepiece", SentencePiece},
                               {"tcp_message", TcpMessage},
                               {"tcp_answer", TcpAnswer}};

}  // namespace

std::span<const Target> Targets() { return kTargets; }

}  // namespace takt::fuzz
