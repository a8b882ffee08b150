// SPDX-License-Identifier: Apache-2.0
// Measures every kernel on the shapes of a GPT-2 step. On the CPU it stands beside oneDNN's own
// matmuls and memcpy, on a GPU beside the rates of a large product and of a large copy.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/model/vocabulary.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/device.h"
#include "tests/bench/reference_rates.h"
#include "worker/backend/backend.h"
#include "worker/backend/kernel_plans.h"
#include "worker/backend/plan_cache.h"

namespace takt::bench::kernels_command {
namespace {

struct Row {
  std::string name;
  double seconds = 0, flops = 0,
         bytes = 0;              // of one call; bytes: each operand is read or written once
  int count = 1;                 // calls in a step
  double reference_seconds = 0;  // how long the same work takes at the limit
};

struct Options : CommonOptions {
  int threads = 1, batch = 8, context = 256, runs = 3;
  std::string device = "cpu", precision = "f32";  // bf16 applies to products on a GPU
  std::string only;
  bool any_order = false;
};

constexpr std::int64_t kRandomValues = 1 << 22;  // the values repeat after that many

class KernelBench {
 public:
  KernelBench(const Options& options, backend::BackendFactory& backends)
      : options_(options), backend_(backends.CreateCompute().value()) {
    model_.layers = 12;
    model_.hidden = 768;
    model_.heads = 12;
    model_.inner = 4 * 768;
    model_.vocab = 50257;
    rows_ = std::int64_t{options.batch} * options.context;
    pool_ = Random(rows_ * Padded(model_.vocab) + 4 * Padded(model_.vocab) * model_.hidden);
  }

  std::vector<Row> Run() {
    if (on_gpu()) {
      square_flops_per_second_ = MatmulFlopsPerSecond(*backend_, bf16(), options_.runs);
      copy_bytes_per_second_ = CopyBytesPerSecond(*backend_, options_.runs);
    } else {
      copy_bytes_per_second_ = MemcpyBytesPerSecond(options_.threads);
    }
    for (const StepMatmul& m : StepMatmuls(model_, rows_)) Matmul(m);
    Layers();
    Model();
    return rows_out_;
  }

 private:
  // A block's norms: the gradient of the input alone, of the weights alone, and all that is summed
  // over the same rows with the former.
  void NormBackward(const float* d_output, const float* x, float* d_input, float* small) {
    const std::int64_t n = rows_, c = model_.hidden;
    const int norms = 2 * model_.layers + 1;
    backend::LayerNormBackwardInput input{.d_output = d_output,
                                          .x = x,
                                          .weight = small,
                                          .mean = small + c,
                                          .rstd = small + c + n,
                                          .residual_gradient = d_input,
                                          .d_input = d_input,
                                          .rows = n,
                                          .columns = c};
    Elementwise("layer norm I", input, n * c, 4, norms);
    float* const sums = small + c + 2 * n;
    Elementwise("layer norm W",
                backend::LayerNormBackwardWeights{.d_output = d_output,
                                                  .x = x,
                                                  .mean = small + c,
                                                  .rstd = small + c + n,
                                                  .d_weight = sums,
                                                  .d_bias = sums + c,
                                                  .rows = n,
                                                  .columns = c},
                n * c, 2, norms);
    input.sums = {.d_weight = sums,
                  .d_bias = sums + c,
                  .of_residual_gradient = sums + 2 * c,
                  .of_d_input = sums + 3 * c};
    Elementwise("layer norm I with sums", input, n * c, 4, norms);
  }

  backend::Buffer Random(std::int64_t count) {
    backend::Buffer buffer =
        backend_->Allocate(static_cast<std::size_t>(count) * sizeof(float), MemoryKind::kScratch)
            .value();
    std::vector<float> values(static_cast<std::size_t>(std::min(count, kRandomValues)));
    std::uint32_t state = 1;
    for (float& value : values) {
      state = state * 1664525 + 1013904223;
      value = static_cast<float>(state >> 8) * 0x1p-23F - 1;
      if (bf16()) value = TwoInBf16(value);
    }
    for (std::int64_t begin = 0; begin < count; begin += kRandomValues) {
      const std::int64_t part = std::min(count - begin, kRandomValues);
      const auto source = std::as_bytes(std::span(values).first(static_cast<std::size_t>(part)));
      TAKT_CHECK(
          backend_->CopyFromHost(source, reinterpret_cast<std::byte*>(buffer.floats() + begin))
              .ok());
    }
    TAKT_CHECK(backend_->Synchronize().ok());
    return buffer;
  }

