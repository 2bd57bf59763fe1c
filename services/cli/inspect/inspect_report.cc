#include "services/cli/inspect/inspect_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/flag_set.h"
#include "common/moe/policy.h"

namespace lynx::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Count(int64_t count) {
  const auto number = static_cast<double>(count);
  return number < 1e8 ? absl::StrFormat("%.2f M", number / 1e6)
                      : absl::StrFormat("%.2f B", number / 1e9);
}

std::string Bytes(double bytes) {
  if (bytes < 1e5) return absl::StrFormat("%.2f kB", bytes / 1e3);
  return bytes < 1e8 ? absl::StrFormat("%.2f MB", bytes / 1e6)
                     : absl::StrFormat("%.2f GB", bytes / 1e9);
}
std::string Bytes(int64_t bytes) { return Bytes(static_cast<double>(bytes)); }

int64_t MoeLayers(const model::ModelSpec& spec) {
  return std::count(spec.feed_forward.begin(), spec.feed_forward.end(),
                    model::FeedForwardKind::kMoe);
}

int64_t TokenBytes(const model::ModelSpec& spec) {
  const kv::KvLayout layout = model::KvLayoutOf(spec, DType::kBf16);
  return layout.BlockBytes() * layout.groups.count() / kv::kBlockTokens;
}

std::string HeadsText(const model::ModelSpec& spec) {
  if (!spec.has_latents()) {
    return absl::StrCat(spec.query_heads, " query and ", spec.kv_heads, " KV heads of ",
                        spec.head_dim);
  }
  return absl::StrCat(spec.query_heads, " query heads of ", spec.head_dim, " over latents of ",
                      spec.kv_lora_rank, " + ", spec.qk_rope_head_dim);
}

std::string PresetText(const moe::Preset& preset) {
  const std::string beta =
      preset.beta == moe::Policy::kUnbounded ? "none" : absl::StrCat(preset.beta);
  return absl::StrCat("alpha ", preset.alpha, ", beta ", beta, ", floor ", preset.floor,
                      preset.off_unless_given ? ", off unless given" : "", " (", preset.source,
                      ")");
}

// A line of the text, its first words in a column.
void Line(std::string* text, std::string_view title, const std::string& words) {
  absl::StrAppendFormat(text, "  %-11s %s\n", std::string(title), words);
}

void AppendMemory(const PlannedMemory& memory, std::string* text) {
  const MemoryPlan& plan = memory.plan;
  const MemoryQuestion& question = memory.question;
  Line(text, "memory",
       absl::StrFormat(
           "%s of weights + %d sequences x %d blocks x %s of KV = %s + %s for a step = %s",
           Bytes(plan.weights), question.batch, plan.sequence_blocks, Bytes(plan.block),
           Bytes(plan.kv), Bytes(plan.step), Bytes(plan.total)));
  const double most = static_cast<double>(question.memory_bytes);
  std::string verdict = absl::StrCat(config::FormatBytes(question.memory_bytes), " = ", Bytes(most),
                                     ": ", plan.fits ? "fits" : "does not fit");
  if (plan.most_batch == 0 && plan.most_context == 0) {
    absl::StrAppend(&verdict, "; nor would anything smaller");
  } else {
    absl::StrAppend(&verdict, "; at most ", plan.most_batch, " sequences of ", question.context,
                    " tokens, or ", plan.most_context, " tokens in each of ", question.batch);
  }
  Line(text, "", verdict);
}

// "0-15", the last one included.
std::string RangeText(const model::ShardRange& range) {
  return range.size() == 1 ? absl::StrCat(range.begin)
                           : absl::StrCat(range.begin, "-", range.end - 1);
}

// "0-15,32", runs of neighbours.
std::string RunsText(const std::vector<int32_t>& numbers) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back(RangeText({numbers[i], numbers[end - 1] + 1}));
    i = end;
  }
  return absl::StrJoin(runs, ",");
}

