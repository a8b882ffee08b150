// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "common/config/file_names.h"
#include "common/config/job_spec_serde.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

void Write(const JobSpec& job, v1::DataSpec& proto) {
  for (const Corpus& corpus : job.train) {
    v1::CorpusSpec& out = *proto.add_train();
    out.set_path(corpus.path);
    out.set_format(static_cast<v1::DataFormat>(corpus.format));
    out.set_weight(corpus.weight);
  }
  proto.set_shuffle(job.shuffle);
  proto.set_documents(static_cast<v1::DocumentsMode>(job.documents));
  if (job.document_end.has_value()) proto.set_document_end(*job.document_end);
  if (!job.validation.has_value()) return;
  v1::ValidationSpec& out = *proto.mutable_validation();
  out.set_path(job.validation->path);
  out.set_format(static_cast<v1::DataFormat>(job.validation->format));
  out.set_every_steps(job.validation->every_steps);
  out.set_batches(job.validation->batches);
}

void Write(const Adamw& adamw, v1::AdamwSpec& proto) {
  proto.set_learning_rate(adamw.learning_rate);
  proto.set_beta1(adamw.beta1);
  proto.set_beta2(adamw.beta2);
  proto.set_epsilon(adamw.epsilon);
  proto.set_weight_decay(adamw.weight_decay);
  proto.set_clip_norm(adamw.clip_norm);
}

void Write(const Lion& lion, v1::LionSpec& proto) {
  proto.set_learning_rate(lion.learning_rate);
  proto.set_beta1(lion.beta1);
  proto.set_beta2(lion.beta2);
  proto.set_weight_decay(lion.weight_decay);
  proto.set_clip_norm(lion.clip_norm);
}

void Write(const Sgd& sgd, v1::SgdSpec& proto) {
  proto.set_learning_rate(sgd.learning_rate);
  proto.set_momentum(sgd.momentum);
  proto.set_weight_decay(sgd.weight_decay);
  proto.set_nesterov(sgd.nesterov);
  proto.set_clip_norm(sgd.clip_norm);
}

void Write(const Muon& muon, v1::MuonSpec& proto) {
  proto.set_learning_rate(muon.learning_rate);
  proto.set_momentum(muon.momentum);
  proto.set_nesterov(muon.nesterov);
  proto.set_weight_decay(muon.weight_decay);
  proto.set_clip_norm(muon.clip_norm);
  Write(muon.adamw, *proto.mutable_adamw());
  proto.mutable_adamw()->clear_clip_norm();
}

void Write(const JobSpec& job, v1::OptimizerSpec& proto) {
  if (job.lion.has_value()) {
    Write(*job.lion, *proto.mutable_lion());
  } else if (job.sgd.has_value()) {
    Write(*job.sgd, *proto.mutable_sgd());
  } else if (job.muon.has_value()) {
    Write(*job.muon, *proto.mutable_muon());
  } else {
    Write(job.adamw, *proto.mutable_adamw());
  }
  for (const ParameterGroup& group : job.groups) {
    v1::ParameterGroupSpec& out = *proto.add_groups();
    out.set_parameters(group.parameters);
    out.set_learning_rate_scale(group.learning_rate_scale);
    if (group.weight_decay.has_value()) out.set_weight_decay(*group.weight_decay);
  }
  if (job.error_feedback > 0) proto.set_error_feedback(job.error_feedback);
  if (job.barrier != Barrier::kAuto)
    proto.set_barrier(job.barrier == Barrier::kAlways ? "true" : "false");
  v1::LrScheduleSpec& schedule = *proto.mutable_lr_schedule();
  schedule.set_warmup_steps(job.lr_schedule.warmup_steps);
  schedule.set_decay(static_cast<v1::LrDecay>(job.lr_schedule.decay));
  if (job.lr_schedule.decay == LrDecay::kConstant) return;
  schedule.set_min_learning_rate(job.lr_schedule.min_learning_rate);
  if (job.lr_schedule.decay == LrDecay::kInverseSqrt) return;
  schedule.set_decay_steps(job.lr_schedule.decay_steps);
  if (job.lr_schedule.decay == LrDecay::kWsd)
    schedule.set_stable_steps(job.lr_schedule.stable_steps);
}

