// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/serve.h"

#include <algorithm>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "common/data/corpus.h"
#include "worker/inference/decoder.h"
#include "worker/inference/evaluation.h"
#include "worker/inference/local_model.h"

namespace takt::inference {
namespace {

using Tell = std::function<absl::Status(const Answer&)>;

// Measures the time since it was made, or since the last call.
class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock) : clock_(clock), nanos_(clock.SteadyNanos()) {}
  double Seconds() {
    const std::int64_t now = clock_.SteadyNanos();
    return static_cast<double>(now - std::exchange(nanos_, now)) * 1e-9;
  }

 private:
  const Clock& clock_;
  std::int64_t nanos_;
};

absl::Status CheckTokens(const GenerateRequest& request, const model::ModelConfig& config) {
  if (request.tokenizer_vocab > config.vocab) {
    return InvalidField(
        {.field = "--tokenizer",
         .value = absl::StrCat(request.tokenizer_vocab, " ids"),
         .rule = absl::StrCat("has more ids than the model's vocabulary, ", config.vocab),
         .fix = "give the tokenizer that the model was trained with"});
  }
  if (request.prompt.empty()) {
    return InvalidField({.field = "--prompt",
                         .rule = "must hold at least one token",
                         .fix = "give the beginning of a text"});
  }
  for (const std::int32_t id : request.prompt) {
    if (id >= 0 && id < config.vocab) continue;
    return InvalidField({.field = "--prompt",
                         .value = absl::StrCat("token ", id),
                         .rule = absl::StrCat("must be of the model's vocabulary, which has ",
                                              config.vocab, " ids"),
                         .fix = "give the tokenizer that the model was trained with"});
  }
  const std::int64_t room = config.positions - std::ssize(request.prompt);
  if (room < 1) {
    return InvalidField({.field = "--prompt",
                         .value = absl::StrCat(request.prompt.size(), " tokens"),
                         .rule = absl::StrCat("must be shorter than the positions of the model, ",
                                              config.positions),
                         .fix = "give a shorter prompt"});
  }
  if (request.tokens <= room) return absl::OkStatus();
  return InvalidField(
      {.field = "--tokens",
       .value = absl::StrCat(request.tokens),
       .rule = absl::StrCat("must be at most ", room, ": the model has ", config.positions,
                            " positions, and the prompt takes ", request.prompt.size()),
       .fix = "ask for fewer tokens"});
}

absl::Status Generate(const LocalModel& model, const GenerateRequest& request, double load_seconds,
                      const Tell& tell, const Clock& clock) {
  const std::int64_t positions = model.config().positions, prompt = std::ssize(request.prompt);
  const std::int64_t tokens = request.tokens > 0
                                  ? request.tokens
                                  : std::min<std::int64_t>(kDefaultTokens, positions - prompt);
  Stopwatch stopwatch(clock);
  ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder, Decoder::Create(model, prompt + tokens));
  ASSIGN_OR_RETURN(std::span<const float> logits, decoder->Append(request.prompt));
  RETURN_IF_ERROR(
      tell(GenerationStart{.load_seconds = load_seconds, .prompt_seconds = stopwatch.Seconds()}));
  Sampler sampler(request.sampling);
  Generated generated;
  std::int32_t next = 0;
  for (std::int64_t i = 0; i < tokens && !generated.reached_end; ++i) {
    if (i > 0) {
      ASSIGN_OR_RETURN(logits, decoder->Append({&next, 1}));
    }
    ASSIGN_OR_RETURN(next, sampler.Next(logits));
    RETURN_IF_ERROR(tell(Token{.id = next}));
    generated.reached_end = std::ranges::count(request.ends, next) > 0;
  }
  generated.seconds = stopwatch.Seconds();
  return tell(generated);
}

absl::Status EvaluateOn(const LocalModel& model, const EvaluateRequest& request, const Tell& tell,
                        const Clock& clock) {
  ASSIGN_OR_RETURN(
      const data::Corpus corpus,
      data::Corpus::Open(
          {.field = "--data", .path = request.data, .data_root = "/", .format = request.format}));
  int context = request.context;
  if (context == 0) context = static_cast<int>(corpus.row_length());
  if (context == 0) context = std::min(kDefaultContext, model.config().positions);
  // A reader needs no more than a few of these a second.
  constexpr std::int64_t kPauseNanos = 200'000'000;
  std::int64_t told_nanos = clock.SteadyNanos();
  absl::Status told;
  ASSIGN_OR_RETURN(
      const Evaluation evaluation,
      Evaluate(model, corpus,
               {.context = context,
                .max_windows = request.max_windows,
                .documents = request.documents,
                .on_window = [&](std::int64_t done, std::int64_t windows) {
                  if (clock.SteadyNanos() - told_nanos < kPauseNanos) return;
                  told_nanos = clock.SteadyNanos();
                  told.Update(tell(Progress{.windows_done = done, .windows = windows}));
                }}));
  RETURN_IF_ERROR(told);
  return tell(Evaluated{.evaluation = evaluation, .context = context});
}

}  // namespace

absl::Status Serve(const Request& request, const Tell& tell, const Clock& clock) {
  const int threads = request.threads > 0
                          ? request.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Stopwatch stopwatch(clock);
  ASSIGN_OR_RETURN(const std::unique_ptr<LocalModel> model,
                   LocalModel::Open(request.folder, threads));
  return std::visit(Overloaded{[&](const GenerateRequest& generate) -> absl::Status {
                                 RETURN_IF_ERROR(CheckTokens(generate, model->config()));
                                 return Generate(*model, generate, stopwatch.Seconds(), tell,
                                                 clock);
                               },
                               [&](const EvaluateRequest& evaluate) {
                                 return EvaluateOn(*model, evaluate, tell, clock);
                               }},
                    request.work);
}

}  // namespace takt::inference
