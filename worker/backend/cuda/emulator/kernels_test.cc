// SPDX-License-Identifier: Apache-2.0
// Tests every kernel in the emulator: it must give the same bits in every order of threads and
// blocks and at every alignment, and the CPU backend's numbers. The op tests of cpu/ run beside
// these, against references in double.
#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

TEST(CudaKernels, LayerNorm) {
  for (const Sizes s : kSizes) {
    const std::int64_t count = s.rows * s.columns;
    CheckBothOutputs(Name("forward", s), [&](Backend& backend, Tensors& t, bool bf16) {
      LayerNormForward op = {.input = t.Random(count)};
      op.weight = t.Random(s.columns), op.bias = t.Random(s.columns);
      op.output = bf16 ? Output(t.UnsetBf16(count)) : Output(t.Unset(count));
      op.mean = t.Unset(s.rows), op.rstd = t.Unset(s.rows);
      op.rows = s.rows, op.columns = s.columns, op.epsilon = 0.1F;
      RunOp(backend, op);
      Result result;
      bf16 ? result.Add(op.output.bf16, count) : result.Add(op.output.f32, count);
      result.Add(op.mean, s.rows);
      result.Add(op.rstd, s.rows);
      return result;
    });
    const double sums_over_rows = kFew + testing::SumTolerance(s.rows, 1);
    Check(Name("backward", s), sums_over_rows, [&](Backend& backend, Tensors& t) {
      const float *d_output = t.Random(count), *x = t.Random(count), *mean = t.Random(s.rows),
                  *rstd = t.Random(s.rows);
      float *d_weight = t.Random(s.columns), *d_bias = t.Random(s.columns);
      float *overwritten = t.Unset(s.columns), *overwritten_bias = t.Unset(s.columns);
      for (const bool accumulate : {false, true}) {
        RunOp(backend, LayerNormBackwardWeights{.d_output = d_output,
                                                .x = x,
                                                .mean = mean,
                                                .rstd = rstd,
                                                .d_weight = accumulate ? d_weight : overwritten,
                                                .d_bias = accumulate ? d_bias : overwritten_bias,
                                                .rows = s.rows,
                                                .columns = s.columns,
                                                .accumulate = accumulate});
      }
      Result result;
      for (const float* sums : {d_weight, d_bias, overwritten, overwritten_bias}) {
        result.Add(sums, s.columns);
      }
      // Runs in place of each of its inputs.
      for (const int in_place : {0, 1, 2}) {
        float* tensors[] = {t.Random(count), t.Random(count), t.Random(count)};
        RunOp(backend, LayerNormBackwardInput{.d_output = tensors[0],
                                              .x = tensors[1],
                                              .weight = t.Random(s.columns),
                                              .mean = mean,
                                              .rstd = rstd,
                                              .residual_gradient = tensors[2],
                                              .d_input = tensors[in_place],
                                              .rows = s.rows,
                                              .columns = s.columns});
        result.Add(tensors[in_place], count);
      }
      return result;
    });
  }
}

TEST(CudaKernels, RmsNorm) {
  for (const Sizes s : kSizes) {
    const std::int64_t count = s.rows * s.columns;
    CheckBothOutputs(Name("forward", s), [&](Backend& backend, Tensors& t, bool bf16) {
      RmsNormForward op = {.input = t.Random(count), .weight = t.Random(s.columns)};
      op.output = bf16 ? Output(t.UnsetBf16(count)) : Output(t.Unset(count));
      op.rstd = t.Unset(s.rows), op.rows = s.rows, op.columns = s.columns;
      RunOp(backend, op);
      Result result;
      bf16 ? result.Add(op.output.bf16, count) : result.Add(op.output.f32, count);
      result.Add(op.rstd, s.rows);
      return result;
    });
    Check(Name("backward", s), kFew, [&](Backend& backend, Tensors& t) {
      RmsNormBackwardInput op = {.d_output = t.Random(count),
                                 .x = t.Random(count),
                                 .weight = t.Random(s.columns),
                                 .rstd = t.Random(s.rows),
                                 .d_input = t.Unset(count),
                                 .rows = s.rows,
                                 .columns = s.columns};
      float* d_weight = t.Random(s.columns);
      RunOp(backend, op);
      RunOp(backend, RmsNormBackwardWeights{.d_output = op.d_output,
                                            .x = op.x,
                                            .rstd = op.rstd,
                                            .d_weight = d_weight,
                                            .rows = s.rows,
                                            .columns = s.columns,
                                            .accumulate = true});
      Result result;
      result.Add(op.d_input, count);
      result.Add(d_weight, s.columns);
      return result;
    });
  }
}