void Write(const Parallelism& parallelism, v1::ParallelismSpec& proto) {
  if (parallelism.pipeline.has_value()) proto.set_pipeline(*parallelism.pipeline);
  if (parallelism.data.has_value()) proto.set_data(*parallelism.data);
  if (parallelism.data_auto) proto.set_data(kAutoNumber);
  if (parallelism.chunks.has_value()) proto.set_chunks(*parallelism.chunks);
  if (parallelism.threads.has_value()) proto.set_threads(*parallelism.threads);
  if (parallelism.group.has_value()) proto.set_group(*parallelism.group);
  if (parallelism.schedule != "auto") proto.set_schedule(parallelism.schedule);
  if (!parallelism.schedule_csv.empty()) proto.set_schedule_csv(parallelism.schedule_csv);
  for (const int layers : parallelism.stage_layers) proto.add_stage_layers(layers);
  for (const model::Recompute mode : parallelism.recompute) {
    proto.add_recompute(static_cast<v1::RecomputeMode>(mode));
  }
  if (parallelism.transport != TransportKind::kAuto) {
    proto.set_transport(static_cast<v1::TransportKind>(parallelism.transport));
  }
  if (parallelism.device != DeviceKind::kAuto) {
    proto.set_device(static_cast<v1::DeviceKind>(parallelism.device));
  }
  if (parallelism.vocabulary != Vocabulary::kAuto) {
    proto.set_vocabulary(static_cast<v1::VocabularyMode>(parallelism.vocabulary));
  }
  if (parallelism.tensor != 1) proto.set_tensor(parallelism.tensor);
  if (parallelism.tensor_auto) proto.set_tensor(kAutoNumber);
  if (parallelism.tensor_leaves != 0) proto.set_tensor_leaves(parallelism.tensor_leaves);
  if (parallelism.context != 1) proto.set_context(parallelism.context);
  if (parallelism.expert != 1) proto.set_expert(parallelism.expert);
  if (parallelism.data_leaves != 0) proto.set_data_leaves(parallelism.data_leaves);
  if (parallelism.shard != Shard::kAuto)
    proto.set_shard(static_cast<v1::ShardMode>(parallelism.shard));
  if (parallelism.reshard != Reshard::kAuto)
    proto.set_reshard_after_forward(static_cast<v1::ReshardMode>(parallelism.reshard));
}

void Write(const Checkpoint& checkpoint, v1::CheckpointSpec& proto) {
  proto.set_directory(checkpoint.directory);
  proto.set_every_steps(checkpoint.every_steps);
  proto.set_keep(checkpoint.keep);
  proto.set_resume(checkpoint.resume);
}

void Write(const SizeRange& range, v1::SizeRange& proto) {
  proto.set_min(range.min);
  proto.set_max(range.max);
}

void Write(const Elastic& elastic, v1::ElasticSpec& proto) {
  if (elastic.data.has_value()) Write(*elastic.data, *proto.mutable_data());
  if (elastic.pipeline.has_value()) Write(*elastic.pipeline, *proto.mutable_pipeline());
  proto.set_evict_stragglers(elastic.evict_stragglers);
}

void Write(const model::Mixture& mixture, v1::ExpertsSpec& proto) {
  proto.set_count(mixture.experts);
  proto.set_per_token(mixture.chosen);
  proto.set_inner(mixture.inner);
  proto.set_normalize(mixture.normalised);
  proto.set_auxiliary_loss(mixture.auxiliary_loss);
  proto.clear_dense_blocks();
  for (const int block : mixture.dense_blocks) proto.add_dense_blocks(block);
  if (mixture.scores != model::RouterScores::kSigmoid) return;
  proto.set_scores(v1::EXPERT_SCORES_SIGMOID);
  proto.set_bias_rate(mixture.bias_rate);
}

void Write(model::Precision precision, model::Fp8Recipe fp8, v1::JobSpec& proto) {
  proto.set_precision(static_cast<v1::Precision>(precision));
  if (fp8 == model::Fp8Recipe::kNone) return;
  proto.set_precision(v1::PRECISION_FP8);
  proto.mutable_fp8()->set_recipe(static_cast<v1::Fp8Recipe>(fp8));
}

