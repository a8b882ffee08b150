// SPDX-License-Identifier: Apache-2.0
// A training step of one worker, planned and executed as a job's would be, against the time that
// its matmuls need alone.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/device.h"
#include "tests/bench/reference_rates.h"
#include "tests/bench/statistics.h"
#include "worker/backend/backend.h"
#include "worker/engine/engine.h"
#include "worker/train/trainer.h"

namespace takt::bench {
namespace {

struct Options : CommonOptions {
  std::string model = "gpt2-124m", device = "cpu", precision = "f32";
  int batch = 8, microbatch = 0, context = 256, threads = 1, steps = 3, warmup = 1;
};

// Those of tests/bench/torch_baseline.py are the same.
const std::map<std::string, model::ModelConfig>& Models() {
  static const std::map<std::string, model::ModelConfig> models = {
      {"tiny", {.layers = 2, .hidden = 64, .heads = 4, .vocab = 512}},
      {"gpt2-6m", {.layers = 8, .hidden = 256, .heads = 8, .vocab = 256}},  // the example job
      {"gpt2-124m", {.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257}},
      {"gpt2-355m", {.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50257}},
      {"gpt2-774m", {.layers = 36, .hidden = 1280, .heads = 20, .vocab = 50257}},
      {"gpt2-1558m", {.layers = 48, .hidden = 1600, .heads = 25, .vocab = 50257}},
      {"llama-110m",  // stories110M
       {.family = model::Family::kLlama,
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .inner = 2048,
        .vocab = 32000,
        .tied_head = false}},
      {"llama-1b",  // Llama-3.2-1B
       {.family = model::Family::kLlama,
        .layers = 16,
        .hidden = 2048,
        .heads = 32,
        .kv_heads = 8,
        .inner = 8192,
        .vocab = 128256,
        .tied_head = true}},
      {"llama-8b-slice",  // 8 of the 32 blocks of Llama-3.1-8B
       {.family = model::Family::kLlama,
        .layers = 8,
        .hidden = 4096,
        .heads = 32,
        .kv_heads = 8,
        .inner = 14336,
        .vocab = 128256,
        .tied_head = false}},
  };
  return models;
}

model::ModelConfig ModelOf(const Options& options) {
  model::ModelConfig config = Models().at(options.model);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.inner == 0) config.inner = 4 * config.hidden;
  config.context = options.context;
  config.positions = std::max(1024, options.context);
  return config;
}

// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = std::filesystem::temp_directory_path() / "takt-bench-XXXXXX";
    TAKT_CHECK(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Uniform random tokens: enough windows for one epoch of the run.
void WriteTokens(const std::string& path, const Options& options, int vocab) {
  std::mt19937 generator(1);
  std::ofstream file(path, std::ios::binary);
  const std::int64_t steps = options.warmup + options.steps;
  const std::int64_t count = steps * options.batch * options.context + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t token = generator() % static_cast<unsigned>(vocab);
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
}

model::Precision PrecisionOf(const Options& options) {
  return options.precision == "bf16" ? model::Precision::kBf16 : model::Precision::kF32;
}

bool OnGpu(const Options& options) { return options.device != "cpu"; }

// Of this process.
double PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct Measurement {
  std::vector<double>
      step_seconds;  // without the steps that warm up: the first touches memory for the first time
  std::map<std::string, double> op_seconds;  // by kind of instruction, mean of those steps
  double model_flops = 0;                    // of a step, attention counted causally
  double attention_flops = 0;  // those of attention in it: as many again if nothing were masked
  double first_loss = 0, last_loss = 0;
  double peak_bytes = 0;  // of the device; on the CPU of the process
};

absl::StatusOr<Measurement> MeasureSteps(const Options& options) {
  const TemporaryFolder folder;
  config::JobSpec job;
  job.name = "bench";
  job.model = ModelOf(options);
  job.precision = PrecisionOf(options);
  job.train = {{.path = "tokens.bin", .format = config::DataFormat::kUint32}};
  job.global_batch = options.batch;
  job.microbatch = options.microbatch > 0 ? options.microbatch : options.batch;
  job.steps = options.warmup + options.steps;
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "1f1b";
  WriteTokens(absl::StrCat(folder.path(), "/tokens.bin"), options, job.model.vocab);

  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(job, {.device = OnGpu(options) ? config::DeviceKind::kCuda
                                                                 : config::DeviceKind::kCpu}));
  const program::Program& program = plan.programs.front();
  MemoryBytes predicted = plan.memory.front();
  predicted[MemoryKind::kProcess] = 0;
  backend::MemoryLedger ledger;
  ASSIGN_OR_RETURN(const auto backends, OpenDevice({.device = options.device,
                                                    .threads = options.threads,
                                                    .predicted = predicted,
                                                    .ledger = &ledger}));
  ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                   train::CreateTrainer({.job = &job,
                                         .model = &plan.model,
                                         .partition = &plan.partition,
                                         .program = &program,
                                         .mesh = plan.mesh,
                                         .backends = backends.get(),
                                         .data_root = folder.path()}));
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                   engine::Engine::Create(program, *trainer, {}));
  Measurement result;
  result.model_flops = plan.model.FlopsPerToken() * options.batch * options.context;
  result.attention_flops =
      6.0 * job.model.layers * job.model.hidden * options.context * options.batch * options.context;
  RETURN_IF_ERROR(engine->Run(StepId(1), StepId(job.steps), [&](const engine::StepTiming& step) {
    result.last_loss = trainer->result(step.step).loss;
    if (step.step == StepId(1)) result.first_loss = result.last_loss;
    if (step.step <= StepId(options.warmup)) return;
    result.step_seconds.push_back(static_cast<double>(step.end_nanos - step.start_nanos) * 1e-9);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const program::Instruction& instruction = program.body[i];
      std::string kind = program::ToString(instruction, program);
      if (program::IsCompute(instruction.op)) kind = kind.substr(kind.find_first_of("FIWB"), 1);
      const engine::InstructionTiming& timing = (*step.timings)[i];
      result.op_seconds[kind] +=
          static_cast<double>(timing.end_nanos - timing.start_nanos) * 1e-9 / options.steps;
    }
  }));
  result.peak_bytes = OnGpu(options) ? static_cast<double>(ledger.Read().total()) : PeakBytes();
  return result;
}