  bool Wanted(const std::string& name) const {
    return name.find(options_.only) != std::string::npos;
  }

  double Time(const backend::Op& op) { return OpSeconds(*backend_, op, options_.runs); }

  void Matmul(const StepMatmul& m) {
    if (!Wanted("matmul " + m.name)) return;
    float* a = pool_.floats();
    float* b = a + m.m * m.k;
    float* c = b + m.k * m.n;
    const backend::Matmul f32{.a = a,
                              .b = b,
                              .c = c,
                              .a_transposed = m.a_transposed,
                              .b_transposed = m.b_transposed,
                              .m = m.m,
                              .n = m.n,
                              .k = m.k};
    rows_out_.push_back(
        {"matmul " + m.name, bf16() ? Time(InBf16(m)) : Time(f32), m.flops(), 0, m.count,
         on_gpu() ? m.flops() / square_flops_per_second_
                  : OneDnnSeconds(m, model::Precision::kF32, options_.threads, options_.runs)});
  }

  // Returns the distance between rows of logits.
  static std::int64_t Padded(std::int64_t columns) { return (columns + 63) / 64 * 64; }

  // Returns the product as a step in bf16 has it on a GPU: with its epilogue, in the types that it
  // reads and writes, and with padded rows of logits.
  backend::Op InBf16(const StepMatmul& m) {
    const auto is = [&m](const char* prefix) { return m.name.rfind(prefix, 0) == 0; };
    const char pass = m.name.back();
    const bool head = is("head"), residual = is("proj") || is("fc2");
    float* a = pool_.floats();
    float* b = a + Padded(m.m) * Padded(m.k);
    float* c = b + Padded(m.k) * Padded(m.n);
    float* inner = c + m.m * Padded(m.n);
    float* small = inner + m.m * m.n;
    const auto halves = [](float* p) { return reinterpret_cast<backend::Bf16*>(p); };
    if (pass == 'W') {
      backend::MatmulTransposedBf16 op{.a = halves(a), .c = c, .m = m.m, .n = m.n, .k = m.k};
      op.b = residual ? backend::Operand(b) : backend::Operand(halves(b));
      if (head) op.a_stride = Padded(m.m);
      if (!head && !residual) op.column_sums = small;  // norms sum the gradients of the others
      return op;
    }
    backend::MatmulBf16 op{.b = halves(b), .m = m.m, .n = m.n, .k = m.k};
    op.a = residual && pass == 'I' ? backend::Operand(a) : backend::Operand(halves(a));
    op.c = residual && pass == 'F' ? backend::Output(c) : backend::Output(halves(c));
    if (pass == 'F' && !head) op.bias = small;
    if (pass == 'F' && residual) op.addend = c;
    if (head) (pass == 'F' ? op.c_stride : op.a_stride) = Padded(pass == 'F' ? m.n : m.k);
    if (m.name == "fc F") op.activation = backend::Activation::kGelu;
    if (m.name == "fc2 I") op.activation = backend::Activation::kGeluGrad;
    if (op.activation != backend::Activation::kNone) op.inner = halves(inner);
    return op;
  }

  // Returns a float near `value` whose two halves, read as bf16, are near it too.
  static float TwoInBf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return std::bit_cast<float>((bits & 0xffff0000U) | bits >> 16);
  }

  bool bf16() const { return options_.precision == "bf16"; }
  bool on_gpu() const { return !backend_->memory_is_host(); }

