// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/reference_rates.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/model/vocabulary.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/onednn_matmul.h"

namespace takt::bench {
namespace {

constexpr std::int64_t kSpareColumns = 16;

// Allocates memory as backends do, and fills it with values that are no denormals, neither as
// floats nor as twice as many bf16.
backend::Buffer FilledBuffer(backend::Backend& memory, std::int64_t count) {
  backend::Buffer buffer =
      memory.Allocate(static_cast<std::size_t>(count) * sizeof(float), MemoryKind::kScratch)
          .value();
  float value = 0.5F;
  for (float& element : buffer.float_span()) {
    value = value > 0.9F ? -0.9F : value + 0.013F;
    const std::uint32_t half = std::bit_cast<std::uint32_t>(value) >> 16;
    element = std::bit_cast<float>(half << 16 | half);
  }
  return buffer;
}

}  // namespace

std::vector<StepMatmul> StepMatmuls(const model::ModelConfig& model, std::int64_t rows) {
  std::vector<StepMatmul> all;
  const auto add_of = [&](std::int64_t rows_of_each, const std::string& name, std::int64_t in,
                          std::int64_t out, bool stored_by_output, int count) {
    all.push_back({name + " F", rows_of_each, out, in, false, stored_by_output, count});
    all.push_back({name + " I", rows_of_each, in, out, false, !stored_by_output, count});
    // The weight gradient has the layout of the weight.
    all.push_back({name + " W", stored_by_output ? out : in, stored_by_output ? in : out,
                   rows_of_each, true, false, count});
  };
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out,
                       bool stored_by_output,
                       int count) { add_of(rows, name, in, out, stored_by_output, count); };
  const std::int64_t c = model.hidden, inner = model.inner;
  // The head multiplies block by block.
  const auto add_head = [&] {
    constexpr auto kBlock = static_cast<int>(model::kVocabularyBlock);
    if (model.vocab >= kBlock) add("head", c, kBlock, true, model.vocab / kBlock);
    if (model.vocab % kBlock > 0) add("head rest", c, model.vocab % kBlock, true, 1);
  };
  if (model.family != model::Family::kGpt2) {
    const std::int64_t head_size = model.head_size != 0 ? model.head_size : c / model.heads;
    const std::int64_t query = model.heads * head_size, key = model.kv_heads * head_size;
    add("q", c, query, true, model.layers);
    add("k, v", c, key, true, 2 * model.layers);
    add("o", query, c, true, model.layers);
    int dense = model.layers;
    if (model.mixture.has_value()) {
      // The experts of the limit share the rows evenly.
      const model::Mixture& mixture = *model.mixture;
      const std::int64_t rows_of_each =
          std::max<std::int64_t>(1, rows * mixture.chosen / mixture.experts);
      dense = static_cast<int>(mixture.dense_blocks.size());
      const int blocks = model.layers - dense, matrices = blocks * mixture.experts;
      add("router", c, mixture.experts, true, blocks);
      add_of(rows_of_each, "expert gate, up", c, mixture.inner, true, 2 * matrices);
      add_of(rows_of_each, "expert down", mixture.inner, c, true, matrices);
    }
    if (dense > 0) {
      add("gate, up", c, inner, true, 2 * dense);
      add("down", inner, c, true, dense);
    }
    add_head();
    return all;
  }
  add("qkv", c, 3 * c, false, model.layers);
  add("proj", c, c, false, model.layers);
  add("fc", c, inner, false, model.layers);
  add("fc2", inner, c, false, model.layers);
  add_head();
  return all;
}

double BestSeconds(int runs, const std::function<void()>& f) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs; ++run) {
    const std::int64_t start = Clock::Real().SteadyNanos();
    f();
    best = std::min(best, static_cast<double>(Clock::Real().SteadyNanos() - start) * 1e-9);
  }
  return best;
}

