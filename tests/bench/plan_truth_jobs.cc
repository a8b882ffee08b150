// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/plan_truth_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace takt::bench {
namespace {

using enum model::Family;
using enum model::Precision;
using enum model::Recompute;

constexpr int kChoiceJobs = 8;

// The sizes of a model. The names count its parameters.
struct Shape {
  std::string_view name;
  model::Family family = kGpt2;
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, inner = 0, vocab = 0;
  bool tied_head = true;
};

constexpr Shape kShapes[] = {
    // name, family, layers, hidden, heads, kv_heads, inner, vocab, tied_head
    {"gpt2-2m", kGpt2, 10, 128, 4, 4, 512, 256, true},
    {"gpt2-6m", kGpt2, 8, 256, 8, 8, 1024, 256, true},
    {"gpt2-8m", kGpt2, 8, 256, 8, 8, 1024, 8192, true},
    {"gpt2-12m", kGpt2, 6, 384, 6, 6, 1536, 4096, true},
    {"gpt2-13m", kGpt2, 4, 512, 8, 8, 2048, 512, true},
    {"gpt2-16m", kGpt2, 4, 256, 4, 4, 1024, 50257, true},
    {"gpt2-23m", kGpt2, 2, 384, 6, 6, 1536, 50257, true},
    {"gpt2-42m", kGpt2, 8, 512, 8, 8, 2048, 32000, true},
    {"gpt2-51m", kGpt2, 8, 512, 8, 8, 2048, 50257, true},
    {"llama-5m", kLlama, 6, 256, 4, 2, 704, 1024, false},
    {"llama-8m", kLlama, 4, 384, 6, 2, 1024, 2048, false},
    {"llama-14m", kLlama, 6, 384, 6, 6, 1024, 4096, false},
    {"llama-20m", kLlama, 4, 512, 8, 4, 1408, 16000, true},
    {"llama-21m", kLlama, 6, 512, 8, 8, 1408, 2048, false},
    {"llama-52m", kLlama, 6, 512, 8, 8, 1408, 32000, false},
};

struct Row {
  std::string_view shape;
  int context = 0, microbatch = 1, microbatches = 1;
  int ranks = 1, threads = 1;
  model::Precision precision = kF32;
  std::string_view schedule;
  model::Recompute recompute = kNone;
};

constexpr Row kRows[] = {
    // shape, context, microbatch, microbatches, ranks, threads, precision, schedule, recompute
    // One rank, one thread.
    {"gpt2-2m", 128, 1, 8, 1, 1, kF32, "1f1b", kNone},
    {"gpt2-6m", 64, 2, 4, 1, 1, kF32, "gpipe", kNone},
    {"llama-8m", 64, 1, 8, 1, 1, kF32, "zb-h1", kNone},
    {"gpt2-23m", 64, 1, 4, 1, 1, kF32, "1f1b", kNone},
    {"gpt2-13m", 64, 1, 8, 1, 1, kBf16, "1f1b", kNone},
    {"llama-21m", 64, 1, 4, 1, 1, kBf16, "zb-h1", kNone},
    {"gpt2-8m", 128, 1, 4, 1, 1, kF32, "1f1b", kFull},
    {"llama-5m", 128, 2, 4, 1, 1, kF32, "1f1b", kSelective},
    {"gpt2-12m", 128, 1, 4, 1, 1, kF32, "auto", kNone},
    // One rank, two threads.
    {"gpt2-13m", 128, 1, 4, 1, 2, kF32, "1f1b", kNone},
    {"llama-52m", 64, 1, 4, 1, 2, kF32, "1f1b", kNone},
    {"gpt2-51m", 64, 1, 4, 1, 2, kBf16, "zb-h1", kNone},
    {"gpt2-12m", 128, 1, 4, 1, 2, kBf16, "gpipe", kFull},
    {"llama-14m", 64, 2, 4, 1, 2, kF32, "auto", kSelective},
    // Two ranks of a thread each.
    {"gpt2-6m", 64, 2, 8, 2, 1, kF32, "1f1b", kNone},
    {"gpt2-16m", 64, 1, 8, 2, 1, kF32, "1f1b", kNone},
    {"gpt2-42m", 64, 1, 8, 2, 1, kBf16, "1f1b", kNone},
    {"gpt2-12m", 64, 1, 8, 2, 1, kF32, "zb-h1", kNone},
    {"llama-21m", 64, 1, 8, 2, 1, kBf16, "zb-h1", kNone},
    {"gpt2-8m", 64, 2, 8, 2, 1, kF32, "zb-v", kNone},
    {"llama-14m", 64, 1, 8, 2, 1, kBf16, "zb-v", kNone},
    {"gpt2-6m", 64, 2, 8, 2, 1, kF32, "interleaved-1f1b", kNone},
    {"llama-20m", 64, 1, 8, 2, 1, kF32, "interleaved-1f1b", kSelective},
    {"gpt2-12m", 64, 1, 6, 2, 1, kF32, "gpipe", kNone},
    {"llama-8m", 128, 1, 8, 2, 1, kF32, "gpipe", kFull},
    {"gpt2-13m", 64, 1, 8, 2, 1, kBf16, "1f1b", kFull},
    {"gpt2-23m", 64, 1, 8, 2, 1, kBf16, "auto", kNone},
    {"gpt2-8m", 128, 1, 8, 2, 1, kF32, "auto", kNone},
    {"llama-52m", 64, 1, 4, 2, 1, kBf16, "auto", kNone},
    // More threads than the two cores of a small machine.
    {"gpt2-6m", 64, 2, 8, 4, 1, kF32, "1f1b", kNone},
    {"gpt2-12m", 64, 1, 8, 3, 1, kF32, "zb-h1", kNone},
    {"llama-21m", 64, 1, 8, 4, 1, kBf16, "zb-v", kNone},
    {"gpt2-8m", 64, 2, 6, 3, 1, kF32, "interleaved-1f1b", kNone},
    {"llama-8m", 64, 1, 8, 4, 1, kF32, "auto", kNone},
};

struct EmulatedRow {
  int ranks = 1, microbatches = 1;
  std::string_view schedule;
};

constexpr EmulatedRow kEmulatedRows[] = {
    {2, 8, "1f1b"}, {2, 8, "zb-v"}, {4, 8, "interleaved-1f1b"}};

std::string TokenFile(int vocab) { return absl::StrCat("tokens-", vocab, ".bin"); }

model::ModelConfig ModelOf(const Row& row) {
  const Shape& shape = *std::ranges::find(kShapes, row.shape, &Shape::name);
  return {.family = shape.family,
          .layers = shape.layers,
          .hidden = shape.hidden,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .inner = shape.inner,
          .context = row.context,
          .positions = row.context,
          .vocab = shape.vocab,
          .tied_head = shape.tied_head};
}

config::Parallelism ParallelismOf(int ranks, int threads, std::string_view schedule) {
  return {.pipeline = ranks,
          .data = 1,
          .threads = threads,
          .schedule = std::string(schedule),
          .transport = config::TransportKind::kShm,
          .vocabulary = config::Vocabulary::kLast};
}

config::JobSpec JobOf(const Row& row) {
  config::JobSpec job;
  job.name = absl::StrCat(std::string(row.shape), "-pp", row.ranks, "-t", row.threads,
                          row.precision == kBf16 ? "-bf16-" : "-f32-", std::string(row.schedule));
  if (row.recompute != kNone)
    absl::StrAppend(&job.name, "-", std::string(model::Name(row.recompute)));
  job.model = ModelOf(row);
  job.train = TrainingDataOf(job.model);
  job.global_batch = row.microbatch * row.microbatches;
  job.microbatch = row.microbatch;
  job.precision = row.precision;
  job.parallelism = ParallelismOf(row.ranks, row.threads, row.schedule);
  job.parallelism.recompute = {row.recompute};
  return job;
}

config::JobSpec JobOf(const EmulatedRow& row) {
  constexpr double kPassSeconds = 1.25e-3;  // of a layer
  config::JobSpec job;
  job.name = absl::StrCat("emulated-pp", row.ranks, "-", std::string(row.schedule));
  job.model = {.family = kEmulated,
               .layers = 8,
               .context = 1,
               .forward_seconds = kPassSeconds,
               .input_grad_seconds = kPassSeconds,
               .weight_grad_seconds = kPassSeconds,
               .activation_bytes = 256 * 1024};
  job.global_batch = row.microbatches;
  job.parallelism = ParallelismOf(row.ranks, 1, row.schedule);
  return job;
}

}  // namespace