  // streams: how many tensors of `count` floats are read or written once.
  void Elementwise(const std::string& name, const backend::Op& op, std::int64_t count,
                   double streams, int times) {
    if (!Wanted(name)) return;
    const double bytes = streams * static_cast<double>(count) * sizeof(float);
    rows_out_.push_back({name, Time(op), 0, bytes, times, bytes / copy_bytes_per_second_});
  }

  void Layers() {
    const std::int64_t n = rows_, c = model_.hidden, inner = model_.inner;
    float* x = pool_.floats();
    float* y = x + n * inner;
    float* z = y + n * inner;
    float* small = z + n * inner;
    const int norms = 2 * model_.layers + 1;
    Elementwise("layer norm F",
                backend::LayerNormForward{.input = x,
                                          .weight = small,
                                          .bias = small,
                                          .output = z,
                                          .mean = small + c,
                                          .rstd = small + c + n,
                                          .rows = n,
                                          .columns = c},
                n * c, 2, norms);
    NormBackward(x, y, z, small);
    Elementwise("bias grad 4C", backend::BiasGrad{x, small, n, inner}, n * inner, 1, model_.layers);
    Elementwise("gelu F", backend::GeluForward{x, y, n * inner}, n * inner, 2, model_.layers);
    Elementwise("gelu I", backend::GeluBackward{x, y, z, n * inner}, n * inner, 3, model_.layers);
    Elementwise("add", backend::Add{x, y, z, n * c}, n * c, 3, model_.layers);

    const std::int64_t head_size = c / model_.heads;
    const backend::AttentionShape shape{
        options_.batch, options_.context, model_.heads, model_.heads, head_size, 3 * c, 3 * c, c};
    float* logsumexp = small;
    float* output = small + n * model_.heads;
    const auto tensor = [this](float* p, std::int64_t offset = 0) {
      return bf16() ? backend::Output(reinterpret_cast<backend::Bf16*>(p) + offset)
                    : backend::Output(p + offset);
    };
    // The mask is causal, so only half of each product is computed: two products forward and five
    // backward.
    const double product = static_cast<double>(n) * options_.context * static_cast<double>(c);
    const backend::AttentionForward forward{
        shape, tensor(x), tensor(x, c), tensor(x, 2 * c), tensor(output), logsumexp};
    const backend::AttentionBackward backward{
        shape,     tensor(x), tensor(x, c), tensor(x, 2 * c), tensor(output),
        logsumexp, tensor(y), tensor(z),    tensor(z, c),     tensor(z, 2 * c)};
    Attention("attention F", forward, 2 * product);
    Attention("attention I", backward, 5 * product);
    PackedAttention(forward, backward, product);
  }

  // Each sequence is eight documents, of T/16 to 3T/16 tokens. The limit is a third of the time
  // without documents. product: as of Layers.
  void PackedAttention(const backend::AttentionForward& forward,
                       const backend::AttentionBackward& backward, double product) {
    constexpr std::int64_t kSixteenths[] = {1, 3, 2, 2, 3, 1, 2, 2};
    constexpr double kSeen = 36.0 / 256;  // of the pairs of a query and a key without documents
    constexpr double kMostOfUnpacked = 1.0 / 3;
    std::vector<std::int32_t> starts;
    for (int sequence = 0; sequence < options_.batch; ++sequence) {
      std::int64_t before = 0;
      for (const std::int64_t length : kSixteenths) {
        const std::int64_t begin = options_.context * before / 16;
        before += length;
        const std::int64_t end = options_.context * before / 16;
        starts.insert(starts.end(), static_cast<std::size_t>(end - begin),
                      static_cast<std::int32_t>(begin));
      }
    }
    const auto bytes = std::as_bytes(std::span(starts));
    const backend::Buffer buffer = backend_->Allocate(bytes.size(), MemoryKind::kTokens).value();
    TAKT_CHECK(backend_->CopyFromHost(bytes, buffer.data()).ok());
    TAKT_CHECK(backend_->Synchronize().ok());
    const auto add = [&](const std::string& name, const auto& op, double flops) {
      if (!Wanted(name)) return;
      auto packed = op;
      packed.starts = reinterpret_cast<const std::int32_t*>(buffer.data());
      rows_out_.push_back({name, Time(packed), flops * kSeen, 0, 0, Time(op) * kMostOfUnpacked});
    };
    add("packed attn F", forward, 2 * product);
    add("packed attn I", backward, 5 * product);
  }

