// SPDX-License-Identifier: Apache-2.0
// Kernels in which each output element depends on the same element of the inputs, or on its pair
// (rotary). A thread has a group of four elements.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr unsigned kThreads = 256;

// map(group, first element) for every group of four in [0, count).
template <bool kFours>
struct Group {
  std::int64_t i, count;
  template <class T>
  __device__ Four Load(const T* p) const {
    return cuda::Load<kFours>(p, i, count);
  }
  template <class T>
  __device__ void Store(T* p, const Four& four) const {
    cuda::Store<kFours>(p, i, count, four);
  }
};

template <bool kFours, class Map>
__global__ __launch_bounds__(kThreads) void MapKernel(Map map, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i < count) map(Group<kFours>{i, count});
}

template <class Map>
void LaunchMap(const Map& map, std::int64_t count, bool fours, const LaunchContext& context) {
  if (count == 0) return;
  const Blocks blocks = {{static_cast<unsigned>(CeilDiv(count, 4 * kThreads))}, kThreads};
  Choose(fours, [&](auto kFours) {
    LaunchKernel(MapKernel<decltype(kFours)::value, Map>, blocks, context.stream, map, count);
  });
}

// With u = sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh u) = 1 / (1 + e^-2u). Nothing cancels in
// that form.
constexpr float kGeluLinear = -2.0F * 0.7978845608028654F;
constexpr float kGeluCubic = kGeluLinear * 0.044715F;

__device__ inline float ExpOfMinus2U(float x) {
  return expf(x * (kGeluLinear + kGeluCubic * x * x));
}

__device__ inline float Gelu(float x) { return x / (1.0F + ExpOfMinus2U(x)); }

__device__ inline float GeluSlope(float x) {
  // Beyond +-13 the slope is 0 or 1, and x^3 must not grow faster than what it is multiplied with
  // shrinks; an e that is infinite would make NaN of that product.
  const float near = fminf(fmaxf(x, -13.0F), 13.0F);
  const float e = ExpOfMinus2U(fmaxf(near, -9.0F));
  const float gate = 1.0F / (1.0F + ExpOfMinus2U(x));
  const float rest = e / (1.0F + e);
  return gate * (1.0F + near * rest * (-kGeluLinear - 3.0F * kGeluCubic * near * near));
}

__device__ inline float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

template <class T>
struct GeluForwardMap {
  const float* input;
  T* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    const Four x = group.Load(input);
    group.Store(output, Each([&](int k) { return Gelu(x.v[k]); }));
  }
};

struct GeluBackwardMap {
  const float* input;
  const float* d_output;
  float* d_input;
  template <class G>
  __device__ void operator()(const G& group) const {
    const Four x = group.Load(input), d = group.Load(d_output);
    group.Store(d_input, Each([&](int k) { return d.v[k] * GeluSlope(x.v[k]); }));
  }
};

template <class T>
struct SwigluForwardMap {
  const float* gate;
  const float* up;
  T* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    const Four x = group.Load(gate), u = group.Load(up);
    group.Store(output, Each([&](int k) { return x.v[k] / (1.0F + expf(-x.v[k])) * u.v[k]; }));
  }
};

struct SwigluBackwardMap {
  const float* gate;
  const float* up;
  const float* d_output;
  float* d_gate;
  float* d_up;
  template <class G>
  __device__ void operator()(const G& group) const {
    const Four x = group.Load(gate), u = group.Load(up), d = group.Load(d_output);
    group.Store(d_gate, Each([&](int k) {
                  const float s = Sigmoid(x.v[k]);
                  return d.v[k] * u.v[k] * (s * (1.0F + x.v[k] * (1.0F - s)));
                }));
    group.Store(d_up, Each([&](int k) { return d.v[k] * (x.v[k] * Sigmoid(x.v[k])); }));
  }
};

template <class From, class T>
struct CopyMap {
  const From* input;
  T* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    group.Store(output, group.Load(input));
  }
};

struct FillMap {
  float* output;
  float value;
  template <class G>
  __device__ void operator()(const G& group) const {
    group.Store(output, Four{{value, value, value, value}});
  }
};

struct AddMap {
  const float* a;
  const float* b;
  float* output;
  template <class G>
  __device__ void operator()(const G& group) const {
    const Four x = group.Load(a), y = group.Load(b);
    group.Store(output, Each([&](int k) { return x.v[k] + y.v[k]; }));
  }
};

