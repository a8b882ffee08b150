// SPDX-License-Identifier: Apache-2.0
// Kernels whose output elements depend on the same element of the inputs, or on its pair (rotary).
// A thread has a group of elements: 16 bytes of the shortest type among those stored.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <bool kAligned, int kSize>
struct Group {
  static constexpr int kCount = kSize;
  std::int64_t i, count;
  template <class T>
  __device__ Numbers<kCount> Load(const T* p) const {
    return cuda::Load<kAligned, kCount>(p, i, count);
  }
  template <class T>
  __device__ void Store(T* p, const Numbers<kCount>& numbers) const {
    cuda::Store<kAligned>(p, i, count, numbers);
  }
};

// Calls map(group) for every group of [0, count).
template <bool kAligned, class Map>
__global__ __launch_bounds__(kThreads) void MapKernel(Map map, std::int64_t count) {
  constexpr int kCount = Map::kCount;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
  if (i < count) map(Group<kAligned, kCount>{i, count});
}

// pointers: everything that the map reads and writes.
template <class Map, class... Pointers>
void LaunchMap(const LaunchContext& context, std::int64_t count, const Map& map,
               const Pointers*... pointers) {
  if (count == 0) return;
  constexpr int kCount = Map::kCount;
  const Blocks blocks = {{static_cast<unsigned>(CeilDiv(count, kCount * kThreads))}, kThreads};
  Choose(InGroups<kCount>(count, pointers...), [&](auto aligned) {
    LaunchKernel(MapKernel<decltype(aligned)::value, Map>, blocks, context.stream, map, count);
  });
}

// output = f(a)
template <class F, class From, class To>
struct Unary {
  static constexpr int kCount = sizeof(From) < sizeof(To) ? kIn16Bytes<From> : kIn16Bytes<To>;
  const From* a;
  To* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    const auto x = group.Load(a);
    group.Store(output, Each<kCount>([&](int k) { return F::Of(x.v[k]); }));
  }
};

// output = f(a, b)
template <class F, class From, class To>
struct Binary {
  static constexpr int kCount = sizeof(From) < sizeof(To) ? kIn16Bytes<From> : kIn16Bytes<To>;
  const From* a;
  const From* b;
  To* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    const auto x = group.Load(a), y = group.Load(b);
    group.Store(output, Each<kCount>([&](int k) { return F::Of(x.v[k], y.v[k]); }));
  }
};

template <class F, class From, class To>
void LaunchUnary(const LaunchContext& context, std::int64_t count, const From* a, To* output) {
  LaunchMap(context, count, Unary<F, From, To>{a, output}, a, output);
}
template <class F, class From, class To>
void LaunchBinary(const LaunchContext& context, std::int64_t count, const From* a, const From* b,
                  To* output) {
  LaunchMap(context, count, Binary<F, From, To>{a, b, output}, a, b, output);
}

// With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh u) is 1 / (1 + e^-2u). Nothing cancels in
// that form.
constexpr float kGeluLinear = -2.0F * 0.7978845608028654F;
constexpr float kGeluCubic = kGeluLinear * 0.044715F;

__device__ inline float ExpOfMinus2U(float x) {
  return expf(x * (kGeluLinear + kGeluCubic * x * x));
}

struct Gelu {
  __device__ static float Of(float x) { return x / (1.0F + ExpOfMinus2U(x)); }
};

struct GeluGradient {
  __device__ static float Of(float x, float d_output) {
    // Beyond +-13 the slope is 0 or 1, and x^3 must not grow faster than its factor shrinks. An
    // infinite e would make that product NaN.
    const float near = fminf(fmaxf(x, -13.0F), 13.0F);
    const float e = ExpOfMinus2U(fmaxf(near, -9.0F));
    const float gate = 1.0F / (1.0F + ExpOfMinus2U(x));
    const float rest = e / (1.0F + e);
    const float slope = -kGeluLinear - 3.0F * kGeluCubic * near * near;
    return d_output * (gate * (1.0F + near * rest * slope));
  }
};

