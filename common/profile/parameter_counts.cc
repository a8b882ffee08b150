// SPDX-License-Identifier: Apache-2.0
#include "common/profile/parameter_counts.h"

#include <string>

#include "common/model/muon.h"

namespace takt::profile {
namespace {

// Returns whether the parameter is one of a layer's own on this rank.
bool Owns(const model::Model& model, const mesh::Partition& partition, PpRank rank,
          const model::Parameter* parameter) {
  for (const mesh::Stage& stage : partition) {
    if (stage.pp_rank != rank) continue;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      for (const model::Parameter& own : model.layers[i].parameters) {
        if (&own == parameter) return true;
      }
    }
  }
  return false;
}

double Elements(const model::Parameter& parameter) {
  return static_cast<double>(parameter.elements());
}

// Returns the elements, each counted as the share of AdamW's time that its norm and update take.
// They are bound by memory: the norm reads the gradient, and the update reads it again, and reads
// and writes the weight and the moments. Feeding errors back reads the weight before and after, and
// the last update, and writes the last two. Muon's products are bound by arithmetic.
double UpdatedElements(const model::Parameter& parameter) {
  constexpr double kAdamwBytes = 32;
  // This is an estimate: a core moves some 10 GB/s and computes some 60 GFLOP/s.
  constexpr double kFlopsPerByte = 6;
  double bytes = Elements(parameter) * (16 + 8 * parameter.moments + (parameter.fed_back ? 20 : 0));
  if (parameter.by_muon)
    bytes += model::MuonFlops(parameter.shape[0], parameter.shape[1]) / kFlopsPerByte;
  return bytes / kAdamwBytes;
}

using Count = double(const model::Parameter&);

// Returns the count of the layer's own parameters. spread: of those that are no table of words.
double OwnElements(const model::Layer& layer, bool spread, Count count) {
  double elements = 0;
  for (const model::Parameter& parameter : layer.parameters) {
    if (parameter.away || (spread && parameter.by_word)) continue;
    elements += count(parameter);
  }
  return elements;
}

double TiedElements(const model::Model& model, const model::Layer& layer) {
  double elements = 0;
  for (const std::string& name : layer.tied_parameters)
    elements += static_cast<double>(model.Find(name)->elements());
  return elements;
}

// Returns the elements of one row of each table of words.
double ElementsOfAWord(const model::Model& model) {
  double elements = 0;
  for (const model::Parameter* const parameter : model.AllParameters()) {
    if (parameter->by_word) elements += Elements(*parameter) / model.config.vocab;
  }
  return elements;
}

}  // namespace

std::vector<double> UpdatedParameters(const model::Model& model, const mesh::Partition& partition,
                                      int pp_size, const mesh::VocabularyEnds& vocabulary_ends) {
  const bool spread = !vocabulary_ends.empty();
  std::vector<double> counts(pp_size, 0.0);
  for (const mesh::Stage& stage : partition) {
    double& count = counts[stage.pp_rank.value()];
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      count += OwnElements(model.layers[i], spread, UpdatedElements);
      if (spread) continue;  // what is tied is a table of words
      for (const std::string& name : model.layers[i].tied_parameters) {
        const model::Parameter* const tied = model.Find(name);
        if (!Owns(model, partition, stage.pp_rank, tied)) count += UpdatedElements(*tied);
      }
    }
  }
  if (!spread) return counts;
  for (PpRank rank(0); rank.value() < pp_size; ++rank) {
    const UpdatedRowCounts rows = UpdatedRows(model, vocabulary_ends, rank);
    counts[rank.value()] += rows.embedding + rows.head;
  }
  return counts;
}

UpdatedRowCounts UpdatedRows(const model::Model& model, const mesh::VocabularyEnds& vocabulary_ends,
                             PpRank pp_rank) {
  const auto words =
      static_cast<double>(mesh::WordsOf(vocabulary_ends, pp_rank, model.config.vocab).words);
  const auto count = [&](const model::Layer& layer) {
    double elements = 0;
    for (const model::Parameter& parameter : layer.parameters) {
      if (parameter.by_word) elements += UpdatedElements(parameter) / model.config.vocab;
    }
    return words * elements;
  };
  return {.embedding = count(model.layers.front()), .head = count(model.layers.back())};
}

double GradientElements(const model::Model& model, const model::Layer& layer, bool spread) {
  return OwnElements(layer, spread, Elements) + (spread ? 0 : TiedElements(model, layer));
}

double RowElements(const model::Model& model, const mesh::VocabularyEnds& vocabulary_ends,
                   PpRank pp_rank) {
  const mesh::WordRun run = mesh::WordsOf(vocabulary_ends, pp_rank, model.config.vocab);
  double tied = 0;  // they have a gradient for each of their two uses
  for (const model::Layer& layer : model.layers) tied += TiedElements(model, layer);
  return static_cast<double>(run.words) * (ElementsOfAWord(model) + tied / model.config.vocab);
}

}  // namespace takt::profile
