// SPDX-License-Identifier: Apache-2.0
// The cases of tests/golden/models: float64 references, and the tolerances that were chosen with
// them for each precision.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/config/job_spec.h"
#include "tests/numerics/in_process_run.h"

namespace takt::numerics {

struct GoldenStep {
  double learning_rate = 0, loss = 0, grad_norm = 0;
  std::int64_t scored = 0;
  // Of models with experts: the tokens of each expert, for each block that has some.
  std::vector<std::vector<std::int64_t>> expert_tokens;
};

struct GoldenCase {
  std::string name;
  std::string directory;
  config::JobSpec job;  // ten steps of the case: model, weights, data, optimizer; parallelism is
                        // left to the test
  std::vector<GoldenStep> steps;
  double final_loss = 0;
  Tensors expected;       // grad.NAME, act.X, act_grad.X, logits
  Tensors final_weights;  // by NAME
  Tensors initial_weights;
  // [begin, end) of tensors whose gradient is zero in exact arithmetic, element-wise.
  struct Range {
    std::string tensor;
    std::size_t begin = 0, end = 0;
  };
  std::vector<Range> zero_gradients;
};

// Absolute, relative to the largest magnitude of the tensor, or of the l2 norm.
struct Tolerances {
  double loss_abs, grad_norm_rel;
  double logits_abs, logits_l2;
  double activations_abs, activations_l2, activation_gradients_l2;
  double gradients_max, gradients_l2, gradients_l2_overall, zero_gradients_abs;
  double updates_l2_overall, updates_l2, key_bias_updates_l2;
  double weights_abs, weights_at_zero_gradients_abs;
};
const Tolerances& TolerancesOf(config::Precision precision);

// Fails the running test and returns an empty case if the files cannot be read.
GoldenCase LoadGolden(const std::string& name);

// The F32 tensors of a safetensors file; throws if it cannot be read.
Tensors ReadTensors(const std::string& path);

// Compares quantities with what is allowed, keeps the worst share of each kind, prints them, and
// fails the test on any share above 1.
class Comparison {
 public:
  explicit Comparison(std::string title) : title_(std::move(title)) {}
  ~Comparison();  // prints

  // |got - want| <= allowed
  void Absolute(const std::string& kind, const std::string& what, double got, double want,
                double allowed);
  // max |got - want| <= allowed
  void MaxAbsolute(const std::string& kind, const std::string& what, const std::vector<float>& got,
                   const std::vector<float>& want, double allowed);
  // max |got - want| / max |want| <= allowed
  void MaxRelative(const std::string& kind, const std::string& what, const std::vector<float>& got,
                   const std::vector<float>& want, double allowed);
  // ||got - want|| / ||want|| <= allowed
  void RelativeL2(const std::string& kind, const std::string& what, const std::vector<float>& got,
                  const std::vector<float>& want, double allowed);

 private:
  struct Worst {
    std::string kind, what;
    double share = 0;
  };
  void Record(const std::string& kind, const std::string& what, double difference, double allowed);

  const std::string title_;
  std::vector<Worst> worst_;
};

// Entries of a tensor: those whose gradient is zero in exact arithmetic, or all others.
std::vector<float> Pick(const GoldenCase& golden, const std::string& tensor,
                        const std::vector<float>& values, bool zero_gradients);

// Compares the gradients of the first step, of every parameter, with the reference.
void CompareGradients(const GoldenCase& golden, const Tensors& gradients, const Tolerances& allowed,
                      Comparison& compare);

// Compares the weights after the last step, and how far they moved, with the reference.
void CompareFinalWeights(const GoldenCase& golden, const Tensors& weights,
                         const Tolerances& allowed, Comparison& compare);

// Compares loss and norm of each step with the reference.
void CompareSteps(const GoldenCase& golden, const RunResult& run, const Tolerances& allowed,
                  Comparison& compare);

// Compares a run of one step in f32 with the reference: its loss and norm, and all gradients.
void CompareFirstStep(const GoldenCase& golden, const RunResult& run, const std::string& title);

// Compares a run of all steps in f32 with the reference: their losses and norms, and the weights.
void CompareTraining(const GoldenCase& golden, const RunResult& run, const std::string& title);

}  // namespace takt::numerics