__device__ inline float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <class From, class To>
struct Swiglu {
  static constexpr int kCount = sizeof(From) < sizeof(To) ? kIn16Bytes<From> : kIn16Bytes<To>;
  const From* gate;
  const From* up;
  To* output;
  // Returns the map of a later row. stride, columns: how far it lies behind, in gate and output.
  __device__ Swiglu Behind(std::int64_t stride, std::int64_t columns) const {
    return {gate + stride, up + stride, output + columns};
  }
  template <class G>
  __device__ void operator()(const G& group) const {
    const auto x = group.Load(gate), y = group.Load(up);
    group.Store(output,
                Each<kCount>([&](int k) { return x.v[k] / (1.0F + expf(-x.v[k])) * y.v[k]; }));
  }
};

template <class T>
struct SwigluGradients {
  static constexpr int kCount = kIn16Bytes<T>;
  const T* gate;
  const T* up;
  const T* d_output;
  T* d_gate;
  T* d_up;
  __device__ SwigluGradients Behind(std::int64_t stride, std::int64_t columns) const {
    return {gate + stride, up + stride, d_output + columns, d_gate + stride, d_up + stride};
  }
  template <class G>
  __device__ void operator()(const G& group) const {
    const auto x = group.Load(gate), u = group.Load(up), d = group.Load(d_output);
    group.Store(d_gate, Each<kCount>([&](int k) {
                  const float s = Sigmoid(x.v[k]);
                  return d.v[k] * u.v[k] * (s * (1.0F + x.v[k] * (1.0F - s)));
                }));
    group.Store(d_up, Each<kCount>([&](int k) { return d.v[k] * (x.v[k] * Sigmoid(x.v[k])); }));
  }
};

// Each block computes a part of a row.
template <bool kAligned, class Map>
__global__ __launch_bounds__(kThreads) void RowsKernel(Map map, std::int64_t columns,
                                                       std::int64_t stride, unsigned parts) {
  constexpr int kCount = Map::kCount;
  const std::int64_t row = blockIdx.x / parts;
  const std::int64_t part = blockIdx.x % parts;
  const std::int64_t i = (part * kThreads + threadIdx.x) * kCount;
  if (i < columns) map.Behind(row * stride, row * columns)(Group<kAligned, kCount>{i, columns});
}

// map: that of the op's first row. pointers: as of LaunchMap.
template <class Op, class Map, class... Pointers>
void LaunchSwiglu(const LaunchContext& context, const Op& op, const Map& map,
                  const Pointers*... pointers) {
  constexpr int kCount = Map::kCount;
  // Dense rows are computed as one.
  const std::int64_t rows = op.stride == 0 ? 1 : op.rows;
  const std::int64_t columns = op.stride == 0 ? op.rows * op.columns : op.columns;
  const auto parts = static_cast<unsigned>(CeilDiv(columns, kCount * kThreads));
  const bool aligned = op.stride % kCount == 0 && InGroups<kCount>(columns, pointers...);
  Choose(aligned, [&](auto kAligned) {
    LaunchKernel(RowsKernel<decltype(kAligned)::value, Map>,
                 Blocks{{static_cast<unsigned>(rows) * parts}, kThreads}, context.stream, map,
                 columns, op.stride, parts);
  });
}

struct Same {
  __device__ static float Of(float x) { return x; }
};

struct Sum {
  __device__ static float Of(float a, float b) { return a + b; }
};

struct FillMap {
  static constexpr int kCount = 4;
  float* output;
  float value;
  template <class G>
  __device__ void operator()(const G& group) const {
    group.Store(output, Each([&](int) { return value; }));
  }
};

