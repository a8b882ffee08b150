// SPDX-License-Identifier: Apache-2.0
// Tests that the number of replicas that share the experts of blocks changes no bit.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "tests/numerics/bit_equality.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/backend/forwarding_backend.h"

namespace takt::numerics {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The backend of a device that has no more memory once it computes.
class FullOnceItComputes final : public backend::ForwardingBackend {
 public:
  explicit FullOnceItComputes(std::unique_ptr<backend::Backend> inner)
      : ForwardingBackend(*inner), inner_(std::move(inner)) {}

  absl::Status Run(const backend::Op& op) override {
    computes_ = computes_ || std::holds_alternative<backend::RouteTokens>(op);
    return ForwardingBackend::Run(op);
  }
  absl::StatusOr<backend::Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind) override {
    if (computes_) return absl::ResourceExhaustedError("the device is full");
    return ForwardingBackend::AllocateInOrder(bytes, kind);
  }

 private:
  const std::unique_ptr<backend::Backend> inner_;
  bool computes_ = false;
};

class FullBackends final : public backend::BackendFactory {
 public:
  absl::StatusOr<std::unique_ptr<backend::Backend>> CreateCompute() override {
    absl::StatusOr<std::unique_ptr<backend::Backend>> inner = inner_->CreateCompute();
    if (!inner.ok()) return inner;
    return std::make_unique<FullOnceItComputes>(*std::move(inner));
  }
  absl::StatusOr<std::unique_ptr<backend::MemoryBackend>> CreateMemory(
      backend::StreamKind kind) override {
    return inner_->CreateMemory(kind);
  }
  bool memory_is_host() const override { return false; }

 private:
  const std::unique_ptr<backend::BackendFactory> inner_ = backend::CreateDiscreteBackends({});
};

class ExpertRanks : public BitEquality {
 protected:
  // Four replicas, of which each has four microbatches of a step.
  config::JobSpec SharedJob(int experts = 8, int chosen = 2) const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.model = Mixtral(job.model);
    job.model.mixture->experts = experts;
    job.model.mixture->chosen = chosen;
    job.global_batch = 16;
    job.steps = 3;
    job.parallelism = {.pipeline = 1, .data = 4, .threads = 1, .schedule = "1f1b"};
    return job;
  }

  static RunResult TrainWith(config::JobSpec job, int expert) {
    job.parallelism.expert = expert;
    return Train(job);
  }

  static void ExpectSameBitsOverRanks(const config::JobSpec& job) {
    const RunResult one = TrainWith(job, 1);
    for (const int expert : {2, 4}) {
      SCOPED_TRACE("expert " + std::to_string(expert));
      ExpectSameBits(one, TrainWith(job, expert));
    }
  }
};

TEST_F(ExpertRanks, HaveTheBitsOfReplicasThatShareNone) { ExpectSameBitsOverRanks(SharedJob()); }

TEST_F(ExpertRanks, HaveThemUnderEverySchedule) {
  const RunResult one = TrainWith(SharedJob(), 1);
  for (const schedule::Family& family : OneWayFamilies()) {
    for (const int expert : {2, 4}) {
      SCOPED_TRACE(std::string(family.name) + " expert " + std::to_string(expert));
      config::JobSpec job = SharedJob();
      job.parallelism.schedule = family.name;
      job.parallelism.pipeline = 2;
      job.parallelism.expert = expert;
      ExpectSameBits(one, Train(job));
    }
  }
}

TEST_F(ExpertRanks, HaveThemOnTwoCopiesOfTheWeights) {
  config::JobSpec job = SharedJob();
  job.global_batch = 24;
  const RunResult one = TrainWith(job, 1);
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "dualpipe"};
  ExpectSameBits(one, TrainWith(job, 1));
  ExpectSameBits(one, TrainWith(job, 2));
}

