// SPDX-License-Identifier: Apache-2.0
// Training without a flush, by real engines and trainers, has the bits of the papers' recurrences:
// computed here on one rank with the same kernels, every version of the weights held by name.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/model/llama.h"
#include "common/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/numerics/in_process_run.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/data/token_source.h"
#include "worker/train/initial_weights.h"
#include "worker/train/parameter_store.h"
#include "worker/train/stage.h"

namespace takt::numerics {
namespace {

namespace fs = std::filesystem;

// All layers on one rank, with whatever weights they are given.
class WholeModel {
 public:
  explicit WholeModel(const config::JobSpec& job)
      : model_(model::BuildModel(job.model, job.microbatch).value()) {
    std::vector<LayerId> layers;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      layers.push_back(LayerId(static_cast<int>(i)));
    }
    store_ =
        train::ParameterStore::Create(model_, layout::LayOutParameters(model_, layers), *backend_)
            .value();
    EXPECT_TRUE(train::InitializeWeights(job, "/", *store_, *backend_).ok());
    layout_ = layout::LayOutStage(model_,
                                  {StageId(0), PpRank(0), LayerId(0), LayerId(std::ssize(layers))});
    stash_ = backend_->Allocate(layout_.stash_bytes, MemoryKind::kStash).value();
    scratch_ = backend_->Allocate(layout_.scratch_bytes, MemoryKind::kScratch).value();
    stage_.emplace(train::StageOptions{.model = model_,
                                       .layout = layout_,
                                       .parameters = *store_,
                                       .backend = *backend_,
                                       .scratch = scratch_.data(),
                                       .rotary_table = rotary_table_.data()});
  }

  const model::Model& model() const { return model_; }

  Tensors Weights() const {
    return ByName([](const train::ParameterRef& ref) { return ref.weight; });
  }

  void SetWeights(const Tensors& weights) {
    ForEachOwned([&](const train::ParameterRef& ref) {
      std::ranges::copy(weights.at(ref.parameter->name), ref.weight);
    });
  }

  // Sum of the microbatch's token losses; its gradients over `scored` are stored, or added.
  double Backward(const train::TokenView& view, std::int64_t scored, bool accumulate) {
    const train::StageBuffers buffers{.view = view, .stash = stash_.data()};
    const auto scale = static_cast<float>(1.0 / static_cast<double>(scored));
    double loss = 0;
    EXPECT_TRUE(stage_->Forward(buffers, {.sum = &loss, .scale = scale}).ok());
    EXPECT_TRUE(stage_->InputGrad(buffers).ok());
    EXPECT_TRUE(stage_->WeightGrad({&buffers, 1}, accumulate).ok());
    return loss;
  }

  // Each use's own, in the order of layers.
  std::vector<std::vector<float>> Gradients() const {
    std::vector<std::vector<float>> gradients;
    for (const train::LayerParameters& layer : store_->layers()) {
      gradients.emplace_back(layer.gradients.begin(), layer.gradients.end());
    }
    return gradients;
  }

  // Puts sums of Gradients() in their place and adds the second use of a tied weight to the first.
  Tensors Complete(const std::vector<std::vector<float>>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      std::ranges::copy(gradients[i], store_->layers()[i].gradients.begin());
    }
    const auto [own, tied] = store_->tied_uses();
    if (tied != nullptr) {
      for (std::int64_t i = 0; i < own->parameter->elements(); ++i) {
        own->gradient[i] += tied->gradient[i];
      }
    }
    return ByName([](const train::ParameterRef& ref) { return ref.gradient; });
  }

  void Adamw(const backend::AdamwUpdate& update) { EXPECT_TRUE(backend_->Run(update).ok()); }

 private:
  template <class Function>
  void ForEachOwned(const Function& function) const {
    for (const train::LayerParameters& layer : store_->layers()) {
      for (const train::ParameterRef& ref : layer.refs) {
        if (ref.m != nullptr) function(ref);
      }
    }
  }