struct Feedback {
  static constexpr int kCount = 4;
  float* parameter;
  const float* previous;
  float* last_update;
  float coefficient;
  template <class G>
  __device__ void operator()(const G& group) const {
    const auto p = group.Load(parameter), before = group.Load(previous);
    const auto last = group.Load(last_update);
    const auto update = Each<kCount>([&](int k) { return p.v[k] - before.v[k]; });
    group.Store(parameter, Each<kCount>([&](int k) {
                  return p.v[k] + coefficient * (update.v[k] - last.v[k]);
                }));
    group.Store(last_update, update);
  }
};

// Each block has a row.
template <bool kFours, class T>
__global__ __launch_bounds__(kThreads) void AddBiasKernel(T* x, const float* biases,
                                                          std::int64_t columns,
                                                          std::int64_t stride) {
  T* row = x + blockIdx.x * stride;
  for (std::int64_t i = threadIdx.x * 4; i < columns; i += kThreads * 4) {
    const Four old = Load<kFours>(row, i, columns), bias = Load<kFours>(biases, i, columns);
    Store<kFours>(row, i, columns, Each([&](int k) { return old.v[k] + bias.v[k]; }));
  }
}

// The first blocks have the first vector, the others have the second.
template <bool kFours>
__global__ __launch_bounds__(kThreads) void AddSumsKernel(AddSums op, unsigned blocks_of_first) {
  const bool is_first = blockIdx.x < blocks_of_first;
  const AddSums::Vector& vector = is_first ? op.first : op.second;
  const unsigned block = is_first ? blockIdx.x : blockIdx.x - blocks_of_first;
  const std::int64_t i = (static_cast<std::int64_t>(block) * kThreads + threadIdx.x) * 4;
  if (i >= vector.count) return;
  const Four old = Load<kFours>(vector.sums, i, vector.count);
  const Four more = Load<kFours>(vector.addends, i, vector.count);
  Store<kFours>(vector.sums, i, vector.count, Each([&](int k) { return old.v[k] + more.v[k]; }));
}

// Each block has a row of all heads, and each thread a group of pairs at a time.
constexpr unsigned kRotaryThreads = 128;

template <bool kAligned, class T>
__global__ __launch_bounds__(kRotaryThreads) void RotaryKernel(Rotary op, T* x) {
  constexpr int kCount = kIn16Bytes<T>;
  const std::int64_t row = blockIdx.x;
  const auto half = static_cast<int>(op.head_size / 2);
  const int groups = (half + kCount - 1) / kCount;
  const std::int64_t start = op.starts != nullptr ? op.starts[row] : 0;
  const float* cosines = op.table + (row % op.context - start) * op.head_size;
  const float* sines = cosines + half;
  for (int item = static_cast<int>(threadIdx.x); item < static_cast<int>(op.heads) * groups;
       item += kRotaryThreads) {
    T* low = x + row * op.stride + item / groups * op.head_size;
    T* high = low + half;
    const int i = item % groups * kCount;
    const auto load = [&](const auto* p) { return Load<kAligned, kCount>(p, i, half); };
    const auto a = load(low), b = load(high), cosine = load(cosines);
    auto sine = load(sines);
    if (op.inverse) sine = Each<kCount>([&](int k) { return -sine.v[k]; });
    Store<kAligned>(low, i, half,
                    Each<kCount>([&](int k) { return a.v[k] * cosine.v[k] - b.v[k] * sine.v[k]; }));
    Store<kAligned>(high, i, half,
                    Each<kCount>([&](int k) { return b.v[k] * cosine.v[k] + a.v[k] * sine.v[k]; }));
  }
}

}  // namespace

void Launch(const GeluForward& op, const LaunchContext& context) {
  if (op.input.bf16 != nullptr) {
    LaunchUnary<Gelu>(context, op.count, op.input.bf16, op.output.bf16);
    return;
  }
  To(op.output, [&](auto* output) { LaunchUnary<Gelu>(context, op.count, op.input.f32, output); });
}