TEST(CudaKernels, SumsOfColumnsAndSquares) {
  for (const Sizes s : {Sizes{1, 1}, Sizes{130, 37}, Sizes{9, 260}, Sizes{20000, 3}}) {
    Check(Name("sums", s), 8 * kFew, [&](Backend& backend, Tensors& t) {
      const float* d_output = t.Random(s.rows * s.columns);
      float* d_bias = t.Unset(s.columns);
      RunOp(backend,
            BiasGrad{.d_output = d_output, .d_bias = d_bias, .rows = s.rows, .columns = s.columns});
      double squares = -1, nothing = -1;
      RunOp(backend,
            SumOfSquares{.input = d_output, .result = &squares, .count = s.rows * s.columns});
      RunOp(backend, SumOfSquares{.result = &nothing});
      std::vector<double> blocks(
          static_cast<std::size_t>((s.rows * s.columns + kSquaresPerBlock - 1) / kSquaresPerBlock));
      RunOp(backend,
            SumOfSquares{
                .input = d_output, .count = s.rows * s.columns, .block_sums = blocks.data()});
      Result result;
      for (const double block : blocks) result.Add(block);
      result.Add(d_bias, s.columns);
      result.Add(squares);
      result.Add(nothing);
      return result;
    });
  }
}

TEST(CudaKernels, Elementwise) {
  for (const std::int64_t count : {1, 4, 131, 5000}) {
    CheckBothOutputs(
        "activations of " + std::to_string(count), [&](Backend& backend, Tensors& t, bool bf16) {
          const float *x = t.Random(count, 3), *up = t.Random(count);
          Output gelu, swiglu;
          if (bf16) {
            gelu = t.UnsetBf16(count), swiglu = t.UnsetBf16(count);
          } else {
            gelu = t.Unset(count), swiglu = t.Unset(count);
          }
          RunOp(backend, GeluForward{.input = x, .output = gelu, .count = count});
          RunOp(backend, SwigluForward{.gate = x, .up = up, .output = swiglu, .columns = count});
          Result result;
          for (const Output& output : {gelu, swiglu}) {
            bf16 ? result.Add(output.bf16, count) : result.Add(output.f32, count);
          }
          return result;
        });
    Check("gradients and copies of " + std::to_string(count), kFew,
          [&](Backend& backend, Tensors& t) {
            const float *x = t.Random(count, 3), *d_output = t.Random(count);
            float *gate = t.Random(count, 3), *up = t.Random(count);
            float *gelu = t.Random(count), *filled = t.Unset(count), *copied = t.Unset(count);
            RunOp(backend,
                  GeluBackward{.input = x, .d_output = gelu, .d_input = gelu, .count = count});
            RunOp(backend, SwigluBackward{.gate = gate,
                                          .up = up,
                                          .d_output = d_output,
                                          .d_gate = gate,
                                          .d_up = up,
                                          .columns = count});
            RunOp(backend, Fill{.output = filled, .value = 1.5F, .count = count});
            RunOp(backend, Copy{.input = x, .output = copied, .count = count});
            RunOp(backend, Add{.a = copied, .b = filled, .output = filled, .count = count});
            float *parameter = t.Random(count), *last_update = t.Random(count);
            RunOp(backend, FeedBackError{.parameter = parameter,
                                         .previous = x,
                                         .last_update = last_update,
                                         .count = count,
                                         .coefficient = 0.75F});
            RunOp(backend, FeedBackError{});
            RunOp(backend, Fill{});
            RunOp(backend, Copy{});
            RunOp(backend, Add{});
            Result result;
            for (const float* output : {gelu, gate, up, filled, copied, parameter, last_update})
              result.Add(output, count);
            return result;
          });
  }
}