  template <class Part>
  Tensors ByName(const Part& part) const {
    Tensors tensors;
    ForEachOwned([&](const train::ParameterRef& ref) {
      tensors[ref.parameter->name].assign(part(ref), part(ref) + ref.parameter->elements());
    });
    return tensors;
  }

  const model::Model model_;
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  std::unique_ptr<train::ParameterStore> store_;
  const std::vector<float> rotary_table_ = model::RotaryTable(model_.config);
  layout::StageLayout layout_;
  std::optional<train::Stage> stage_;
  backend::Buffer stash_, scratch_;
};

// The recurrences. `weights_[t]` are those after t updates.
class Recurrence {
 public:
  // stop_every: steps after which the pipeline is emptied, as for a validation.
  Recurrence(const config::JobSpec& job, const mesh::Partition& partition, int stop_every)
      : job_(job),
        stop_every_(stop_every),
        dp_size_(job.parallelism.data.value_or(1)),
        num_microbatches_(job.MicrobatchesPerStep(dp_size_)),
        num_stages_(static_cast<int>(partition.size())),
        whole_(job),
        source_(worker_data::TokenSource::Open(worker_data::TrainingTokens(job, "/", dp_size_))
                    .value()),
        weights_({whole_.Weights()}) {
    for (const mesh::Stage& stage : partition) {
      for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
        for (const model::Parameter& parameter : whole_.model().layers[id.value()].parameters) {
          stage_of_[parameter.name] = stage.id.value();
        }
      }
    }
    for (const auto& [name, values] : weights_[0]) {
      m_[name].resize(values.size());
      v_[name].resize(values.size());
    }
  }

  // w(t+1) = w(t) - step(gradient of microbatch t, stage s at w(t - (S-1-s))).
  RunResult PipeDream() {
    RunResult result;
    for (int step = 0; step < job_.steps; ++step) {
      const int flushed = step / stop_every_ * stop_every_ * num_microbatches_;
      double loss = 0;
      std::int64_t tokens = 0;
      for (int m = 0; m < num_microbatches_; ++m) {
        const int t = step * num_microbatches_ + m;
        Tensors met = weights_[t];
        for (auto& [name, values] : met) {
          const int age = num_stages_ - 1 - stage_of_.at(name);
          values = weights_[std::max(flushed, t - age)].at(name);
        }
        whole_.SetWeights(met);
        const Batch batch = Read(step, 0, m);
        loss += whole_.Backward(batch.view(), batch.scored(), false);
        tokens += batch.scored();
        Update(whole_.Complete(whole_.Gradients()), step);
      }
      Report(loss, tokens, step, result);
    }
    return result;
  }

  // w(t+1) = w(t) - step(gradient of step t at w(t-1)).
  RunResult PipeDream2Bw() {
    RunResult result;
    for (int step = 0; step < job_.steps; ++step) {
      const int flushed = step / stop_every_ * stop_every_;
      whole_.SetWeights(weights_[std::max(flushed, step - 1)]);
      const std::int64_t tokens = source_->CountScored(StepId(step + 1));
      double loss = 0;
      std::vector<std::vector<float>> gradients;
      for (int dp = 0; dp < dp_size_; ++dp) {
        double loss_of_replica = 0;
        for (int m = 0; m < num_microbatches_; ++m) {
          loss_of_replica += whole_.Backward(Read(step, dp, m).view(), tokens, m > 0);
        }
        loss += loss_of_replica;
        Add(whole_.Gradients(), gradients);
      }
      Update(whole_.Complete(gradients), step);
      Report(loss, tokens, step, result);
    }
    return result;
  }

 private:
  struct Batch {
    std::vector<std::int32_t> tokens, targets;
    train::TokenView view() const { return {.tokens = tokens.data(), .targets = targets.data()}; }
    std::int64_t scored() const {
      return std::ssize(targets) - std::ranges::count(targets, backend::kIgnoredTarget);
    }
  };

  Batch Read(int step, int dp, int m) const {
    const std::size_t rows = static_cast<std::size_t>(job_.microbatch) * job_.model.context;
    Batch batch{.tokens = std::vector<std::int32_t>(rows), .targets = batch.tokens};
    source_->Read(StepId(step + 1), DpRank(dp), MicrobatchId(m), batch.tokens, batch.targets);
    return batch;
  }

  static void Add(const std::vector<std::vector<float>>& from,
                  std::vector<std::vector<float>>& into) {
    if (into.empty()) {
      into = from;
      return;
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      for (std::size_t j = 0; j < from[i].size(); ++j) into[i][j] += from[i][j];
    }
  }

  void Update(const Tensors& gradients, int step) {
    Tensors next = weights_.back();
    std::vector<backend::UpdatedTensor> tensors;
    for (const model::Parameter* parameter : whole_.model().AllParameters()) {
      const std::string& name = parameter->name;
      tensors.push_back({.parameter = next[name].data(),
                         .gradient = gradients.at(name).data(),
                         .m = m_[name].data(),
                         .v = v_[name].data(),
                         .count = parameter->elements(),
                         .weight_decay = parameter->decayed() ? job_.adamw.weight_decay : 0});
    }
    whole_.Adamw({.tensors = tensors,
                  .step = std::ssize(weights_),
                  .learning_rate =
                      config::LearningRate(job_.adamw.learning_rate, job_.lr_schedule, step + 1),
                  .beta1 = job_.adamw.beta1,
                  .beta2 = job_.adamw.beta2,
                  .epsilon = job_.adamw.epsilon});
    if (job_.error_feedback > 0) {
      for (auto& [name, values] : next) FeedBack(weights_.back().at(name), values, last_[name]);
    }
    weights_.push_back(std::move(next));
  }

  // Moves `after` on by as much of the update as differs from the last one.
  void FeedBack(const std::vector<float>& before, std::vector<float>& after,
                std::vector<float>& last) const {
    last.resize(after.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      const float update = after[i] - before[i];
      // The product is exact with a factor that is a power of 2, so nothing is fused.
      after[i] += static_cast<float>(job_.error_feedback) * (update - last[i]);
      last[i] = update;
    }
  }

  void Report(double loss, std::int64_t tokens, int step, RunResult& result) const {
    result.steps.push_back({.loss = loss / static_cast<double>(tokens),
                            .learning_rate = config::LearningRate(job_.adamw.learning_rate,
                                                                  job_.lr_schedule, step + 1),
                            .tokens = tokens});
    result.weights = weights_.back();
  }

  const config::JobSpec job_;
  const int stop_every_, dp_size_, num_microbatches_, num_stages_;
  WholeModel whole_;
  const std::unique_ptr<worker_data::TokenSource> source_;
  std::vector<Tensors> weights_;
  Tensors m_, v_, last_;
  std::map<std::string, int> stage_of_;  // by parameter
};