TEST_F(ExpertRanks, HaveThemInBf16) {
  config::JobSpec job = SharedJob();
  job.precision = config::Precision::kBf16;
  ExpectSameBitsOverRanks(job);
}

TEST_F(ExpertRanks, HaveThemWithOtherOptimizers) {
  for (const int optimizer : {0, 1, 2, 3}) {
    SCOPED_TRACE(optimizer);
    config::JobSpec job = SharedJob();
    job.steps = 2;
    if (optimizer == 0) job.lion = config::Lion{.learning_rate = 1e-3, .clip_norm = 0.5};
    if (optimizer == 1) job.sgd = config::Sgd{.learning_rate = 0.1, .nesterov = true};
    if (optimizer == 2) job.muon = config::Muon{.learning_rate = 3e-3, .clip_norm = 0.5};
    if (optimizer == 3) job.groups = {{.parameters = "*norm*", .learning_rate_scale = 0.5}};
    ExpectSameBitsOverRanks(job);
  }
}

// Each number of the stream is a document, which ends with a blank.
TEST_F(ExpertRanks, HaveThemOfPackedDocumentsAndWhereLayersPassOnBf16) {
  config::JobSpec job = SharedJob();
  job.steps = 2;
  job.documents = config::Documents::kSeparate;
  job.document_end = ' ';
  ExpectSameBitsOverRanks(job);
  job.precision = job.residual = config::Precision::kBf16;
  ExpectSameBitsOverRanks(job);
}

TEST_F(ExpertRanks, HaveThemWhateverIsRecomputed) {
  const RunResult one = TrainWith(SharedJob(), 1);
  for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
    for (const char* const schedule : {"1f1b", "zb-h1"}) {
      SCOPED_TRACE(std::string(schedule) + " " + std::string(model::Name(mode)));
      config::JobSpec job = SharedJob();
      job.parallelism.pipeline = 2;
      job.parallelism.schedule = schedule;
      job.parallelism.recompute = {mode};
      ExpectSameBits(one, TrainWith(job, 2));
    }
  }
}

TEST_F(ExpertRanks, HaveThemWithQwensNormsAndDenseBlocks) {
  config::JobSpec job = SharedJob();
  job.model = Qwen3Moe(job.model);
  job.model.mixture->experts = 8;
  ExpectSameBitsOverRanks(job);
}

TEST_F(ExpertRanks, HaveThemOverPartitionsAndThreads) {
  config::JobSpec job = SharedJob();
  const RunResult one = TrainWith(job, 1);
  for (const int threads : {1, 3}) {
    job.parallelism.pipeline = 3;
    job.parallelism.threads = threads;
    job.parallelism.schedule = "1f1b";
    job.parallelism.stage_layers = {1, 3, 0};
    ExpectSameBits(one, TrainWith(job, 2));
  }
}

// A bias moves by what all ranks counted.
TEST_F(ExpertRanks, HaveThemWithBiases) {
  config::JobSpec job = SharedJob();
  job.model.mixture->scores = model::RouterScores::kSigmoid;
  job.model.mixture->bias_rate = 0.01;
  ExpectSameBitsOverRanks(job);
}

// With one expert of eight a token, some rank gets more rows than the stash has room for.
TEST_F(ExpertRanks, HaveThemWhereRowsAreManyMoreOnOneRank) {
  config::JobSpec job = SharedJob(/*experts=*/8, /*chosen=*/1);
  job.model.mixture->auxiliary_loss = 0;
  job.steps = 6;
  job.adamw.learning_rate = 3e-2;
  ExpectSameBitsOverRanks(job);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  job.parallelism.recompute = {model::Recompute::kFull};
  ExpectSameBitsOverRanks(job);
}