TEST(CudaKernels, Rotary) {
  for (const std::int64_t head_size : {2, 6, 12, 64}) {
    Check("head size " + std::to_string(head_size), kFew, [&](Backend& backend, Tensors& t) {
      const std::int64_t batch = 2, context = 3, heads = 5, stride = 4 * heads * head_size;
      const std::vector<std::int32_t> starts =
          testing::DocumentStarts(batch, context, head_size == 12 ? 1 : 0);
      Rotary op = {.x = t.Random(batch * context * stride),
                   .table = t.Random(context * head_size),
                   .batch = batch,
                   .context = context,
                   .heads = heads,
                   .head_size = head_size,
                   .stride = stride,
                   .inverse = head_size == 6,
                   .starts = testing::DataOrNull(starts)};
      RunOp(backend, op);
      Result result;
      result.Add(op.x, batch * context * stride);
      return result;
    });
  }
}

TEST(CudaKernels, Embedding) {
  struct Case {
    bool accumulate, bf16;
  };
  for (const std::int64_t columns : {1, 12, 131, 516}) {
    for (const auto [accumulate, bf16] :
         {Case{false, false}, Case{true, false}, Case{true, true}}) {
      Check("columns " + std::to_string(columns), kExact, [&](Backend& backend, Tensors& t) {
        const std::int64_t batch = 3, context = 101, vocab = 11, positions = 103;
        const std::vector<std::int32_t> starts =
            testing::DocumentStarts(batch, context, columns == 12 ? 20 : 0);
        const auto table = [&](std::int64_t rows) {
          return accumulate ? t.Random(rows * columns) : t.Unset(rows * columns);
        };
        const auto output = [&] {
          const std::int64_t count = batch * context * columns;
          return bf16 ? Output(t.UnsetBf16(count)) : Output(t.Unset(count));
        };
        EmbeddingForward forward = {.tokens = t.Tokens(batch * context, vocab - 1),
                                    .token_table = t.Random(vocab * columns),
                                    .position_table = t.Random(positions * columns),
                                    .output = output(),
                                    .batch = batch,
                                    .context = context,
                                    .columns = columns,
                                    .starts = testing::DataOrNull(starts)};
        RunOp(backend, forward);
        EmbeddingBackward op = {.tokens = forward.tokens,
                                .d_output = forward.output,
                                .d_token_table = table(vocab),
                                .d_position_table = table(positions),
                                .batch = batch,
                                .context = context,
                                .columns = columns,
                                .vocab = vocab,
                                .positions = positions,
                                .accumulate = accumulate,
                                .starts = testing::DataOrNull(starts)};
        RunOp(backend, op);
        Result result;
        result.Add(forward.output, batch * context * columns);
        // Without token ids the rows come as they are, and only positions have a gradient.
        forward.tokens = nullptr;
        forward.token_table = t.Random(batch * context * columns);
        forward.output = output();
        RunOp(backend, forward);
        result.Add(forward.output, batch * context * columns);
        EmbeddingBackward positions_only = op;
        positions_only.tokens = nullptr;
        positions_only.d_token_table = nullptr;
        positions_only.d_position_table = table(positions);
        RunOp(backend, positions_only);
        result.Add(positions_only.d_position_table, positions * columns);
        result.Add(op.d_token_table, vocab * columns);
        result.Add(op.d_position_table, positions * columns);
        return result;
      });
    }
  }
}