// A block has a row.
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

// A block has a row of all heads, a thread four pairs at a time.
constexpr unsigned kRotaryThreads = 128;

template <bool kFours>
__global__ __launch_bounds__(kRotaryThreads) void RotaryKernel(Rotary op) {
  const std::int64_t row = blockIdx.x;
  const auto half = static_cast<int>(op.head_size / 2);
  const int groups = (half + 3) / 4;
  const float* cosines = op.table + row % op.context * op.head_size;
  const float* sines = cosines + half;
  for (int item = static_cast<int>(threadIdx.x); item < static_cast<int>(op.heads) * groups;
       item += kRotaryThreads) {
    float* low = op.x.f32 + row * op.stride + item / groups * op.head_size;
    float* high = low + half;
    const int i = item % groups * 4;
    const Four a = Load<kFours>(low, i, half), b = Load<kFours>(high, i, half);
    const Four cosine = Load<kFours>(cosines, i, half);
    Four sine = Load<kFours>(sines, i, half);
    if (op.inverse) sine = Each([&](int k) { return -sine.v[k]; });
    Store<kFours>(low, i, half,
                  Each([&](int k) { return a.v[k] * cosine.v[k] - b.v[k] * sine.v[k]; }));
    Store<kFours>(high, i, half,
                  Each([&](int k) { return b.v[k] * cosine.v[k] + a.v[k] * sine.v[k]; }));
  }
}

}  // namespace

void Launch(const GeluForward& op, const LaunchContext& context) {
  To(op.output, [&]<class T>(T* output) {
    LaunchMap(GeluForwardMap<T>{op.input.f32, output}, op.count,
              InFours(op.count, op.output, op.input.f32), context);
  });
}

void Launch(const GeluBackward& op, const LaunchContext& context) {
  LaunchMap(GeluBackwardMap{op.input.f32, op.d_output.f32, op.d_input.f32}, op.count,
            InFours(op.count, op.input.f32, op.d_output.f32, op.d_input.f32), context);
}

void Launch(const SwigluForward& op, const LaunchContext& context) {
  To(op.output, [&]<class T>(T* output) {
    LaunchMap(SwigluForwardMap<T>{op.gate.f32, op.up.f32, output}, op.count,
              InFours(op.count, op.output, op.gate.f32, op.up.f32), context);
  });
}

void Launch(const SwigluBackward& op, const LaunchContext& context) {
  LaunchMap(SwigluBackwardMap{op.gate.f32, op.up.f32, op.d_output.f32, op.d_gate.f32, op.d_up.f32},
            op.count,
            InFours(op.count, op.gate.f32, op.up.f32, op.d_output.f32, op.d_gate.f32, op.d_up.f32),
            context);
}

void Launch(const Copy& op, const LaunchContext& context) {
  LaunchMap(CopyMap<float, float>{op.input.f32, op.output.f32}, op.count,
            InFours(op.count, op.input.f32, op.output.f32), context);
}

void Launch(const Fill& op, const LaunchContext& context) {
  LaunchMap(FillMap{op.output, op.value}, op.count, InFours(op.count, op.output), context);
}

void Launch(const Add& op, const LaunchContext& context) {
  LaunchMap(AddMap{op.a, op.b, op.output}, op.count, InFours(op.count, op.a, op.b, op.output),
            context);
}

void Launch(const AddBias& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(op.rows)}, kThreads};
  const std::int64_t stride = op.stride != 0 ? op.stride : op.columns;
  To(op.x, [&]<class T>(T* x) {
    Choose(stride % 4 == 0 && InFours(op.columns, op.x, op.bias), [&](auto kFours) {
      LaunchKernel(AddBiasKernel<decltype(kFours)::value, T>, blocks, context.stream, x, op.bias,
                   op.columns, stride);
    });
  });
}

void Launch(const Rotary& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(op.batch * op.context)}, kRotaryThreads};
  const bool fours = op.stride % 4 == 0 && InFours(op.head_size / 2, op.x.f32, op.table);
  Choose(fours, [&](auto kFours) {
    LaunchKernel(RotaryKernel<decltype(kFours)::value>, blocks, context.stream, op);
  });
}

}  // namespace takt::backend::cuda