void AppendRanks(const model::ModelSpec& spec, const RankPlan& plan, std::string* text) {
  const model::ParallelLayout& layout = plan.layout;
  std::string split =
      absl::StrCat(layout.world(), ": attention TP ", layout.tp, " x DP ", layout.dp);
  if (spec.has_moe()) {
    absl::StrAppend(&split, ", experts EP ", layout.ep, " x TP ", layout.expert_tp());
  }
  Line(text, "ranks", split);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const PlannedRank& rank = plan.ranks[i];
    std::string held = absl::StrCat("query heads ", RangeText(rank.shard.query_heads));
    absl::StrAppend(&held, spec.has_latents() ? ", whole latents"
                                              : ", KV heads " + RangeText(rank.shard.kv_heads));
    if (spec.has_moe()) {
      absl::StrAppend(&held, ", experts ", RunsText(rank.shard.experts), " (columns ",
                      RangeText(rank.shard.expert_columns), ")");
    }
    absl::StrAppend(&held, ", vocabulary ", RangeText(rank.shard.vocabulary), "; ",
                    Bytes(rank.weight_bytes), " of weights, KV of ", rank.kv_token_bytes,
                    " bytes a token");
    Line(text, absl::StrCat("  rank ", i), held);
  }
}

Json RangeJson(const model::ShardRange& range) { return Json::array({range.begin, range.end}); }

Json RanksJson(const RankPlan& plan) {
  Json ranks = Json::array();
  for (const PlannedRank& rank : plan.ranks) {
    const model::RankShard& shard = rank.shard;
    ranks.push_back({{"query_heads", RangeJson(shard.query_heads)},
                     {"kv_heads", RangeJson(shard.kv_heads)},
                     {"vocabulary", RangeJson(shard.vocabulary)},
                     {"dense_columns", RangeJson(shard.dense_columns)},
                     {"shared_columns", RangeJson(shard.shared_columns)},
                     {"expert_columns", RangeJson(shard.expert_columns)},
                     {"experts", shard.experts},
                     {"weight_bytes", rank.weight_bytes},
                     {"kv_token_bytes", rank.kv_token_bytes}});
  }
  return {{"tp", plan.layout.tp}, {"dp", plan.layout.dp}, {"ep", plan.layout.ep}, {"ranks", ranks}};
}

Json MemoryJson(const PlannedMemory& memory) {
  const MemoryPlan& plan = memory.plan;
  return {{"memory_bytes", memory.question.memory_bytes},
          {"context", memory.question.context},
          {"batch", memory.question.batch},
          {"weight_bytes", plan.weights},
          {"kv_block_bytes", plan.block},
          {"sequence_blocks", plan.sequence_blocks},
          {"kv_bytes", plan.kv},
          {"step_bytes", plan.step},
          {"total_bytes", plan.total},
          {"fits", plan.fits},
          {"most_context", plan.most_context},
          {"most_batch", plan.most_batch}};
}

}  // namespace

std::string GateText(const model::ModelSpec& spec) {
  const moe::Gate& gate = spec.gate;
  std::string text = gate.score == moe::Gate::Score::kSigmoid ? "sigmoid" : "softmax";
  if (spec.ranking_bias) absl::StrAppend(&text, ", ranked with a bias of each expert");
  if (gate.groups > 1) {
    absl::StrAppend(&text, ", of the best ", gate.groups_kept, " of ", gate.groups, " groups");
  }
  absl::StrAppend(&text, gate.rule == moe::Gate::Rule::kRenormalise ? ", weights sum to 1"
                                                                    : ", weights as scored");
  if (gate.scale != 1) absl::StrAppend(&text, ", times ", gate.scale);
  if (gate.scales_input) absl::StrAppend(&text, ", on what the expert reads");
  return text;
}