TEST(CudaKernels, CrossEntropy) {
  // 260 rows have more losses than are added at a time.
  for (const Sizes s : {Sizes{1, 1}, Sizes{260, 3}, Sizes{3, 131}, Sizes{2, 2500}}) {
    for (const std::int64_t num_blocks : {1, 3}) {
      Check(Name("rows", s), kFew, [&](Backend& backend, Tensors& t) {
        std::vector<std::int32_t> targets(s.rows, kIgnoredTarget);
        const std::int32_t* scored = t.Tokens(s.rows, num_blocks * s.columns);
        for (std::int64_t r = 0; r < s.rows; r += 2) targets[r] = scored[r];
        std::vector<testing::BlockedCrossEntropy<float>::Block> blocks;
        for (std::int64_t b = 0; b < num_blocks; ++b)
          blocks.push_back({.logits = t.Random(s.rows * s.columns, 3), .columns = s.columns});
        testing::BlockedCrossEntropy<float> cross_entropy(backend, blocks, targets);
        Result result;
        // Rows of several blocks are smoothed, too.
        const bool smoothed = num_blocks > 1;
        const TargetShares shares = {.target = smoothed ? 0.75F : 1.0F,
                                     .each = smoothed ? 1e-4F : 0.0F};
        result.Add(cross_entropy.Loss(0.25F, shares, smoothed ? 1e-2 : 0));
        if (s.rows == 260) return result;
        cross_entropy.Gradient();
        for (const auto& block : blocks) result.Add(block.logits, s.rows * s.columns);
        return result;
      });
    }
  }
}

struct AttentionCase {
  std::int64_t batch, context, heads, kv_heads, head_size;
  bool bf16 = false;
  std::int64_t window = 0;
  std::int64_t document = 0;  // of DocumentStarts
};

// Runs both directions on tensors that lie in rows of q, k and v.
template <class T>
Result RunAttention(Backend& backend, const AttentionCase& c, T* qkv, T* output, T* d_output,
                    T* d_qkv, float* logsumexp) {
  const std::int64_t rows = c.batch * c.context, q = c.heads * c.head_size,
                     kv = c.kv_heads * c.head_size, stride = q + 2 * kv;
  const AttentionShape shape = {.batch = c.batch,
                                .context = c.context,
                                .heads = c.heads,
                                .kv_heads = c.kv_heads,
                                .head_size = c.head_size,
                                .q_stride = stride,
                                .kv_stride = stride,
                                .out_stride = q,
                                .window = c.window};
  const std::vector<std::int32_t> starts = testing::DocumentStarts(c.batch, c.context, c.document);
  RunOp(backend, AttentionForward{.shape = shape,
                                  .q = qkv,
                                  .k = qkv + q,
                                  .v = qkv + q + kv,
                                  .output = output,
                                  .logsumexp = logsumexp,
                                  .starts = testing::DataOrNull(starts)});
  RunOp(backend, AttentionBackward{.shape = shape,
                                   .q = qkv,
                                   .k = qkv + q,
                                   .v = qkv + q + kv,
                                   .output = output,
                                   .logsumexp = logsumexp,
                                   .d_output = d_output,
                                   .d_q = d_qkv,
                                   .d_k = d_qkv + q,
                                   .d_v = d_qkv + q + kv,
                                   .starts = testing::DataOrNull(starts)});
  Result result;
  result.Add(output, rows * q);
  result.Add(logsumexp, rows * c.heads);
  result.Add(d_qkv, rows * stride);
  return result;
}

// Such devices have 99 KiB of shared memory for a block. The emulator ends the process at more.
TEST(CudaKernels, AttentionInF32OnDevicesOfLittleSharedMemory) {
  for (const AttentionCase& c :
       {AttentionCase{1, 70, 1, 1, 64}, AttentionCase{1, 70, 2, 1, 80},
        AttentionCase{1, 67, 1, 1, 128}, AttentionCase{1, 35, 2, 1, 160, false, 20},
        AttentionCase{1, 33, 1, 1, 256, false, 0, 5}}) {
    const auto run = [&](Backend& backend, Tensors& t) {
      const std::int64_t rows = c.batch * c.context, q = c.heads * c.head_size,
                         stride = q + 2 * c.kv_heads * c.head_size;
      return RunAttention(backend, c, t.Random(rows * stride), t.Unset(rows * q),
                          t.Random(rows * q), t.Unset(rows * stride), t.Unset(rows * c.heads));
    };
    const auto emulated = [&](ThreadOrder order) {
      return RunCase(run, *CreateEmulatedBackend(order, kSmallTilesBytes)).values;
    };
    const Floats result = emulated(ThreadOrder::kForward);
    EXPECT_TRUE(SameBits(result, emulated(ThreadOrder::kShuffled)));
    const Floats expected = RunCase(run, *testing::CreateOrDie({.threads = 1})).values;
    testing::ExpectNear(
        result, testing::ToDoubles(expected),
        [&](std::size_t i) { return 0x1p-16 * (1 + std::abs(expected[i])); },
        "head size " + std::to_string(c.head_size));
  }
}

