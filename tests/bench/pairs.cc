// SPDX-License-Identifier: Apache-2.0
// Measures overlapped pairs of emulated stages. For each half of a pair communication takes as long
// as half an F: in one case the meetings inside the passes, in another one the messages between
// stages. Worker processes run them. The time from one pair to the next is compared with the time
// for which a pair computes and the time for which it communicates.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/mesh/mesh.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_group.h"
#include "tests/bench/slow_links.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "worker/engine/engine.h"
#include "worker/train/trainer.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/selection/create.h"

namespace takt::bench::pairs_command {
namespace {

using program::Op;

// The limit of the measured time over the longer of computation and communication.
constexpr double kLimit = 1.03;
constexpr int kPipeline = 2, kTensor = 2;
constexpr int kWarmupSteps = 1;
constexpr std::int64_t kBytes = 4096;  // so few that passing them takes next to no time
// F and I gather before each layer and scatter after it.
constexpr int kMeetingsOfPass = 2;

struct Options : CommonOptions {
  int layers = 12, microbatches = 8, steps = 4;
  double milliseconds = 4;
};

// Says how a pair communicates, and how its halves run.
struct Case {
  const char* name;
  bool meets = false;   // it communicates inside its passes; else by messages after them
  bool beside = false;  // one half computes while the other one meets
};
constexpr Case kCases[] = {{"meetings", true, true},
                           {"meetings, one half after the other", true, false},
                           {"messages", false, false}};

// The part of a run that is the same on all ranks.
struct Setup {
  model::Model model;
  config::JobSpec job;
  mesh::Mesh mesh;
  mesh::Partition partition;
  std::vector<program::Program> programs;
};

// Returns the seconds of an F. A B takes twice as long.
double ForwardSeconds(const Options& options) {
  return options.layers * options.milliseconds * 1e-3;
}

absl::StatusOr<Setup> MakeSetup(const Case& c, const Options& options) {
  Setup setup{.mesh = {.pp_size = kPipeline, .tp_size = c.meets ? kTensor : 1}};
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   schedule::Generate("dualpipe-v", {.num_ranks = kPipeline,
                                                     .num_microbatches = options.microbatches}));
  const double seconds = options.milliseconds * 1e-3;
  ASSIGN_OR_RETURN(setup.model, model::BuildModel({.family = model::Family::kEmulated,
                                                   .layers = schedule.num_stages * options.layers,
                                                   .forward_seconds = seconds,
                                                   .input_grad_seconds = seconds,
                                                   .weight_grad_seconds = seconds,
                                                   .activation_bytes = kBytes,
                                                   .collective_bytes = kBytes},
                                                  1));
  setup.job.model = setup.model.config;
  setup.job.global_batch = options.microbatches;
  const std::vector<model::Part> pass = {{model::PartKind::kGather, model::PartGroup::kTensor},
                                         model::Part{},
                                         {model::PartKind::kScatter, model::PartGroup::kTensor}};
  program::LowerOptions lowering;
  for (int s = 0; s < schedule.num_stages; ++s) {
    const LayerId first(s * options.layers), last((s + 1) * options.layers);
    setup.partition.push_back({StageId(s),
                               schedule::RankOfStage(schedule.placement, kPipeline, StageId(s)),
                               first, last});
    lowering.stages.push_back({.first_layer = first, .last_layer = last, .output_bytes = kBytes});
    if (!c.meets) continue;
    lowering.stages.back().layers.assign(static_cast<std::size_t>(options.layers),
                                         {.forward = pass, .input_grad = pass});
  }
  ASSIGN_OR_RETURN(setup.programs, program::Lower(schedule, lowering));
  return setup;
}

// Opens a group that the ranks have under this name. Null: this rank is alone.
absl::StatusOr<std::unique_ptr<transport::Collective>> OpenGroup(transport::Transport& transport,
                                                                 const std::string& name,
                                                                 std::vector<Rank> ranks,
                                                                 Rank rank) {
  if (ranks.size() < 2) return std::unique_ptr<transport::Collective>();
  const auto index = std::ranges::find(ranks, rank) - ranks.begin();
  transport::CollectiveOptions group{.name = absl::StrCat(name, "-", ranks.front().value()),
                                     .index = static_cast<int>(index)};
  group.ranks = std::move(ranks);
  return transport::CreateCollective(&transport, group);
}

// Returns the times from the end of a pair to the end of the next one, where no other computation
// is between them. The median of them leaves out those in which a rank also waited for its
// neighbour, as it does at both ends of a step. The start of a pair would not do: it is moved by
// the time in which neither half ran.
std::vector<double> SecondsOfPairs(const program::Program& program,
                                   const std::vector<engine::InstructionTiming>& timings) {
  std::vector<double> seconds;
  std::optional<std::int64_t> previous_end;
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const Op op = program.body[i].op;
    if (!program::IsCompute(op)) continue;
    const std::int64_t end = timings[i].end_nanos;
    if (op == Op::kOverlap && previous_end.has_value())
      seconds.push_back(static_cast<double>(end - *previous_end) * 1e-9);
    previous_end = op == Op::kOverlap ? std::optional(end) : std::nullopt;
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> RunRank(const Case& c, const Setup& setup,
                                            const Options& options, Rank rank,
                                            transport::Rendezvous& rendezvous) {
  const int num_ranks = setup.mesh.size();
  ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                   transport::CreateTransport(LoopbackOptions(rank, num_ranks),
                                              config::TransportKind::kShm, rendezvous));
  const auto ranks_of = [&](mesh::Group group) { return mesh::RanksOf(setup.mesh, group, rank); };
  ASSIGN_OR_RETURN(const auto pipeline,
                   OpenGroup(*transport, "pp", ranks_of(mesh::Group::kPipeline), rank));
  ASSIGN_OR_RETURN(const auto tensor,
                   OpenGroup(*transport, "tensor", ranks_of(mesh::Group::kTensor), rank));
  ASSIGN_OR_RETURN(const auto again,
                   OpenGroup(*transport, "pair", ranks_of(mesh::Group::kTensor), rank));
  const absl::Duration half = absl::Seconds(ForwardSeconds(options) / 2);
  const absl::Duration meeting = half / (kMeetingsOfPass * options.layers);
  std::optional<SlowCollective> slow_tensor, slow_again;
  if (tensor != nullptr) slow_tensor.emplace(*tensor, meeting);
  if (again != nullptr && c.beside) slow_again.emplace(*again, meeting);
  SlowTransport messages(*transport, c.meets ? absl::ZeroDuration() : half);
  const program::Program& program =
      setup.programs[static_cast<std::size_t>(setup.mesh.PpRankOf(rank).value())];
  ASSIGN_OR_RETURN(
      const std::unique_ptr<train::Trainer> trainer,
      train::CreateTrainer({.job = &setup.job,
                            .model = &setup.model,
                            .partition = &setup.partition,
                            .program = &program,
                            .mesh = setup.mesh,
                            .rank = rank,
                            .pp_group = pipeline.get(),
                            .tensor_group = slow_tensor ? &*slow_tensor : nullptr,
                            .pair_tensor_group = slow_again ? &*slow_again : nullptr}));
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                   engine::Engine::Create(
                       program, *trainer,
                       {.transport = &messages,
                        .rank_of = [&](PpRank pp_rank) { return setup.mesh.PeerOf(rank, pp_rank); },
                        .generation = 1}));
  std::vector<double> seconds;
  RETURN_IF_ERROR(engine->Run(StepId(1), StepId(kWarmupSteps + options.steps),
                              [&](const engine::StepTiming& timing) {
                                if (timing.step <= StepId(kWarmupSteps)) return;
                                for (const double each : SecondsOfPairs(program, *timing.timings))
                                  seconds.push_back(each);
                              }));
  return seconds;
}