// What the matmuls of a step need alone, forward and both gradients: oneDNN's on the CPU; on a GPU
// at the rate of a large one.
struct MatmulLimit {
  double flops = 0, forward_seconds = 0, backward_seconds = 0;
  double seconds() const { return forward_seconds + backward_seconds; }
};

absl::StatusOr<MatmulLimit> MeasureLimit(const Options& options) {
  double gpu_rate = 0;
  if (OnGpu(options)) {
    ASSIGN_OR_RETURN(const auto backends, OpenDevice({.device = options.device}));
    ASSIGN_OR_RETURN(const auto backend, backends->Create(backend::StreamKind::kCompute));
    gpu_rate = MatmulFlopsPerSecond(*backend, options.precision == "bf16", 5);
  }
  const int microbatch = options.microbatch > 0 ? options.microbatch : options.batch;
  const int microbatches = options.batch / microbatch;
  MatmulLimit limit;
  for (const StepMatmul& matmul :
       StepMatmuls(ModelOf(options), std::int64_t{microbatch} * options.context)) {
    const double once = OnGpu(options)
                            ? matmul.flops() / gpu_rate
                            : OneDnnSeconds(matmul, PrecisionOf(options), options.threads, 3);
    const double seconds = once * matmul.count * microbatches;
    limit.flops += matmul.flops() * matmul.count * microbatches;
    (matmul.name.ends_with(" F") ? limit.forward_seconds : limit.backward_seconds) += seconds;
  }
  return limit;
}