TEST(CudaKernelsDeathTest, ABlockWithMoreSharedMemoryThanThereIsEndsTheProcess) {
  constexpr std::int64_t kTooLittle = std::int64_t{16} << 10;
  const AttentionCase c = {1, 4, 1, 1, 64};
  Tensors t(0);
  const auto backend = CreateEmulatedBackend(ThreadOrder::kForward, kTooLittle);
  EXPECT_DEATH(RunAttention(*backend, c, t.Random(768), t.Unset(256), t.Random(256), t.Unset(768),
                            t.Unset(4)),
               "more shared memory");
}

TEST(CudaKernels, Attention) {
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 1, 12}, AttentionCase{2, 65, 2, 1, 12},
        AttentionCase{1, 130, 1, 1, 64}, AttentionCase{1, 67, 2, 2, 100},
        AttentionCase{1, 33, 2, 1, 130}, AttentionCase{1, 66, 1, 1, 8, true},
        AttentionCase{1, 65, 2, 1, 100, true}, AttentionCase{1, 40, 1, 1, 130, true},
        AttentionCase{1, 200, 1, 1, 12, false, 5}, AttentionCase{1, 130, 2, 1, 64, false, 66},
        AttentionCase{1, 70, 1, 1, 130, false, 33}, AttentionCase{1, 140, 2, 1, 100, true, 20},
        AttentionCase{2, 200, 1, 1, 12, false, 0, 40}, AttentionCase{1, 130, 2, 1, 64, true, 0, 33},
        AttentionCase{1, 70, 1, 1, 130, false, 33, 9}}) {
    // The CPU's products are f32, so each of a row's factors is off by 2^-9 of itself.
    const double tolerance = c.bf16 ? 0x1p-5 : 4 * kFew;
    Check("context " + std::to_string(c.context) + ", head size " + std::to_string(c.head_size) +
              ", window " + std::to_string(c.window) + ", documents of " +
              std::to_string(c.document),
          tolerance, [&](Backend& backend, Tensors& t) {
            const std::int64_t rows = c.batch * c.context, q = rows * c.heads * c.head_size,
                               qkv = q + 2 * rows * c.kv_heads * c.head_size;
            float* logsumexp = t.Unset(rows * c.heads);
            return c.bf16 ? RunAttention(backend, c, t.RandomBf16(qkv), t.UnsetBf16(q),
                                         t.RandomBf16(q), t.UnsetBf16(qkv), logsumexp)
                          : RunAttention(backend, c, t.Random(qkv), t.Unset(q), t.Random(q),
                                         t.Unset(qkv), logsumexp);
          });
  }
}

TEST(CudaKernels, CachedAttention) {
  for (const std::int64_t size : {12, 40, 130}) {
    constexpr std::int64_t kHeads = 4, kKvHeads = 2, kPast = 5, kRows = 3;
    constexpr std::int64_t kCapacity = kPast + kRows + 1;
    const std::int64_t kv = kKvHeads * size, q = kHeads * size, cache = kCapacity * kv;
    for (const std::int64_t window : {0, 4}) {
      Check("head size " + std::to_string(size) + ", window " + std::to_string(window), 4 * kFew,
            [&](Backend& backend, Tensors& t) {
              const CachedAttention op = {.q = t.Random(kRows * q),
                                          .k = t.Random(kRows * kv),
                                          .v = t.Random(kRows * kv),
                                          .keys = t.Random(cache),
                                          .values = t.Random(cache),
                                          .output = t.Unset(kRows * q),
                                          .rows = kRows,
                                          .past = kPast,
                                          .capacity = kCapacity,
                                          .heads = kHeads,
                                          .kv_heads = kKvHeads,
                                          .head_size = size,
                                          .q_stride = q,
                                          .kv_stride = kv,
                                          .out_stride = q,
                                          .window = window};
              RunOp(backend, op);
              Result result;
              result.Add(op.output, kRows * q);
              result.Add(op.keys, cache);
              result.Add(op.values, cache);
              return result;
            });
    }
  }
}