  // The limit is the time of as many FLOPs in a large square matmul.
  void Attention(const std::string& name, const backend::Op& op, double flops) {
    if (!Wanted(name)) return;
    if (square_flops_per_second_ == 0) {
      const StepMatmul square{.name = "square", .m = 2048, .n = 2048, .k = 2048};
      square_flops_per_second_ = square.flops() / OneDnnSeconds(square, model::Precision::kF32,
                                                                options_.threads, options_.runs);
    }
    rows_out_.push_back(
        {name, Time(op), flops, 0, model_.layers, flops / square_flops_per_second_});
  }

  void Model() {
    const std::int64_t n = rows_, c = model_.hidden, v = model_.vocab;
    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(v));
    const auto bytes = std::as_bytes(std::span(values));
    const backend::Buffer token_buffer =
        backend_->Allocate(bytes.size(), MemoryKind::kTokens).value();
    TAKT_CHECK(backend_->CopyFromHost(bytes, token_buffer.data()).ok());
    TAKT_CHECK(backend_->Synchronize().ok());
    const auto* tokens = reinterpret_cast<const std::int32_t*>(token_buffer.data());
    const backend::Buffer result_buffer = backend_->AllocateHost(sizeof(double)).value();
    auto* result = reinterpret_cast<double*>(result_buffer.data());
    float* x = pool_.floats();
    // The logits of all blocks of the vocabulary lie one behind the other, as in a stash.
    const backend::Buffer softmax = backend_->Allocate(2 * 16 * n, MemoryKind::kScratch).value();
    auto* const parts = reinterpret_cast<backend::SoftmaxPart*>(softmax.data());
    auto* const rows = reinterpret_cast<backend::SoftmaxRow*>(parts + n);
    const std::int64_t block = model::kVocabularyBlock;
    const int blocks = model::NumVocabularyBlocks(v);
    Elementwise("softmax", backend::SoftmaxBlock{x, tokens, parts, n, block}, n * block, 1, blocks);
    Elementwise("cross entropy", backend::CrossEntropy{parts, tokens, rows, result, n, 1, 1e-3F}, n,
                8, 1);
    Elementwise("softmax I", backend::CrossEntropyGradient{x, tokens, parts, rows, n, block},
                n * block, 2, blocks);
    const std::int64_t parameters = v * c;
    float* m = x + parameters;
    // The second moment holds squares, so its part of the pool, the last quarter, is made positive.
    float* second = m + 2 * parameters;
    Elementwise("sum of squares", backend::SumOfSquares{x, result, parameters}, parameters, 1, 3);
    if (const absl::Status status = backend_->Run(backend::Fill{second, 0.5F, parameters});
        !status.ok())
      std::abort();
    const backend::UpdatedTensor tensors[] = {{.parameter = x,
                                               .gradient = m + parameters,
                                               .m = m,
                                               .v = second,
                                               .count = parameters,
                                               .weight_decay = 0.1}};
    Elementwise("adamw", backend::AdamwUpdate{.tensors = tensors, .learning_rate = 1e-4},
                parameters, 7, 3);
    Elementwise("embedding F", backend::EmbeddingForward{tokens, m, nullptr, x, 1, n, c}, n * c, 2,
                1);
    Elementwise("embedding W", backend::EmbeddingBackward{tokens, x, m, nullptr, 1, n, c, v, 0},
                parameters, 1, 1);
    Elementwise("copy", backend::Copy{x, m, parameters}, parameters, 2, 0);
  }

  const Options options_;
  model::ModelConfig model_;
  std::int64_t rows_ = 0;
  std::unique_ptr<backend::Backend> backend_;
  backend::Buffer pool_;  // the operands of every op
  double copy_bytes_per_second_ = 0, square_flops_per_second_ = 0;
  std::vector<Row> rows_out_;
};