class DelayedGradients : public ::testing::Test {
 protected:
  static constexpr int kContext = 11, kVocab = 37, kSteps = 4;

  DelayedGradients() {
    std::string pattern = (fs::temp_directory_path() / "takt-delayed-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    WriteTokens(60);
  }
  ~DelayedGradients() override { fs::remove_all(directory_); }

  // Rows with targets that are not scored, of another number in each: so a microbatch's mean is not
  // its share of the step's.
  void WriteTokens(int rows) const {
    std::vector<std::int32_t> tokens, targets;
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < kContext; ++i) {
        tokens.push_back((row * row * 5 + i * i * 3 + i) % kVocab);
        targets.push_back(i < row % 7 ? backend::kIgnoredTarget
                                      : (row * row * 5 + (i + 1) * (i + 1) * 3 + i) % kVocab);
      }
    }
    const std::size_t bytes = tokens.size() * sizeof(std::int32_t);
    const auto entry = [&](const char* name, std::size_t begin) {
      return "\"" + std::string(name) + "\":{\"dtype\":\"I32\",\"shape\":[" + std::to_string(rows) +
             "," + std::to_string(kContext) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
             std::to_string(begin + bytes) + "]}";
    };
    const std::string header = "{" + entry("tokens", 0) + "," + entry("targets", bytes) + "}";
    const std::uint64_t size = header.size();
    std::ofstream file(directory_ / "train.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << header;
    for (const auto* values : {&tokens, &targets}) {
      file.write(reinterpret_cast<const char*>(values->data()),
                 static_cast<std::streamsize>(bytes));
    }
  }