nlohmann::json Report(const Options& options, const Measurement& measured,
                      const MatmulLimit& limit) {
  const double step = Median(measured.step_seconds);
  const double model_rate = measured.model_flops / step,
               matmul_rate = limit.flops / limit.seconds();
  nlohmann::json parts = nlohmann::json::array();
  double accounted = 0;
  for (const auto& [kind, seconds] : measured.op_seconds) {
    const double matmuls = kind == "F"   ? limit.forward_seconds
                           : kind == "B" ? limit.backward_seconds
                                         : 0;
    parts.push_back(
        {{"instruction", kind}, {"seconds", seconds}, {"matmul_seconds_at_limit", matmuls}});
    accounted += seconds;
  }
  return {{"model", options.model},
          {"device", options.device},
          {"precision", options.precision},
          {"batch", options.batch},
          {"context", options.context},
          {"threads", options.threads},
          {"model_flops_per_second", model_rate},
          {"matmul_flops_per_second", matmul_rate},
          {"ratio", model_rate / matmul_rate},
          {"tokens_per_second", options.batch * options.context / step},
          {"step_seconds", step},
          {"all_step_seconds", measured.step_seconds},
          {"model_flops", measured.model_flops},
          {"attention_flops", measured.attention_flops},
          {"peak_bytes", measured.peak_bytes},
          {"matmul_flops", limit.flops},
          {"first_loss", measured.first_loss},
          {"last_loss", measured.last_loss},
          {"parts", parts},
          {"outside_instructions_seconds", step - accounted}};
}

void PrintText(const nlohmann::json& report) {
  const auto number = [&](const char* key) { return report[key].get<double>(); };
  absl::PrintF("model    %7.1f GFLOP/s (attention counted causally)\n",
               number("model_flops_per_second") * 1e-9);
  absl::PrintF(
      "limit    %7.1f GFLOP/s: the same matmuls by oneDNN, or at the GPU's rate of large ones\n",
      number("matmul_flops_per_second") * 1e-9);
  absl::PrintF("ratio    %7.3f\n", number("ratio"));
  absl::PrintF("step     %7.3f s, %.0f tokens/s, %d threads\n", number("step_seconds"),
               number("tokens_per_second"), report["threads"].get<int>());
  absl::PrintF("where a step goes:        s   of which matmuls at the limit\n");
  for (const nlohmann::json& part : report["parts"]) {
    absl::PrintF("  %-16s %8.3f %10.3f\n", part["instruction"].get<std::string>(),
                 part["seconds"].get<double>(), part["matmul_seconds_at_limit"].get<double>());
  }
  absl::PrintF("  %-16s %8.3f\n", "(between)", number("outside_instructions_seconds"));
}

absl::Status Run(const Options& options) {
  if (options.microbatch > 0 && options.batch % options.microbatch != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--microbatch ", options.microbatch,
                                                   " does not divide --batch ", options.batch));
  }
  ASSIGN_OR_RETURN(const Measurement measured, MeasureSteps(options));
  ASSIGN_OR_RETURN(const MatmulLimit limit, MeasureLimit(options));
  const nlohmann::json report = Report(options, measured, limit);
  if (options.json()) {
    absl::PrintF("%s\n", report.dump());
  } else {
    PrintText(report);
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrainCommand(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "train", "Model FLOP/s of training steps over those of their matmuls alone",
      [](CLI::App& command, Options& options) {
        command.add_option("--model", options.model)->check(CLI::IsMember(&Models()));
        command.add_option("--device", options.device, "cpu, or cuda: the first GPU")
            ->check(CLI::IsMember({"cpu", "cuda"}));
        command.add_option("--batch", options.batch, "Sequences of a step")
            ->check(CLI::Range(1, 4096));
        command
            .add_option("--microbatch", options.microbatch,
                        "Sequences of a microbatch; 0: the whole batch")
            ->check(CLI::Range(0, 4096));
        command.add_option("--context", options.context, "Tokens of a sequence")
            ->check(CLI::Range(1, 65536));
        command.add_option("--precision", options.precision)->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--threads", options.threads, "Threads, of oneDNN's own run too")
            ->check(CLI::Range(1, 1024));
        command.add_option("--steps", options.steps, "Steps that count")
            ->check(CLI::Range(1, 1000));
        command.add_option("--warmup", options.warmup, "Steps before them")
            ->check(CLI::Range(1, 1000));
      },
      Run);
}

}  // namespace takt::bench