void Launch(const GeluBackward& op, const LaunchContext& context) {
  To(op.d_input, [&]<class T>(T* d_input) {
    LaunchBinary<GeluGradient>(context, op.count, As<T>(op.input), As<T>(op.d_output), d_input);
  });
}

void Launch(const SwigluForward& op, const LaunchContext& context) {
  const auto launch = [&]<class From, class To>(const From* gate, const From* up, To* output) {
    LaunchSwiglu(context, op, Swiglu<From, To>{gate, up, output}, gate, up, output);
  };
  if (op.gate.bf16 != nullptr) {
    launch(op.gate.bf16, op.up.bf16, op.output.bf16);
  } else {
    To(op.output, [&](auto* output) { launch(op.gate.f32, op.up.f32, output); });
  }
}

void Launch(const SwigluBackward& op, const LaunchContext& context) {
  To(op.d_gate, [&]<class T>(T* d_gate) {
    const SwigluGradients<T> map = {As<T>(op.gate), As<T>(op.up), As<T>(op.d_output), d_gate,
                                    As<T>(op.d_up)};
    LaunchSwiglu(context, op, map, map.gate, map.up, map.d_output, map.d_gate, map.d_up);
  });
}

void Launch(const Copy& op, const LaunchContext& context) {
  if (op.count == 0) return;
  To(op.output, [&](auto* output) {
    if (op.input.bf16 != nullptr) {
      LaunchUnary<Same>(context, op.count, op.input.bf16, output);
    } else {
      LaunchUnary<Same>(context, op.count, op.input.f32, output);
    }
  });
}

void Launch(const Fill& op, const LaunchContext& context) {
  LaunchMap(context, op.count, FillMap{op.output, op.value}, op.output);
}

void Launch(const FeedBackError& op, const LaunchContext& context) {
  LaunchMap(context, op.count, Feedback{op.parameter, op.previous, op.last_update, op.coefficient},
            op.parameter, op.previous, op.last_update);
}

void Launch(const Add& op, const LaunchContext& context) {
  LaunchBinary<Sum>(context, op.count, op.a, op.b, op.output);
}

void Launch(const AddBias& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(op.rows)}, kThreads};
  const std::int64_t stride = op.stride != 0 ? op.stride : op.columns;
  To(op.x, [&]<class T>(T* x) {
    Choose(stride % 4 == 0 && InFours(op.columns, x, op.bias), [&](auto kFours) {
      LaunchKernel(AddBiasKernel<decltype(kFours)::value, T>, blocks, context.stream, x, op.bias,
                   op.columns, stride);
    });
  });
}

void Launch(const AddSums& op, const LaunchContext& context) {
  const auto blocks_of = [](const AddSums::Vector& vector) {
    return static_cast<unsigned>(CeilDiv(vector.count, 4 * kThreads));
  };
  const auto in_fours = [](const AddSums::Vector& vector) {
    return InFours(vector.count, vector.sums, vector.addends);
  };
  const unsigned first = blocks_of(op.first), all = first + blocks_of(op.second);
  if (all == 0) return;
  const Blocks blocks = {{all}, kThreads};
  Choose(in_fours(op.first) && in_fours(op.second), [&](auto kFours) {
    LaunchKernel(AddSumsKernel<decltype(kFours)::value>, blocks, context.stream, op, first);
  });
}

void Launch(const Rotary& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(op.batch * op.context)}, kRotaryThreads};
  To(op.x, [&]<class T>(T* x) {
    constexpr int kCount = kIn16Bytes<T>;
    const bool in_groups =
        op.stride % kCount == 0 && InGroups<kCount>(op.head_size / 2, x, op.table);
    Choose(in_groups, [&](auto aligned) {
      LaunchKernel(RotaryKernel<decltype(aligned)::value, T>, blocks, context.stream, op, x);
    });
  });
}

}  // namespace takt::backend::cuda
