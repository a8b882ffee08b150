// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/data_root.h"

namespace takt::train {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits without visible
// structure.
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Number `counter` of the stream `key`, uniform in (0, 1): 53 bits, never 0, so that its logarithm
// is finite.
double Uniform(std::uint64_t key, std::uint64_t counter) {
  const std::uint64_t bits = Mix(key + (counter + 1) * 0x9e3779b97f4a7c15ULL);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
}

void FillNormal(std::uint64_t key, double stddev, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const double radius = stddev * std::sqrt(-2.0 * std::log(Uniform(key, i)));
    const double angle = 2.0 * std::numbers::pi * Uniform(key, i + 1);
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

constexpr char kPrefix[] = "transformer.";

// Some exports leave the prefix out.
const checkpoint::Tensor* FindTensor(const checkpoint::SafetensorsView& file,
                                     std::string_view name) {
  if (const checkpoint::Tensor* tensor = file.Find(name)) return tensor;
  return name.starts_with(kPrefix) ? file.Find(name.substr(sizeof kPrefix - 1)) : nullptr;
}

absl::Status RefuseInitFrom(const config::JobSpec& job, std::string rule, std::string fix) {
  return InvalidField({.field = "model.init_from",
                       .value = job.init_from,
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

absl::Status LoadWeights(const config::JobSpec& job, std::string_view data_root,
                         const ParameterStore& store, backend::Backend& backend) {
  ASSIGN_OR_RETURN(
      const std::string path,
      data::ResolveUnderRoot("model.init_from", data_root, job.init_from + "/model.safetensors"));
  const absl::StatusOr<MappedFile> mapped = MappedFile::Open(path);
  if (!mapped.ok())
    return RefuseInitFrom(job, std::string(mapped.status().message()), "make the file readable");
  const absl::StatusOr<checkpoint::SafetensorsView> file =
      checkpoint::SafetensorsView::Parse(mapped->bytes(), path);
  if (!file.ok())
    return RefuseInitFrom(job, std::string(file.status().message()),
                          "give an undamaged safetensors file");
  for (const LayerParameters& layer : store.layers()) {
    for (const ParameterRef& ref : layer.refs) {
      if (ref.m == nullptr) continue;  // shares the weights of another layer
      const model::Parameter& parameter = *ref.parameter;
      const checkpoint::Tensor* tensor = FindTensor(*file, parameter.name);
      if (tensor == nullptr) {
        return RefuseInitFrom(job, absl::StrCat("model.safetensors must hold ", parameter.name),
                              "give the folder of a model of the same family and size");
      }
      if (tensor->dtype != "F32" || tensor->shape != parameter.shape) {
        return RefuseInitFrom(
            job,
            absl::StrCat(parameter.name, " must be F32 of shape [",
                         absl::StrJoin(parameter.shape, ","), "], it is ", tensor->dtype,
                         " of shape [", absl::StrJoin(tensor->shape, ","), "]"),
            "give a model of the job's sizes in float32");
      }
      RETURN_IF_ERROR(
          backend.CopyFromHost(tensor->bytes, reinterpret_cast<std::byte*>(ref.weight)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void FillInitialWeights(const model::Parameter& parameter, std::uint64_t seed,
                        std::span<float> out) {
  TAKT_CHECK(out.size() == static_cast<std::size_t>(parameter.elements()));
  switch (parameter.init) {
    case model::Init::kZeros:
      std::fill(out.begin(), out.end(), 0.0F);
      return;
    case model::Init::kOnes:
      std::fill(out.begin(), out.end(), 1.0F);
      return;
    case model::Init::kNormal:
      FillNormal(XXH3_64bits_withSeed(parameter.name.data(), parameter.name.size(), seed),
                 parameter.stddev, out);
      return;
  }
}

absl::Status InitializeWeights(const config::JobSpec& job, std::string_view data_root,
                               const ParameterStore& store, backend::Backend& backend) {
  if (!job.init_from.empty()) return LoadWeights(job, data_root, store, backend);
  std::vector<float> values;
  for (const LayerParameters& layer : store.layers()) {
    for (const ParameterRef& ref : layer.refs) {
      if (ref.m == nullptr) continue;  // shares the weights of another layer
      values.resize(static_cast<std::size_t>(ref.parameter->elements()));
      FillInitialWeights(*ref.parameter, job.seed, values);
      RETURN_IF_ERROR(backend.CopyFromHost(std::as_bytes(std::span(values)),
                                           reinterpret_cast<std::byte*>(ref.weight)));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::train