std::string_view Name(TruthGroup group) {
  switch (group) {
    case TruthGroup::kReal:
      return "real";
    case TruthGroup::kOversubscribed:
      return "oversubscribed";
    case TruthGroup::kEmulated:
      return "emulated";
  }
  return "unknown";
}

int RanksOf(const config::JobSpec& job) { return job.parallelism.pipeline.value(); }
int ThreadsOf(const config::JobSpec& job) { return job.parallelism.threads.value(); }

TruthGroup GroupOf(const config::JobSpec& job, int cores) {
  if (job.model.family == kEmulated) return TruthGroup::kEmulated;
  return RanksOf(job) * ThreadsOf(job) > cores ? TruthGroup::kOversubscribed : TruthGroup::kReal;
}

std::vector<config::JobSpec> TruthJobs() {
  std::vector<config::JobSpec> jobs;
  for (const Row& row : kRows) jobs.push_back(JobOf(row));
  for (const EmulatedRow& row : kEmulatedRows) jobs.push_back(JobOf(row));
  return jobs;
}

std::vector<config::JobSpec> ChoiceJobs() {
  std::vector<config::JobSpec> jobs;
  std::set<std::string_view> taken;
  for (const Row& row : kRows) {
    if (row.ranks != 2 || std::ssize(jobs) == kChoiceJobs || !taken.insert(row.shape).second)
      continue;
    config::JobSpec job = JobOf(row);
    job.name = std::string(row.shape);
    job.parallelism.schedule = "auto";
    job.parallelism.vocabulary = config::Vocabulary::kAuto;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<std::vector<config::JobSpec>> Select(std::vector<config::JobSpec> jobs, int count,
                                                    const std::string& only) {
  if (only.empty()) {
    if (count > 0 && count < std::ssize(jobs)) jobs.resize(count);
    return jobs;
  }
  const auto found = std::ranges::find(jobs, only, &config::JobSpec::name);
  if (found != jobs.end()) return std::vector<config::JobSpec>{*found};
  const auto name = [](std::string* out, const config::JobSpec& job) { out->append(job.name); };
  return absl::InvalidArgumentError(
      absl::StrCat("--only is ", only, ": must be one of ", absl::StrJoin(jobs, ", ", name)));
}

std::vector<config::Corpus> TrainingDataOf(const model::ModelConfig& model) {
  return {{.path = TokenFile(model.vocab), .format = config::DataFormat::kUint32}};
}

TruthTokens::TruthTokens(const std::vector<config::JobSpec>& jobs)
    : path_(std::filesystem::temp_directory_path() / "takt-bench-XXXXXX") {
  constexpr int kTokens = 1 << 16;  // enough for a step of the largest job
  TAKT_CHECK(mkdtemp(path_.data()) != nullptr);
  std::set<int> vocabularies;
  for (const config::JobSpec& job : jobs) {
    if (!job.train.empty()) vocabularies.insert(job.model.vocab);
  }
  for (const int vocab : vocabularies) {
    std::mt19937 generator(1);
    std::vector<std::uint32_t> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back(generator() % static_cast<unsigned>(vocab));
    std::ofstream file(absl::StrCat(path_, "/", TokenFile(vocab)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(tokens[0])));
  }
}

TruthTokens::~TruthTokens() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace takt::bench
