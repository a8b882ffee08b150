// SPDX-License-Identifier: Apache-2.0
// A validated job, which all logic works with. It is made from YAML or JSON text (job_file.h) or
// from takt.v1.JobSpec (job_spec_serde.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/model/model.h"
#include "common/model/recompute.h"

namespace takt::config {

enum class DataFormat : std::uint8_t {
  kBytes = 1,
  kUint16,
  kUint32,
  kLlmc,
  kMegatron,
  kSafetensors
};
enum class LrDecay : std::uint8_t { kConstant = 1, kCosine, kLinear, kWsd, kInverseSqrt };
enum class TransportKind : std::uint8_t { kAuto = 0, kShm, kTcp, kNccl, kCudaIpc };
enum class DeviceKind : std::uint8_t { kAuto = 0, kCpu, kCuda };
// Where the words of the head and of the embedding are: on the ranks with the last and the first
// stage, or on all ranks.
enum class Vocabulary : std::uint8_t { kAuto = 0, kLast, kSpread };
// Says whether tokens attend to those of other documents in their window. With kUnstated they do,
// unless the job names the token that ends documents.
enum class Documents : std::uint8_t { kUnstated = 0, kJoin, kSeparate };
// Says what data-parallel replicas divide among themselves. With kAuto the job leaves it to the
// plan. No job may ask for kGradients.
enum class Shard : std::uint8_t { kAuto, kNone, kOptimizer, kGradients, kParameters };
// Says whether a rank frees, within a step, the weights that its replicas share. With kAlways it
// does so wherever it has more stages than compute at a time, with kAuto only if it does not fit
// otherwise.
enum class Reshard : std::uint8_t { kAuto, kAlways, kNever };
// Says whether all ranks wait for one another before the update. With kAuto the plan decides.
enum class Barrier : std::uint8_t { kAuto, kAlways, kNever };
enum class Replan : std::uint8_t { kNever = 1, kAtCheckpoint };
using model::Precision;

// The mixing of several corpora starts over after at most this many rows (common/data/mixture.h). A
// corpus's share of the windows must be at least one row.
inline constexpr int kLongestMixtureCycle = 10000;

// Jobs of higher priorities leave the queue first.
inline constexpr int kDefaultPriority = 50, kHighestPriority = 100;

// The longest name that a job may have, in bytes.
inline constexpr std::size_t kLongestJobName = 63;

struct Corpus {
  std::string path;
  DataFormat format = DataFormat::kBytes;
  double weight = 1;  // its share of the windows is weight / sum of weights
};

struct Validation {
  std::string path;
  DataFormat format = DataFormat::kBytes;
  std::int64_t every_steps = 0;
  int batches = 1;
};

// A job that trains nothing: its one step scores the validation set.
struct Evaluation {
  std::string weights;  // a directory under the checkpoint root; empty: those of init_from
};

// The terms of the loss of training beside the cross-entropy with the targets.
struct Loss {
  double label_smoothing = 0;  // below 1
  double z_loss = 0;
};

struct Adamw {
  double learning_rate = 3e-4, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
};

struct Lion {
  double learning_rate = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
};

// Gradient descent with momentum, if that is above 0. Its decay is part of the gradient.
struct Sgd {
  double learning_rate = 1e-2, momentum = 0.9, weight_decay = 0;
  bool nesterov = false;
  double clip_norm = 1.0;  // 0: no clipping
};

// Muon for the matrices of blocks (model::Parameter::by_muon), AdamW for all else.
struct Muon {
  double learning_rate = 3e-4, momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  double clip_norm = 1.0;  // 0: no clipping; of all gradients
  // Its rate keeps its proportion to Muon's in every step. Its clip_norm has no meaning.
  Adamw adamw;
};

// Has what all optimizers have.
struct OptimizerTraits {
  const char* name = "";  // of the section in job files
  double learning_rate = 0, weight_decay = 0, clip_norm = 0;
  int moments = 0;  // f32 numbers that it keeps of each element of a parameter, at most
};

struct LrSchedule {
  std::int64_t warmup_steps = 0;
  LrDecay decay = LrDecay::kConstant;
  std::int64_t stable_steps = 0;  // of kWsd: between warmup and decay
  // The step at which kCosine and kLinear end. Of kWsd it is the number of steps that it falls.
  std::int64_t decay_steps = 0;
  double min_learning_rate = 0;
};

// Returns the learning rate of `step` (k, 1-based): peak*k/warmup_steps up to warmup_steps, and
// then by decay, never below min:
//   kCosine, kLinear   falls to min at decay_steps, along half a cosine or a line
//   kWsd               the peak for stable_steps, then a line to min in decay_steps
//                      (warmup-stable-decay, Hu et al. 2024, with a linear fall)
//   kInverseSqrt       peak * sqrt(warmup_steps / k)  (Vaswani et al. 2017)
double LearningRate(double peak, const LrSchedule& schedule, std::int64_t step);

// Names parameters that the optimizer treats differently from the rest (parameter_groups.h).
struct ParameterGroup {
  std::string parameters;  // a name, in which `*` stands for any characters
  double learning_rate_scale = 1;
  std::optional<double> weight_decay;  // nullopt: as without the group
};

inline constexpr int kMaxThreads = 1024;  // compute threads of a rank

struct Parallelism {
  std::optional<int> pipeline, data, chunks, threads, group;
  std::string schedule = "auto";  // a family, "auto" or "file:PATH"
  std::string schedule_csv;       // the file's text, which the client reads; nobody else opens PATH
  std::vector<int> stage_layers;  // empty: the planner balances them
  std::vector<model::Recompute> recompute;  // one for all stages, or one a stage; empty: auto
  TransportKind transport = TransportKind::kAuto;
  DeviceKind device = DeviceKind::kAuto;
  Vocabulary vocabulary = Vocabulary::kAuto;
  bool data_auto = false;    // the first plan chooses `data`, which is unset until then
  int tensor = 1;            // ranks that split every layer
  bool tensor_auto = false;  // the first plan chooses `tensor`, which is 1 until then
  int tensor_leaves = 0;     // into which layers are cut; 0: as many as `tensor`
  int context = 1;           // ranks that share every sequence
  int expert = 1;            // replicas that share the experts of each block
  int data_leaves = 0;       // terms of a sum over replicas; 0: as many as there are replicas
  Shard shard = Shard::kAuto;
  Reshard reshard = Reshard::kAuto;  // with Shard::kParameters