  config::JobSpec Job(const std::string& schedule, int ranks, int microbatches) const {
    config::JobSpec job;
    job.name = "delayed";
    job.model = {.family = model::Family::kLlama,
                 .layers = 4,
                 .hidden = 12,
                 .heads = 2,
                 .kv_heads = 1,
                 .inner = 20,
                 .context = kContext,
                 .positions = kContext,
                 .vocab = kVocab,
                 .tied_head = false};
    job.train = {{.path = (directory_ / "train.safetensors").string(),
                  .format = config::DataFormat::kSafetensors}};
    job.global_batch = 2 * microbatches;
    job.microbatch = 2;
    job.adamw = {.learning_rate = 3e-2, .clip_norm = 0};
    job.lr_schedule.warmup_steps = 2;
    job.steps = kSteps;
    job.seed = 7;
    job.parallelism = {
        .pipeline = ranks, .data = 1, .chunks = 1, .threads = 1, .schedule = schedule};
    return job;
  }

  static RunResult Train(const config::JobSpec& job, int stop_every = kSteps) {
    absl::StatusOr<RunResult> result = TrainInProcess({.job = job, .stop_every = stop_every});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  static Recurrence RecurrenceOf(const config::JobSpec& job, int stop_every = kSteps) {
    const plan::Plan plan = plan::MakePlan(job, {.max_workers = 8}).value();
    return Recurrence(job, plan.partition, stop_every);
  }

  static void ExpectSame(const RunResult& trained, const RunResult& expected) {
    ASSERT_EQ(trained.steps.size(), expected.steps.size());
    for (std::size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_EQ(trained.steps[i].loss, expected.steps[i].loss) << "step " << i + 1;
      EXPECT_EQ(trained.steps[i].learning_rate, expected.steps[i].learning_rate);
      EXPECT_EQ(trained.steps[i].tokens, expected.steps[i].tokens);
    }
    EXPECT_EQ(trained.weights, expected.weights);
  }

  fs::path directory_;
};

constexpr std::pair<int, int> kSizes[] = {{1, 1}, {1, 3}, {2, 2}, {2, 3}, {3, 4}, {4, 4}, {4, 6}};

std::string NameOf(int ranks, int microbatches) {
  return std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches";
}

TEST_F(DelayedGradients, OfPipeDreamAreOfTheWeightsThatEachForwardMet) {
  for (const auto& [ranks, microbatches] : kSizes) {
    SCOPED_TRACE(NameOf(ranks, microbatches));
    const config::JobSpec job = Job("pipedream", ranks, microbatches);
    ExpectSame(Train(job), RecurrenceOf(job).PipeDream());
  }
}

TEST_F(DelayedGradients, OfPipeDream2BwAreOfTheWeightsBeforeTheLastUpdate) {
  for (const auto& [ranks, microbatches] : kSizes) {
    SCOPED_TRACE(NameOf(ranks, microbatches));
    const config::JobSpec job = Job("pipedream-2bw", ranks, microbatches);
    ExpectSame(Train(job), RecurrenceOf(job).PipeDream2Bw());
  }
}

// B makes again what F did not keep, with the weights that F met.
TEST_F(DelayedGradients, AreTheSameWhereStagesRecompute) {
  config::JobSpec job = Job("pipedream", 3, 4);
  const RunResult expected = RecurrenceOf(job).PipeDream();
  job.parallelism.recompute = {model::Recompute::kFull};
  ExpectSame(Train(job), expected);
}

TEST_F(DelayedGradients, OfPipeDream2BwAreSummedOverReplicasAndUsesOfATiedHead) {
  for (const int dp : {1, 2}) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(NameOf(ranks, 6 / dp) + ", " + std::to_string(dp) + " replicas");
      config::JobSpec job = Job("pipedream-2bw", ranks, 6);
      job.parallelism.data = dp;
      job.model.tied_head = true;
      ExpectSame(Train(job), RecurrenceOf(job).PipeDream2Bw());
    }
  }
}