using Choices = backend::PlanCache::Plans;

// Returns which kernel computed which shape.
Choices ChoicesOf(backend::BackendFactory& backends) {
  backend::KernelPlans* const plans = backends.kernel_plans();
  return plans != nullptr ? plans->plans().plans() : Choices();
}

void PrintText(const std::vector<Row>& rows, const Choices& choices) {
  double step = 0, reference = 0;
  absl::PrintF("%-16s %9s %9s %8s %6s %10s\n", "kernel", "ms", "GFLOP/s", "GB/s", "limit",
               "ms a step");
  for (const Row& row : rows) {
    absl::PrintF("%-16s %9.3f %9.1f %8.1f %5.0f%% %10.1f\n", row.name, row.seconds * 1e3,
                 row.flops / row.seconds * 1e-9, row.bytes / row.seconds * 1e-9,
                 100 * row.reference_seconds / row.seconds, row.seconds * row.count * 1e3);
    step += row.seconds * row.count;
    reference += row.reference_seconds * row.count;
  }
  absl::PrintF("a step of these: %.0f ms, at the limits %.0f ms\n", step * 1e3, reference * 1e3);
  for (const auto& [shape, plan] : choices) {
    if (!plan.implementation.empty()) {
      absl::PrintF("%-80s by %s\n", shape, plan.implementation);
      continue;
    }
    absl::PrintF("%-80s epilogue %s, workspace %.1f MiB, algorithm %016x\n", shape,
                 plan.fused_epilogue ? "fused" : "apart",
                 static_cast<double>(plan.workspace_bytes) / (1 << 20), plan.algorithm[0]);
  }
}

void PrintJson(const Options& options, const std::vector<Row>& rows, const Choices& choices) {
  nlohmann::json json = {{"threads", options.threads}, {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) {
    json["rows"].push_back({{"kernel", row.name},
                            {"seconds", row.seconds},
                            {"flops", row.flops},
                            {"bytes", row.bytes},
                            {"calls_per_step", row.count},
                            {"limit_seconds", row.reference_seconds}});
  }
  for (const auto& [shape, plan] : choices) {
    json["choices"].push_back({{"shape", shape},
                               {"fused_epilogue", plan.fused_epilogue},
                               {"workspace_bytes", plan.workspace_bytes}});
  }
  absl::PrintF("%s\n", json.dump());
}

absl::Status Run(const Options& options) {
  if (options.device == "cpu" && options.precision != "f32") {
    return absl::InvalidArgumentError(
        "--precision bf16 is for --device cuda; on the CPU `takt-bench train` measures it");
  }
  ASSIGN_OR_RETURN(const auto backends, OpenDevice({.device = options.device,
                                                    .threads = options.threads,
                                                    .any_order_attention = options.any_order}));
  const std::vector<Row> rows = KernelBench(options, *backends).Run();
  const Choices choices = ChoicesOf(*backends);
  options.json() ? PrintJson(options, rows, choices) : PrintText(rows, choices);
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "kernels", "Kernels on the shapes of gpt2-124m, each beside its limit",
      [](CLI::App& command, Options& options) {
        command.add_option("--device", options.device, "cpu, or cuda: the first GPU")
            ->check(CLI::IsMember({"cpu", "cuda"}));
        command.add_option("--precision", options.precision, "Of products on a GPU: f32 or bf16")
            ->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--threads", options.threads, "Threads, of the limits too")
            ->check(CLI::Range(1, 1024));
        command.add_option("--batch", options.batch, "Sequences")->check(CLI::Range(1, 1024));
        command.add_option("--context", options.context, "Tokens of a sequence")
            ->check(CLI::Range(1, 65536));
        command.add_option("--runs", options.runs, "The best of so many runs counts")
            ->check(CLI::Range(1, 1000));
        command.add_flag("--any-order", options.any_order,
                         "On a GPU: let cuDNN add gradients of attention in the order of arrival");
        command.add_option("--only", options.only, "Only kernels whose name contains this");
      },
      Run);
}

}  // namespace takt::bench::kernels_command