namespace {

using dnnl::memory;

memory::desc Describe(std::int64_t rows, std::int64_t columns, bool transposed,
                      memory::data_type type) {
  return {{rows, columns}, type, transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

// The operands and the result of one matmul, large enough for every form of it.
struct Matrices {
  backend::Buffer a, b, c;
};

double PrimitiveSeconds(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                        const Matrices& matrices, int runs) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::matmul::primitive_desc description =
      backend::DescribeMatmul(engine, a, b, c, dnnl::primitive_attr());
  const dnnl::matmul primitive(description);
  const memory a_memory(a, engine, matrices.a.data());
  const memory b_memory(description.weights_desc(), engine, matrices.b.data());
  const memory c_memory(c, engine, matrices.c.data());
  return BestSeconds(runs, [&] {
    primitive.execute(
        stream, {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
    stream.wait();
  });
}

double F32Seconds(const StepMatmul& s, const Matrices& matrices, int runs) {
  const double sgemm = BestSeconds(runs, [&] {
    dnnl_sgemm(s.a_transposed ? 'T' : 'N', s.b_transposed ? 'T' : 'N', s.m, s.n, s.k, 1,
               matrices.a.floats(), s.a_transposed ? s.m : s.k, matrices.b.floats(),
               s.b_transposed ? s.k : s.n, 0, matrices.c.floats(), s.n);
  });
  constexpr auto kF32 = memory::data_type::f32;
  return std::min(sgemm, PrimitiveSeconds(Describe(s.m, s.k, s.a_transposed, kF32),
                                          Describe(s.k, s.n, s.b_transposed, kF32),
                                          Describe(s.m, s.n, false, kF32), matrices, runs));
}

// Errors: dnnl::error (this processor has no bf16 products).
double Bf16Seconds(const StepMatmul& s, const Matrices& matrices, int runs) {
  constexpr auto kBf16 = memory::data_type::bf16;
  constexpr auto kF32 = memory::data_type::f32;
  const memory::desc a = Describe(s.m, s.k, s.a_transposed, kBf16);
  const memory::desc b = Describe(s.k, s.n, s.b_transposed, kBf16);
  const memory::desc c = Describe(s.m, s.n, false, kF32);
  const memory::desc wide_c({s.m, s.n}, kF32, memory::dims{s.n + kSpareColumns, 1});
  double best = std::min(PrimitiveSeconds(a, b, c, matrices, runs),
                         PrimitiveSeconds(a, b, wide_c, matrices, runs));
  if (!s.a_transposed) {
    const memory::desc any({s.k, s.n}, kBf16, memory::format_tag::any);
    best = std::min(best, PrimitiveSeconds(a, any, c, matrices, runs));
  }
  return best;
}

}  // namespace

double OneDnnSeconds(const StepMatmul& matmul, model::Precision precision, int threads, int runs) {
  double best = 0;
  // oneDNN's number of OpenMP threads is a property of the calling thread, so this has a thread of
  // its own.
  std::thread([&] {
    using SetNumThreads = void (*)(int);
    if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
      set(threads);
    const auto allocator = backend::CreateCpuBackend({.threads = 1}).value();
    // The sizes are in floats, also for bf16, which leaves room for padding.
    const Matrices matrices{FilledBuffer(*allocator, matmul.m * matmul.k),
                            FilledBuffer(*allocator, (matmul.k + 64) * (matmul.n + 64)),
                            FilledBuffer(*allocator, matmul.m * (matmul.n + kSpareColumns))};
    if (precision == model::Precision::kBf16) {
      try {
        best = Bf16Seconds(matmul, matrices, runs);
        return;
      } catch (const dnnl::error&) {
        // The processor multiplies widened values, so f32 is the rate to reach.
      }
    }
    best = F32Seconds(matmul, matrices, runs);
  }).join();
  return best;
}

double MemcpyBytesPerSecond(int threads) {
  // 128 MiB each way, more than the caches of most machines hold.
  constexpr std::int64_t kFloats = std::int64_t{32} << 20;
  const auto memory = backend::CreateCpuBackend({.threads = threads}).value();
  const backend::Buffer from = FilledBuffer(*memory, kFloats), to = FilledBuffer(*memory, kFloats);
  const double seconds = BestSeconds(5, [&] {
    std::vector<std::thread> copiers;
    const std::int64_t part = kFloats / threads;
    for (int t = 0; t < threads; ++t) {
      copiers.emplace_back([&, t] {
        std::memcpy(to.floats() + t * part, from.floats() + t * part,
                    static_cast<std::size_t>(part) * sizeof(float));
      });
    }
    for (std::thread& copier : copiers) copier.join();
  });
  return 2 * kFloats * sizeof(float) / seconds;
}

}  // namespace takt::bench
