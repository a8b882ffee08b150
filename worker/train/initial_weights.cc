// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/checkpoint/float_formats.h"
#include "common/checkpoint/hf_folder.h"
#include "common/data/data_root.h"
#include "common/model/hf_config_text.h"
#include "common/model/split_layers.h"

namespace takt::train {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits without visible
// structure.
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Returns number `counter` of the stream `key`, uniform in (0, 1). It has 53 bits and is never 0,
// so that its logarithm is finite.
double Uniform(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = Mix(key + (counter + 1) * 0x9e3779b97f4a7c15ULL);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
}

// first: the number of the first element. Elements are made in pairs, of which the run may have
// one.
void FillNormal(std::uint64_t key, double stddev, std::uint64_t first, std::span<float> out) {
  const std::uint64_t end = first + out.size();
  for (std::uint64_t even = first - first % 2; even < end; even += 2) {
    const double radius = stddev * std::sqrt(-2.0 * std::log(Uniform(key, even)));
    const double angle = 2.0 * std::numbers::pi * Uniform(key, even + 1);
    if (even >= first) out[even - first] = static_cast<float>(radius * std::cos(angle));
    if (even + 1 < end) out[even + 1 - first] = static_cast<float>(radius * std::sin(angle));
  }
}

// The number of elements converted at a time: enough to hide the cost of the call, few enough to
// stay in the cache.
constexpr std::size_t kPieceElements = 1 << 16;

// Every rank that begins with these weights opens the folder.
absl::Status RefuseInitFrom(const config::JobSpec& job, const absl::Status& status) {
  if (!FieldErrorsOf(status).empty()) return SharedInput(status);
  const FieldError error{
      .field = "model.init_from",
      .value = job.init_from,
      .rule = std::string(status.message()),
      .fix = "give the folder of a model of the job's family and sizes, undamaged"};
  if (absl::IsInvalidArgument(status)) return InvalidField(error);
  return SharedInput(UnusableField(error));
}

absl::StatusOr<checkpoint::HfFolder> OpenInitFrom(const config::JobSpec& job,
                                                  std::string_view data_root) {
  const auto resolve = [data_root](const std::string& path) {
    return data::ResolveUnderRoot("model.init_from", data_root, path);
  };
  ASSIGN_OR_RETURN(const std::string directory, resolve(job.init_from));
  return checkpoint::HfFolder::Open(directory, resolve);
}

// Calls `visit` for each run of the whole parameter's elements that the rank has.
absl::Status ForEachRunOf(const ParameterRef& ref,
                          absl::FunctionRef<absl::Status(const model::ElementRun&)> visit) {
  if (!ref.parameter->by_word) return model::ForEachRun(*ref.parameter, visit);
  return visit({.whole = ref.first_element(), .count = ref.elements()});
}

// Calls `visit` for each run of the whole parameter's elements whose weights the rank keeps, which
// count from the first of these.
absl::Status ForEachKeptRunOf(const ParameterRef& ref,
                              absl::FunctionRef<absl::Status(const model::ElementRun&)> visit) {
  const layout::FloatRun kept = ref.kept_run();
  return ForEachRunOf(ref, [&](const model::ElementRun& run) -> absl::Status {
    const std::int64_t first = std::max(run.here, kept.first);
    const std::int64_t end = std::min(run.here + run.count, kept.end());
    if (first >= end) return absl::OkStatus();
    return visit({.here = first - kept.first,
                  .whole = run.whole + (first - run.here),
                  .count = end - first});
  });
}

// Sets the weights of the run to those of the whole tensor, converted to f32.
absl::Status CopyRun(const checkpoint::Tensor& tensor, const model::ElementRun& run, float* weights,
                     backend::Backend& backend) {
  const checkpoint::FloatFormat format = *checkpoint::FloatFormatOfDtype(tensor.dtype);
  const std::size_t width = checkpoint::BytesOf(format);
  std::span<const std::byte> rest = tensor.bytes.subspan(
      static_cast<std::size_t>(run.whole) * width, static_cast<std::size_t>(run.count) * width);
  weights += run.here;
  if (format == checkpoint::FloatFormat::kF32) {
    RETURN_IF_ERROR(backend.CopyFromHost(rest, reinterpret_cast<std::byte*>(weights)));
    return backend.Synchronize();
  }
  std::vector<float> piece(std::min(rest.size() / width, kPieceElements));
  while (!rest.empty()) {
    const std::span<float> values =
        std::span(piece).first(std::min(rest.size() / width, piece.size()));
    checkpoint::ReadFloats(format, rest.first(values.size() * width), values);
    RETURN_IF_ERROR(
        backend.CopyFromHost(std::as_bytes(values), reinterpret_cast<std::byte*>(weights)));
    RETURN_IF_ERROR(backend.Synchronize());  // the piece is used again
    weights += values.size();
    rest = rest.subspan(values.size() * width);
  }
  return absl::OkStatus();
}

absl::Status LoadWeights(const config::JobSpec& job, std::string_view data_root,
                         const ParameterStore& store, backend::Backend& backend) {
  const absl::StatusOr<checkpoint::HfFolder> folder = OpenInitFrom(job, data_root);
  if (!folder.ok()) return RefuseInitFrom(job, folder.status());
  for (const ParameterRef* const ref : store.trained()) {
    const absl::StatusOr<const checkpoint::Tensor*> tensor =
        folder->Require(ref->parameter->name, model::WholeShape(*ref->parameter));
    if (!tensor.ok()) return RefuseInitFrom(job, tensor.status());
    RETURN_IF_ERROR(ForEachKeptRunOf(*ref, [&](const model::ElementRun& run) {
      return CopyRun(**tensor, run, ref->kept_weights(), backend);
    }));
  }
  return absl::OkStatus();
}

}  // namespace

