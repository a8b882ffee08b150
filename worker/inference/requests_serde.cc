// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/requests_serde.h"

#include <cmath>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "takt/v1/local_model.pb.h"

namespace takt::inference {
namespace {

absl::StatusOr<GenerateRequest> FromProto(const v1::GenerateText& proto) {
  GenerateRequest request{.prompt = {proto.prompt().begin(), proto.prompt().end()},
                          .tokens = proto.tokens(),
                          .sampling = {.temperature = proto.temperature(),
                                       .top_p = proto.top_p(),
                                       .seed = proto.seed()},
                          .ends = {proto.ends().begin(), proto.ends().end()},
                          .tokenizer_vocab = proto.tokenizer_vocab()};
  if (request.tokens < 0) {
    return InvalidField({.field = "--tokens",
                         .value = absl::StrCat(request.tokens),
                         .rule = "must be at least 1",
                         .fix = "say how many tokens to generate"});
  }
  if (!std::isfinite(request.sampling.temperature) || request.sampling.temperature < 0) {
    return InvalidField({.field = "--temperature",
                         .value = absl::StrCat(request.sampling.temperature),
                         .rule = "must be a finite number, 0 or more",
                         .fix = "use 0 for the most probable token, or 1 for the model's own "
                                "probabilities"});
  }
  if (!(request.sampling.top_p > 0 && request.sampling.top_p <= 1)) {
    return InvalidField({.field = "--top-p",
                         .value = absl::StrCat(request.sampling.top_p),
                         .rule = "must be above 0 and at most 1",
                         .fix = "use 1 to draw from all tokens"});
  }
  return request;
}

EvaluateRequest FromProto(const v1::EvaluateModel& proto) {
  EvaluateRequest request{.data = proto.data(),
                          .format = static_cast<config::DataFormat>(proto.format()),
                          .context = proto.context(),
                          .max_windows = proto.max_windows()};
  request.documents.mode = static_cast<config::Documents>(proto.documents());
  if (proto.has_document_end()) request.documents.end = proto.document_end();
  return request;
}

v1::LocalModelFailure ToProto(const absl::Status& status) {
  v1::LocalModelFailure failure;
  failure.set_code(static_cast<int>(status.code()));
  failure.set_message(std::string(status.message()));
  if (const auto detail = status.GetPayload(kErrorDetailUrl))
    failure.set_detail(std::string(*detail));
  return failure;
}

}  // namespace

absl::StatusOr<Request> ParseRequest(const std::string& bytes) {
  v1::LocalModelRequest proto;
  if (!proto.ParseFromString(bytes) || proto.work_case() == v1::LocalModelRequest::WORK_NOT_SET)
    return absl::DataLossError("standard input holds no request to a model");
  Request request{.folder = proto.folder(), .threads = proto.threads(), .work = {}};
  if (proto.has_evaluate()) {
    request.work = FromProto(proto.evaluate());
    return request;
  }
  ASSIGN_OR_RETURN(request.work, FromProto(proto.generate()));
  return request;
}

std::string FormatAnswer(const Answer& answer) {
  v1::LocalModelAnswer proto;
  std::visit(
      Overloaded{[&](const GenerationStart& start) {
                   proto.mutable_start()->set_load_seconds(start.load_seconds);
                   proto.mutable_start()->set_prompt_seconds(start.prompt_seconds);
                 },
                 [&](const Token& token) { proto.set_token(token.id); },
                 [&](const Generated& generated) {
                   proto.mutable_generated()->set_seconds(generated.seconds);
                   proto.mutable_generated()->set_reached_end(generated.reached_end);
                 },
                 [&](const Progress& progress) {
                   proto.mutable_progress()->set_windows_done(progress.windows_done);
                   proto.mutable_progress()->set_windows(progress.windows);
                 },
                 [&](const Evaluated& evaluated) {
                   v1::EvaluatedModel& out = *proto.mutable_evaluated();
                   out.set_loss(evaluated.evaluation.loss);
                   out.set_tokens(evaluated.evaluation.tokens);
                   out.set_windows(evaluated.evaluation.windows);
                   out.set_context(evaluated.context);
                 },
                 [&](const absl::Status& error) { *proto.mutable_failure() = ToProto(error); }},
      answer);
  std::ostringstream out;
  google::protobuf::util::SerializeDelimitedToOstream(proto, &out);
  return std::move(out).str();
}

}  // namespace takt::inference
