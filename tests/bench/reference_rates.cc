// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/reference_rates.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "worker/backend/backend.h"

namespace takt::bench {
namespace {

// Memory as the backend gives it, with something in it that is no denormal.
backend::Buffer FilledBuffer(backend::Backend& memory, std::int64_t count) {
  backend::Buffer buffer = memory.Allocate(static_cast<std::size_t>(count) * sizeof(float)).value();
  float value = 0.5F;
  for (float& element : buffer.float_span())
    element = value = value > 0.9F ? -0.9F : value + 0.013F;
  return buffer;
}

}  // namespace

std::vector<StepMatmul> StepMatmuls(const model::ModelConfig& model, std::int64_t rows) {
  std::vector<StepMatmul> all;
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out,
                       bool stored_by_output, int count) {
    all.push_back({name + " F", rows, out, in, false, stored_by_output, count});
    all.push_back({name + " I", rows, in, out, false, !stored_by_output, count});
    // The weight gradient has the layout of the weight.
    all.push_back({name + " W", stored_by_output ? out : in, stored_by_output ? in : out, rows,
                   true, false, count});
  };
  const std::int64_t c = model.hidden, inner = model.inner;
  if (model.family != model::Family::kGpt2) {
    const std::int64_t head_size = model.head_size != 0 ? model.head_size : c / model.heads;
    const std::int64_t query = model.heads * head_size, key = model.kv_heads * head_size;
    add("q", c, query, true, model.layers);
    add("k, v", c, key, true, 2 * model.layers);
    add("o", query, c, true, model.layers);
    add("gate, up", c, inner, true, 2 * model.layers);
    add("down", inner, c, true, model.layers);
    add("head", c, model.vocab, true, 1);
    return all;
  }
  add("qkv", c, 3 * c, false, model.layers);
  add("proj", c, c, false, model.layers);
  add("fc", c, inner, false, model.layers);
  add("fc2", inner, c, false, model.layers);
  add("head", c, model.vocab, true, 1);
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

double OneDnnSeconds(const StepMatmul& matmul, int threads, int runs) {
  double best = 0;
  // A thread of its own: how many OpenMP threads oneDNN takes is a property of the calling thread.
  std::thread([&] {
    using SetNumThreads = void (*)(int);
    if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
      set(threads);
    const std::int64_t m = matmul.m, n = matmul.n, k = matmul.k;
    const bool a_transposed = matmul.a_transposed, b_transposed = matmul.b_transposed;
    const auto allocator = backend::CreateCpuBackend({.threads = 1}).value();
    const backend::Buffer a = FilledBuffer(*allocator, m * k), b = FilledBuffer(*allocator, k * n);
    const backend::Buffer c = FilledBuffer(*allocator, m * n);
    const double sgemm = BestSeconds(runs, [&] {
      dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, 1, a.floats(),
                 a_transposed ? m : k, b.floats(), b_transposed ? k : n, 0, c.floats(), n);
    });

    using dnnl::memory;
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto describe = [](std::int64_t rows, std::int64_t columns, bool transposed) {
      return memory::desc({rows, columns}, memory::data_type::f32,
                          transposed ? memory::dims{1, rows} : memory::dims{columns, 1});
    };
    const memory::desc a_desc = describe(m, k, a_transposed), b_desc = describe(k, n, b_transposed);
    const memory::desc c_desc = describe(m, n, false);
    const dnnl::matmul primitive(
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), engine));
    const memory a_memory(a_desc, engine, a.floats()), b_memory(b_desc, engine, b.floats());
    const memory c_memory(c_desc, engine, c.floats());
    const double matmul_primitive = BestSeconds(runs, [&] {
      primitive.execute(
          stream,
          {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}});
      stream.wait();
    });
    best = std::min(sgemm, matmul_primitive);
  }).join();
  return best;
}

double MemcpyBytesPerSecond(int threads) {
  constexpr std::int64_t kFloats = std::int64_t{32}
                                   << 20;  // 128 MiB each way: past the caches of most machines
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