void FillInitialWeights(const model::Parameter& parameter, std::uint64_t seed, std::span<float> out,
                        std::int64_t first) {
  TAKT_CHECK(first >= 0 && first + std::ssize(out) <= model::WholeElements(parameter));
  switch (parameter.init) {
    case model::Init::kZeros:
      std::fill(out.begin(), out.end(), 0.0F);
      return;
    case model::Init::kOnes:
      std::fill(out.begin(), out.end(), 1.0F);
      return;
    case model::Init::kNormal:
      FillNormal(XXH3_64bits_withSeed(parameter.name.data(), parameter.name.size(), seed),
                 parameter.stddev, static_cast<std::uint64_t>(first), out);
      return;
  }
}

absl::Status InitializeWeights(const config::JobSpec& job, std::string_view data_root,
                               const ParameterStore& store, backend::Backend& backend) {
  if (!job.init_from.empty()) return LoadWeights(job, data_root, store, backend);
  std::vector<float> values;
  for (const ParameterRef* const ref : store.trained()) {
    const auto elements = static_cast<std::size_t>(ref->kept_run().count);
    const auto fill = [&](std::span<float> out) {
      return ForEachKeptRunOf(*ref, [&](const model::ElementRun& run) {
        const std::span<float> to =
            out.subspan(static_cast<std::size_t>(run.here), static_cast<std::size_t>(run.count));
        FillInitialWeights(*ref->parameter, job.seed, to, run.whole);
        return absl::OkStatus();
      });
    };
    if (backend.memory_is_host()) {  // copying the largest would set the worker's peak
      RETURN_IF_ERROR(fill({ref->kept_weights(), elements}));
      continue;
    }
    values.resize(elements);
    RETURN_IF_ERROR(fill(values));
    RETURN_IF_ERROR(backend.CopyFromHost(std::as_bytes(std::span(values)),
                                         reinterpret_cast<std::byte*>(ref->kept_weights())));
    RETURN_IF_ERROR(backend.Synchronize());  // `values` is used again
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FormatCheckpointConfig(const config::JobSpec& job,
                                                   std::string_view data_root) {
  // The job may leave fields out. The model has them.
  ASSIGN_OR_RETURN(const model::Model model, model::BuildModel(job.model, job.microbatch));
  if (job.init_from.empty()) return model::FormatHfConfig(model.config);
  const absl::StatusOr<checkpoint::HfFolder> folder = OpenInitFrom(job, data_root);
  if (!folder.ok()) return RefuseInitFrom(job, folder.status());
  ASSIGN_OR_RETURN(const std::string path,
                   data::ResolveUnderRoot("model.init_from", data_root,
                                          absl::StrCat(job.init_from, "/config.json")));
  const absl::StatusOr<MappedFile> source = MappedFile::OpenReal(path);
  if (!source.ok()) return RefuseInitFrom(job, source.status());
  std::vector<std::string> names;
  for (const model::Parameter* parameter : model.AllParameters()) names.push_back(parameter->name);
  const std::span<const std::byte> text = source->bytes();
  return model::FormatHfConfig(
      model.config, {.torch_dtype = checkpoint::TorchDtypeOf(folder->CommonFormat(names)),
                     .source = {reinterpret_cast<const char*>(text.data()), text.size()}});
}

}  // namespace takt::train