  // Returns whether the job asks that replicas share the optimizer's state, the weights with it or
  // not.
  bool SharesOptimizer() const { return shard == Shard::kOptimizer || shard == Shard::kParameters; }

  // Returns how many terms each of so many replicas brings to the sum of gradients.
  int LeavesPerReplica(int dp_size) const {
    return data_leaves > dp_size ? data_leaves / dp_size : 1;
  }

  // Returns how many ranks share one replica of a stage.
  int RanksPerReplica() const { return tensor * context; }
};

struct Checkpoint {
  std::string directory;
  std::int64_t every_steps = 0;  // 0: only at the end and when the job is halted
  int keep = 3;
  std::string resume = "auto";  // "auto", "none" or a step
};

// Sizes that an axis of the mesh may have.
struct SizeRange {
  int min = 1, max = 1;  // both included

  bool Contains(int size) const { return size >= min && size <= max; }
  bool operator==(const SizeRange&) const = default;
};

// What may change in a job between its generations. An axis without a range keeps what
// `parallelism` says.
struct Elastic {
  std::optional<SizeRange> data, pipeline;
  bool evict_stragglers = false;  // an idle worker takes the place of one that is too slow

  bool Resizes() const { return data.has_value() || pipeline.has_value(); }
  bool operator==(const Elastic&) const = default;
};

// The plan chooses how often the state is copied (checkpoint.in_memory).
inline constexpr std::int64_t kAutoCopies = -1;

struct JobSpec {
  std::string name;
  model::ModelConfig model;
  std::string init_from;  // empty: random from seed
  std::vector<Corpus> train;
  std::optional<Validation> validation;
  std::optional<Evaluation> evaluation;  // nullopt: the job trains
  bool shuffle = false;
  Documents documents = Documents::kUnstated;
  std::optional<int> document_end;  // the token that ends documents
  int global_batch = 1, microbatch = 1;
  bool microbatch_auto = false;  // the first plan chooses `microbatch`, which is 1 until then
  Loss loss;
  Adamw adamw;  // trains if there is none of the next three, of which there is one at most
  std::optional<Lion> lion;
  std::optional<Sgd> sgd;
  std::optional<Muon> muon;
  LrSchedule lr_schedule;
  std::vector<ParameterGroup> groups;  // a parameter belongs to the first that matches its name
  Barrier barrier = Barrier::kAuto;
  // By how much of its error the next update corrects one of gradients that are a step late
  // (backend::FeedBackError); 0: by nothing.
  double error_feedback = 0;
  std::int64_t steps = 1;
  Parallelism parallelism;
  Precision precision = Precision::kF32;
  // With a recipe `precision` is bf16, which all but the products of blocks has.
  model::Fp8Recipe fp8 = model::Fp8Recipe::kNone;
  // The precision of the residual stream between layers. It is f32 where `precision` is.
  Precision residual = Precision::kF32;
  std::optional<Checkpoint> checkpoint;  // nullopt: nothing is saved in files
  // Steps from one copy of the state in the workers' memory to the next; kAutoCopies, or 0: none
  // are kept. Without a checkpoint section it is 0.
  std::int64_t copy_every_steps = 0;
  std::string tensorboard;  // a directory of event files, under the checkpoint root; empty: none
  std::string mlflow;       // an experiment of the coordinator's MLflow server; empty: none
  std::uint64_t seed = 0;
  bool exact = true;                // results have the same bits with every schedule
  int priority = kDefaultPriority;  // 0 to kHighestPriority
  Replan replan = Replan::kNever;   // when a running job changes to a faster plan
  Elastic elastic;
  // Warnings about settings that have no effect on this job, for people. They are not part of the
  // proto.
  std::vector<std::string> warnings;