// A job without files has no section at all unless it keeps copies.
void WriteCopies(const JobSpec& job, v1::JobSpec& proto) {
  const bool is_default = job.checkpoint.has_value() && job.copy_every_steps == kAutoCopies;
  if (is_default || (!job.checkpoint.has_value() && job.copy_every_steps == 0)) return;
  proto.mutable_checkpoint()->set_in_memory(job.copy_every_steps == kAutoCopies ? "auto"
                                            : job.copy_every_steps == 0
                                                ? "off"
                                                : absl::StrCat(job.copy_every_steps));
}

}  // namespace

void WriteModel(const model::ModelConfig& model, v1::ModelSpec& proto) {
  proto.set_family(static_cast<v1::ModelFamily>(model.family));
  proto.set_layers(model.layers);
  proto.set_context(model.context);
  if (model.family == model::Family::kEmulated) {
    proto.set_forward_ms(model.forward_seconds * 1e3);
    proto.set_input_grad_ms(model.input_grad_seconds * 1e3);
    proto.set_weight_grad_ms(model.weight_grad_seconds * 1e3);
    proto.set_activation_bytes(model.activation_bytes);
    proto.set_parameter_bytes(model.parameter_bytes);
    proto.set_collective_bytes(model.collective_bytes);
    return;
  }
  proto.set_hidden(model.hidden);
  proto.set_heads(model.heads);
  proto.set_kv_heads(model.kv_heads);
  if (model.head_size != 0) proto.set_head_size(model.head_size);
  proto.set_vocab(model.vocab);
  proto.set_inner(model.inner);
  proto.set_positions(model.positions);
  proto.set_tied_head(model.tied_head);
  proto.set_norm_epsilon(model.norm_epsilon);
  proto.set_initializer_range(model.initializer_range);
  if (model.family == model::Family::kGpt2) return;
  proto.set_rope_theta(model.rope_theta);
  if (model.attention_window.has_value()) proto.set_attention_window(*model.attention_window);
  if (model.mixture.has_value()) Write(*model.mixture, *proto.mutable_experts());
  if (!model.rope_scaling.has_value()) return;
  v1::RopeScalingSpec& scaling = *proto.mutable_rope_scaling();
  scaling.set_factor(model.rope_scaling->factor);
  scaling.set_low_freq_factor(model.rope_scaling->low_freq_factor);
  scaling.set_high_freq_factor(model.rope_scaling->high_freq_factor);
  scaling.set_original_positions(model.rope_scaling->original_positions);
}

v1::JobSpec ToProto(const JobSpec& job) {
  v1::JobSpec proto;
  proto.set_name(job.name);
  WriteModel(job.model, *proto.mutable_model());
  if (!job.init_from.empty()) proto.mutable_model()->set_init_from(job.init_from);
  Write(job, *proto.mutable_data());
  proto.mutable_batch()->set_global(job.global_batch);
  proto.mutable_batch()->set_microbatch(job.microbatch_auto ? kAutoNumber : job.microbatch);
  Write(job, *proto.mutable_optimizer());
  proto.set_steps(job.steps);
  if (job.evaluation.has_value()) proto.mutable_evaluate()->set_weights(job.evaluation->weights);
  Write(job.parallelism, *proto.mutable_parallelism());
  if (job.checkpoint.has_value()) Write(*job.checkpoint, *proto.mutable_checkpoint());
  WriteCopies(job, proto);
  if (!job.tensorboard.empty()) proto.mutable_logging()->set_tensorboard(job.tensorboard);
  if (!job.mlflow.empty()) proto.mutable_logging()->set_mlflow(job.mlflow);
  Write(job.precision, job.fp8, proto);
  if (job.residual != model::Precision::kF32)
    proto.set_residual(static_cast<v1::ResidualPrecision>(job.residual));
  proto.set_seed(job.seed);
  // The defaults are left out, for readers that do not know these fields.
  if (!job.exact) proto.set_exact(false);
  if (job.priority != kDefaultPriority) proto.set_priority(job.priority);
  if (job.loss.label_smoothing != 0)
    proto.mutable_loss()->set_label_smoothing(job.loss.label_smoothing);
  if (job.loss.z_loss != 0) proto.mutable_loss()->set_z_loss(job.loss.z_loss);
  if (job.replan != Replan::kNever) proto.set_replan(static_cast<v1::ReplanMode>(job.replan));
  if (job.elastic != Elastic()) Write(job.elastic, *proto.mutable_elastic());
  return proto;
}

}  // namespace takt::config