// The ranks meet in memory of their devices. With one expert of a token, some rank gets more rows
// than the stash has room for.
TEST_F(ExpertRanks, HaveThemOnDevices) {
  struct Case {
    const char* schedule;
    int pipeline, data, expert, chosen;
    model::Recompute recompute = model::Recompute::kNone;
  };
  for (const Case& c :
       {Case{"1f1b", 1, 4, 2, 2}, Case{"1f1b", 1, 4, 4, 1},
        Case{"zb-h1", 2, 4, 2, 1, model::Recompute::kFull},
        Case{"1f1b", 2, 4, 4, 2, model::Recompute::kSelective}, Case{"dualpipe", 2, 2, 2, 2}}) {
    SCOPED_TRACE(std::string(c.schedule) + " expert " + std::to_string(c.expert));
    config::JobSpec job = SharedJob(/*experts=*/8, c.chosen);
    job.model.mixture->auxiliary_loss = 0;
    job.adamw.learning_rate = 3e-2;
    job.parallelism.pipeline = c.pipeline;
    job.parallelism.data = c.data;
    job.parallelism.schedule = c.schedule;
    job.parallelism.recompute = {c.recompute};
    const RunResult one = TrainWith(job, 1);
    job.parallelism.expert = c.expert;
    for (const bool lazy : {false, true}) {
      ExpectSameBits(one, Trained({.job = job,
                                   .planned_for = config::DeviceKind::kCuda,
                                   .make_backends = [lazy](int threads) {
                                     return backend::CreateDiscreteBackends(
                                         {.threads = threads, .lazy = lazy, .prepared_only = true});
                                   }}));
    }
  }
}

TEST_F(ExpertRanks, SayWhichRowsHaveNoRoomOnADevice) {
  config::JobSpec job = SharedJob(/*experts=*/8, /*chosen=*/1);
  job.model.mixture->auxiliary_loss = 0;
  job.steps = 6;
  job.adamw.learning_rate = 3e-2;
  job.parallelism.expert = 4;
  const absl::Status status =
      TrainInProcess({.job = job,
                      .make_backends = [](int) -> std::unique_ptr<FullBackends> {
                        return std::make_unique<FullBackends>();
                      }})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("parallelism.expert is 4: "),
                    HasSubstr("rows came to the experts of this rank, which has room for "),
                    HasSubstr("the device is full"), HasSubstr("use a smaller microbatch")));
}

TEST_F(ExpertRanks, GoOnFromTheStateOfAnyNumber) {
  config::JobSpec job = SharedJob();
  const RunResult straight = TrainWith(job, 1);
  job.steps = 1;
  job.parallelism.expert = 2;
  RunResult state = Train(job);
  for (const int expert : {4, 1}) {
    job.steps += 1;
    job.parallelism.expert = expert;
    RunResult next = Trained({.job = job, .resume = &state});
    next.steps.insert(next.steps.begin(), state.steps.begin(), state.steps.end());
    state = std::move(next);
  }
  ExpectSameBits(straight, state);
}

TEST_F(ExpertRanks, RefuseWhatTheyCannotDoYet) {
  config::JobSpec job = SharedJob();
  job.parallelism.expert = 2;
  const auto refusal = [](const config::JobSpec& refused) {
    return std::string(TrainInProcess({.job = refused}).status().message());
  };
  config::JobSpec other = job;
  other.parallelism.shard = config::Shard::kOptimizer;
  EXPECT_THAT(refusal(other), HasSubstr("both experts and the optimizer's state"));
  other = job;
  other.parallelism.schedule = "pipedream-2bw";
  other.parallelism.pipeline = 2;
  other.adamw.clip_norm = 0;
  EXPECT_THAT(refusal(other), HasSubstr("must be 1 under pipedream-2bw"));
  other = job;
  other.parallelism.expert = 3;
  EXPECT_THAT(refusal(other), HasSubstr("must divide model.experts.count (8)"));
  other = job;
  other.parallelism.data = 3;
  other.global_batch = 12;
  EXPECT_THAT(refusal(other), HasSubstr("must divide parallelism.data (3)"));
}

}  // namespace
}  // namespace takt::numerics