  bool SeparatesDocuments() const {
    return documents == Documents::kSeparate ||
           (documents == Documents::kUnstated && document_end.has_value());
  }
  // Returns whether a plan is to choose what changes the bits of losses.
  bool LeavesBitsOpen() const {
    return microbatch_auto || parallelism.data_auto || parallelism.tensor_auto;
  }
  // Names what a plan chose, so that no later plan chooses again. What the job names stays.
  void FixBits(int chosen_data, int chosen_microbatch, int chosen_tensor = 1);
  // Returns the job as it is planned once it has begun: sizes with an elastic range are open.
  JobSpec WithOpenSizes() const;
  // Returns whether a plan is to choose how many workers the job takes.
  bool LeavesSizeOpen() const;
  // Returns the fewest replicas and the fewest ranks of a pipeline that a plan may choose.
  int LeastData() const;
  int LeastPipeline() const;
  // Returns how many workers a plan takes at most; nullopt: as many as there are.
  std::optional<int> MostWorkers() const;
  // Returns whether the global batch is a whole number of microbatches on each data-parallel rank,
  // and in each of its leaves.
  bool DividesBatch(std::int64_t dp_size) const {
    const std::int64_t leaves = parallelism.data_leaves;
    if (leaves > 0 && (dp_size < 1 || leaves % dp_size != 0)) return false;
    const std::int64_t part = microbatch * (leaves > 0 ? leaves : dp_size);
    return part >= 1 && global_batch >= part && global_batch % part == 0;
  }
  // Returns how many microbatches one data-parallel rank has in a step.
  int MicrobatchesPerStep(int dp_size) const { return global_batch / (microbatch * dp_size); }
};

// Returns what the optimizer of the job has in common with others.
OptimizerTraits TraitsOf(const JobSpec& job);

// Returns what a job rounds to bf16 or FP8 on ranks that compute on `device`. With `precision:
// bf16` these are the operands of products, and on GPUs, which are bound by memory, activations
// too.
model::Precisions PrecisionsOf(const JobSpec& job, DeviceKind device);

// Builds the job's model as ranks on `device` train it, with microbatches of so many sequences and
// the moments of its optimizer. tensor_rank: which of the ranks that share each layer it is for;
// nullopt: the last one, which has the most words. dp_rank: of the replica, of which neighbours may
// share experts. Errors: as model::BuildModel.
absl::StatusOr<model::Model> BuildModelOf(const JobSpec& job, int microbatch, DeviceKind device,
                                          std::optional<TpRank> tensor_rank = std::nullopt,
                                          DpRank dp_rank = DpRank(0));

}  // namespace takt::config