TEST(CudaKernels, UpdatesOfAListAreThoseOfEachTensor) {
  // There are more tensors than a launch has, some empty, some longer than a block.
  std::vector<std::int64_t> counts = {4097, 0, 1, 4096, 12};
  while (counts.size() < 80) counts.push_back(7 + static_cast<std::int64_t>(counts.size()));
  const auto tensors_of = [&](Tensors& t) {
    std::vector<UpdatedTensor> tensors;
    for (const std::int64_t count : counts) {
      tensors.push_back({.parameter = t.Random(count),
                         .gradient = t.Random(count),
                         .m = t.Random(count),
                         .v = t.Put(Floats(static_cast<std::size_t>(count), 0.5F)),
                         .rounded = tensors.size() % 2 == 0 ? t.UnsetBf16(count) : nullptr,
                         .count = count,
                         .learning_rate_scale = tensors.size() % 3 == 0 ? 0.5 : 1,
                         .weight_decay = tensors.size() % 2 == 0 ? 0.1 : 0});
    }
    tensors[3].previous = t.Random(tensors[3].count);
    return tensors;
  };
  const auto run = [](Backend& backend, std::span<const UpdatedTensor> tensors) {
    RunOp(backend, AdamwUpdate{.tensors = tensors, .step = 3, .learning_rate = 1e-3});
    RunOp(backend, LionUpdate{.tensors = tensors, .learning_rate = 1e-3, .gradient_scale = 0.5});
    for (const double momentum : {0.0, 0.75}) {
      RunOp(backend, SgdUpdate{.tensors = tensors,
                               .learning_rate = 1e-3,
                               .momentum = momentum,
                               .nesterov = momentum > 0,
                               .gradient_scale = 0.5});
    }
    RunOp(backend, AdamwUpdate{.tensors = tensors, .learning_rate = 1e-3, .foresees = true});
    RunOp(backend, LionUpdate{.tensors = tensors, .learning_rate = 1e-3, .foresees = true});
    RunOp(backend,
          SgdUpdate{.tensors = tensors, .learning_rate = 1e-3, .momentum = 0.75, .foresees = true});
  };
  const auto result = [](const std::vector<UpdatedTensor>& tensors) {
    Result left;
    for (const UpdatedTensor& tensor : tensors) {
      for (const float* part : {tensor.parameter, tensor.m, tensor.v}) left.Add(part, tensor.count);
      if (tensor.rounded == nullptr) continue;
      for (std::int64_t i = 0; i < tensor.count; ++i)
        EXPECT_EQ(tensor.rounded[i].bits, testing::Nearest(tensor.parameter[i]).bits) << i;
    }
    return left;
  };
  const Case together = [&](Backend& backend, Tensors& t) {
    const std::vector<UpdatedTensor> tensors = tensors_of(t);
    run(backend, tensors);
    return result(tensors);
  };
  const Case one_by_one = [&](Backend& backend, Tensors& t) {
    const std::vector<UpdatedTensor> tensors = tensors_of(t);
    for (const UpdatedTensor& tensor : tensors) run(backend, std::span(&tensor, 1));
    return result(tensors);
  };
  Check("updates", kFew, together);
  const auto emulated = CreateEmulatedBackend(ThreadOrder::kForward);
  EXPECT_TRUE(SameBits(RunCase(together, *emulated).values, RunCase(one_by_one, *emulated).values));
}

}  // namespace
}  // namespace takt::backend::cuda