struct Row {
  const char* name;
  double measured = 0, computes = 0, passes_on = 0;  // seconds of a pair

  double longer() const { return std::max(computes, passes_on); }
  double sum() const { return computes + passes_on; }
};

absl::StatusOr<Row> Measure(const Case& c, const Options& options) {
  ASSIGN_OR_RETURN(const Setup setup, MakeSetup(c, options));
  ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      RunProcesses(
          setup.mesh.size(),
          [&](Rank rank, transport::Rendezvous& rendezvous) -> absl::StatusOr<std::string> {
            ASSIGN_OR_RETURN(const std::vector<double> seconds,
                             RunRank(c, setup, options, rank, rendezvous));
            return nlohmann::json(seconds).dump();
          }));
  std::vector<double> seconds;
  for (const std::string& text : texts) {
    for (const double each : nlohmann::json::parse(text).get<std::vector<double>>())
      seconds.push_back(each);
  }
  if (seconds.empty()) return absl::InternalError("no two pairs followed one another");
  const double forward = ForwardSeconds(options);
  return Row{.name = c.name,
             .measured = Median(std::move(seconds)),
             .computes = 3 * forward,
             .passes_on = forward};
}

absl::Status Run(const Options& options) {
  if (!options.json()) {
    absl::PrintF(
        "dualpipe-v on %d pp ranks, %d microbatches, stages of %d layers of F = I = W = %g ms; "
        "each "
        "half of a pair passes on for half an F\n",
        kPipeline, options.microbatches, options.layers, options.milliseconds);
  }
  Table table(options.json(),
              {{"what is passed on", "case", 36},
               {"a pair ms", "measured_seconds", 9, 2, 1e3},
               {"computes", "compute_seconds", 9, 2, 1e3},
               {"passes on", "communication_seconds", 9, 2, 1e3},
               {absl::StrFormat("over the longer (limit %.2f)", kLimit), "over_longer", 0, 3},
               {"over the sum", "over_sum", 0, 3}});
  for (const Case& c : kCases) {
    ASSIGN_OR_RETURN(const Row row, Measure(c, options));
    const double over_longer = row.measured / row.longer();
    // Halves that run one after the other are there for comparison only.
    const bool holds = over_longer <= kLimit || (c.meets && !c.beside);
    table.Add({{"case", row.name},
               {"measured_seconds", row.measured},
               {"compute_seconds", row.computes},
               {"communication_seconds", row.passes_on},
               {"over_longer", over_longer},
               {"over_sum", row.measured / row.sum()}},
              holds ? "" : "over");
  }
  table.End({});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "pairs",
      "Overlapped pairs of emulated stages beside what they compute and what they pass on",
      [](CLI::App& command, Options& options) {
        command.add_option("--layers", options.layers, "Layers of a stage")
            ->check(CLI::Range(1, 1000));
        command.add_option("--microbatches", options.microbatches, "Microbatches of a step")
            ->check(CLI::Range(2 * kPipeline, 1024));
        command
            .add_option("--milliseconds", options.milliseconds, "Milliseconds of each F, I and W")
            ->check(CLI::PositiveNumber);
        command.add_option("--steps", options.steps, "Steps of which the median is taken")
            ->check(CLI::Range(1, 500));
      },
      Run);
}

}  // namespace takt::bench::pairs_command