std::string InspectionText(const ModelInspection& inspection,
                           const std::optional<PlannedMemory>& memory,
                           const std::optional<RankPlan>& ranks) {
  std::string text = inspection.name + "\n";
  if (inspection.spec.has_value()) {
    const model::ModelSpec& spec = *inspection.spec;
    Line(&text, "family", spec.model_type);
    Line(&text, "shape",
         absl::StrCat(spec.layers, " layers (", MoeLayers(spec), " MoE), hidden ", spec.hidden_size,
                      ", ", HeadsText(spec), ", vocabulary ", spec.vocab_size, ", context ",
                      spec.max_positions));
    if (spec.has_moe()) {
      Line(&text, "experts",
           absl::StrCat(spec.experts, " a layer, ", spec.experts_per_token, " a token, of width ",
                        spec.expert_intermediate_size, ", ", Bytes(inspection.expert_bytes),
                        " each"));
      Line(&text, "gate", GateText(spec));
      Line(&text, "lynx", PresetText(*inspection.preset));
    }
    Line(&text, "parameters",
         absl::StrCat(Count(inspection.parameters.total), ", active for a token ",
                      Count(inspection.parameters.active), " (",
                      Count(inspection.parameters.embedding), " of it the embedding)"));
    Line(&text, "weights", absl::StrCat(Bytes(inspection.weight_bytes), " in memory"));
    std::vector<std::string> kinds;
    for (const LayerKind& kind : LayerKindsOf(spec)) {
      kinds.push_back(absl::StrCat(kind.layers, " x ", kind.kv_token_bytes, " ", kind.name));
    }
    Line(&text, "KV cache",
         absl::StrCat(TokenBytes(spec), " bytes a token in bf16: ", absl::StrJoin(kinds, ", ")));
  }
  if (inspection.stored.has_value()) {
    std::vector<std::string> types;
    for (const auto& [type, bytes] : inspection.stored->bytes_of_type) {
      types.push_back(absl::StrCat(type, " ", Bytes(bytes)));
    }
    Line(&text, "files",
         absl::StrCat(Bytes(inspection.stored->bytes), " in ", inspection.stored->tensors,
                      " tensors: ", absl::StrJoin(types, ", ")));
  }
  if (memory.has_value()) AppendMemory(*memory, &text);
  if (ranks.has_value()) AppendRanks(*inspection.spec, *ranks, &text);
  for (const std::string& note : inspection.notes) absl::StrAppend(&text, "note: ", note, "\n");
  for (const std::string& problem : inspection.problems) {
    absl::StrAppend(&text, "problem: ", problem, "\n");
  }
  return text;
}

Json InspectionJson(const ModelInspection& inspection, const std::optional<PlannedMemory>& memory,
                    const std::optional<RankPlan>& ranks) {
  Json json = {{"name", inspection.name}};
  if (inspection.spec.has_value()) {
    const model::ModelSpec& spec = *inspection.spec;
    json.update({{"family", spec.model_type},
                 {"layers", spec.layers},
                 {"moe_layers", MoeLayers(spec)},
                 {"hidden_size", spec.hidden_size},
                 {"query_heads", spec.query_heads},
                 {"kv_heads", spec.kv_heads},
                 {"head_dim", spec.head_dim},
                 {"vocab_size", spec.vocab_size},
                 {"context", spec.max_positions},
                 {"stop_ids", spec.eos_token_ids},
                 {"parameters", inspection.parameters.total},
                 {"active_parameters", inspection.parameters.active},
                 {"embedding_parameters", inspection.parameters.embedding},
                 {"weight_bytes", inspection.weight_bytes},
                 {"kv_token_bytes", TokenBytes(spec)}});
    for (const LayerKind& kind : LayerKindsOf(spec)) {
      json["kv_layers"].push_back(
          {{"kind", kind.name}, {"layers", kind.layers}, {"token_bytes", kind.kv_token_bytes}});
    }
    if (spec.has_moe()) {
      const moe::Preset& preset = *inspection.preset;
      json.update({{"experts", spec.experts},
                   {"experts_per_token", spec.experts_per_token},
                   {"expert_bytes", inspection.expert_bytes},
                   {"gate", GateText(spec)},
                   {"lynx",
                    {{"alpha", preset.alpha},
                     {"beta", preset.beta == moe::Policy::kUnbounded ? Json() : Json(preset.beta)},
                     {"floor", preset.floor},
                     {"off_unless_given", preset.off_unless_given},
                     {"source", preset.source}}}});
    }
  }
  if (inspection.stored.has_value()) {
    json["files"] = {{"tensors", inspection.stored->tensors},
                     {"bytes", inspection.stored->bytes},
                     {"bytes_of_type", inspection.stored->bytes_of_type}};
  }
  if (memory.has_value()) json["memory"] = MemoryJson(*memory);
  if (ranks.has_value()) json["parallel"] = RanksJson(*ranks);
  json["notes"] = inspection.notes;
  json["problems"] = inspection.problems;
  return json;
}

}  // namespace lynx::cli