// A validation empties the pipeline: what follows begins with one version of the weights.
TEST_F(DelayedGradients, BeginAnewWhereThePipelineStops) {
  for (const int stop_every : {1, 3}) {
    SCOPED_TRACE("stops every " + std::to_string(stop_every));
    config::JobSpec job = Job("pipedream", 3, 4);
    ExpectSame(Train(job, stop_every), RecurrenceOf(job, stop_every).PipeDream());
    EXPECT_NE(Train(job, stop_every).weights, Train(job).weights);
    job = Job("pipedream-2bw", 3, 4);
    ExpectSame(Train(job, stop_every), RecurrenceOf(job, stop_every).PipeDream2Bw());
    EXPECT_NE(Train(job, stop_every).weights, Train(job).weights);
  }
}

TEST_F(DelayedGradients, AreCorrectedByErrorFeedback) {
  for (const double coefficient : {0.5, 1.0}) {
    for (const int dp : {1, 2}) {
      SCOPED_TRACE(std::to_string(dp) + " replicas, " + std::to_string(coefficient));
      config::JobSpec job = Job("pipedream-2bw", 3, 6);
      job.parallelism.data = dp;
      job.model.tied_head = true;
      const RunResult plain = Train(job);
      job.error_feedback = coefficient;
      const RunResult corrected = Train(job);
      ExpectSame(corrected, RecurrenceOf(job).PipeDream2Bw());
      EXPECT_NE(corrected.weights, plain.weights);
      ExpectSame(Train(job, /*stop_every=*/2), RecurrenceOf(job, 2).PipeDream2Bw());
    }
  }
}

TEST_F(DelayedGradients, AreNotThoseOfAFlush) {
  const RunResult synchronous = Train(Job("1f1b", 3, 4));
  for (const char* family : {"pipedream", "pipedream-2bw"}) {
    const RunResult asynchronous = Train(Job(family, 3, 4));
    ASSERT_EQ(asynchronous.steps.size(), synchronous.steps.size());
    EXPECT_NE(asynchronous.steps[2].loss, synchronous.steps[2].loss) << family;
    EXPECT_NE(asynchronous.weights, synchronous.weights) << family;
  }
  // With a flush after every step 2BW has nothing to delay.
  ExpectSame(Train(Job("pipedream-2bw", 3, 4), 1), synchronous);
}

// Muon reads the newest version of a matrix, and writes the next one.
TEST_F(DelayedGradients, VanishWithMuonTooWithAFlushAfterEveryStep) {
  config::JobSpec job = Job("1f1b", 3, 4);
  job.muon = config::Muon{.learning_rate = 3e-2, .clip_norm = 0};
  const RunResult synchronous = Train(job);
  job.parallelism.schedule = "pipedream-2bw";
  ExpectSame(Train(job, 1), synchronous);
  EXPECT_NE(Train(job).weights, synchronous.weights);
}

// Each version has matrices of its own packed for products in bf16.
TEST_F(DelayedGradients, VanishInBf16TooWithAFlushAfterEveryStep) {
  config::JobSpec job = Job("1f1b", 3, 4);
  job.precision = config::Precision::kBf16;
  const RunResult synchronous = Train(job);
  job.parallelism.schedule = "pipedream-2bw";
  ExpectSame(Train(job, 1), synchronous);
  EXPECT_NE(Train(job).weights, synchronous.weights);
}

// Of the weights that a stop leaves, whatever version the last backward used.
TEST_F(DelayedGradients, LeaveTheNewestWeightsToAValidation) {
  config::JobSpec job = Job("pipedream-2bw", 3, 4);
  job.validation = {
      .path = job.train[0].path, .format = config::DataFormat::kSafetensors, .batches = 2};
  const RunResult stopped_often = Train(job, 1);
  job.parallelism.schedule = "1f1b";
  const RunResult synchronous = Train(job);
  EXPECT_EQ(stopped_often.validation_loss, synchronous.validation_loss);
  EXPECT_TRUE(synchronous.validation_loss.has_value());
}

}  // namespace
}  // namespace takt::numerics
