#include "services/cli/inspect/model_inspection.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/model_name.h"
#include "common/model/model_weights.h"
#include "common/model/name_list.h"
#include "common/model/safetensors.h"
#include "common/text/chat_template.h"
#include "common/text/model_files.h"
#include "common/text/tokenizer.h"
#include "services/cli/bench/model_shape.h"

namespace lynx::cli {
namespace {

// A config of many layers beside few weights would fill the screen.
constexpr size_t kShownNames = 50;

int64_t MoeLayers(const model::ModelSpec& spec) {
  return std::count(spec.feed_forward.begin(), spec.feed_forward.end(),
                    model::FeedForwardKind::kMoe);
}

bool HasWeightFiles(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" || name == "model.safetensors.index.json") {
      return true;
    }
  }
  return false;
}

// Of a format that is not read; empty: none.
std::string OtherWeightFile(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".gguf") {
      return entry.path().filename().string();
    }
  }
  return "";
}

class Inspector {
 public:
  absl::StatusOr<ModelInspection> Run(const std::string& model) {
    const std::filesystem::path path(model);
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      found_.name = FolderName(model);
      TakeSpec(model::LoadModelSpec(path));
      LookAtWeights(path);
      LookAtText(path);
      return std::move(found_);
    }
    absl::StatusOr<ModelShape> shape = LoadModelShape(model);
    if (absl::IsNotFound(shape.status())) {
      return absl::NotFoundError(absl::StrCat("'", model,
                                              "' is no model folder, no config.json and none of ",
                                              absl::StrJoin(ShapeNames(), ", ")));
    }
    found_.name = path.filename() == "config.json" && path.has_parent_path()
                      ? path.parent_path().filename().string()
                      : model;
    if (shape.ok()) {
      TakeSpec(std::move(shape->spec));
    } else {
      TakeSpec(shape.status());
    }
    return std::move(found_);
  }

 private:
  void Add(const absl::Status& problem) { found_.problems.emplace_back(problem.message()); }

  // And what follows from it alone.
  void TakeSpec(absl::StatusOr<model::ModelSpec> read) {
    if (!read.ok()) return Add(read.status());
    const model::ModelSpec& spec = found_.spec.emplace(*std::move(read));
    found_.parameters = CountParameters(spec);
    found_.weight_bytes = found_.parameters.total * 2;
    found_.expert_bytes = found_.parameters.expert * 2;
    if (spec.has_moe()) found_.preset = moe::PresetFor(model::FactsOf(spec, found_.name));
    std::vector<std::string>& notes = found_.notes;
    notes.insert(notes.end(), spec.notes.begin(), spec.notes.end());
    if (spec.tied_embeddings) notes.emplace_back("the output head is the embedding (tied)");
    if (spec.qkv_bias || spec.output_bias) notes.emplace_back("attention has biases");
    if (spec.sinks) notes.emplace_back("attention has sinks");
    if (spec.clip_qkv > 0) notes.push_back(absl::StrCat("clip_qkv is ", spec.clip_qkv));
    if (spec.query_growth > 0) notes.emplace_back("queries without RoPE grow with their position");
    if (spec.router_bias) notes.emplace_back("routers have biases");
    if (spec.expert_bias) notes.emplace_back("experts have biases");
    if (spec.shared_intermediate_size > 0 && spec.has_moe()) {
      notes.push_back(absl::StrCat("a shared expert of width ", spec.shared_intermediate_size,
                                   " beside the routed ones"));
    }
    for (const LayerKind& kind : LayerKindsOf(spec)) {
      if (kind.name == "full" || kind.name == "latent") continue;
      notes.push_back(absl::StrCat(kind.layers, " of ", spec.layers, " layers attend to a ",
                                   kind.name, ", which is what their KV cache keeps"));
    }
  }

  void LookAtWeights(const std::filesystem::path& folder) {
    if (!HasWeightFiles(folder)) {
      const std::string other = OtherWeightFile(folder);
      if (other.empty()) {
        found_.notes.emplace_back("no weight files: sizes are those of config.json, in bf16");
      } else {
        found_.problems.push_back(
            absl::StrCat("no weights in safetensors, which is what nodes read; there is ", other));
      }
      return;
    }
    const auto files = model::SafetensorsFolder::Open(folder);
    if (!files.ok()) return Add(files.status());
    StoredWeights& stored = found_.stored.emplace();
    for (const auto& [name, tensor] : files->tensors()) {
      const auto bytes = static_cast<int64_t>(tensor.data.size());
      ++stored.tensors;
      stored.bytes += bytes;
      stored.bytes_of_type[std::string(model::TypeName(tensor))] += bytes;
    }
    if (!files->unused_files().empty()) {
      found_.notes.push_back(absl::StrCat("weight files beside the model's own are not used: ",
                                          model::NameList(files->unused_files())));
    }
    if (!found_.spec.has_value()) return;
    const model::WeightsOutline outline = model::OutlineWeights(files->tensors(), *found_.spec);
    for (const auto& [kind, names] :
         {std::pair{"missing from the weights: ", &outline.problems.missing},
          std::pair{"disagrees with config.json: ", &outline.problems.wrong},
          std::pair{"belongs to no part of this model: ", &outline.problems.unknown}}) {
      for (size_t i = 0; i < std::min(names->size(), kShownNames); ++i) {
        found_.problems.push_back(absl::StrCat(kind, (*names)[i]));
      }
      if (names->size() > kShownNames) {
        found_.problems.push_back(absl::StrCat(kind, names->size() - kShownNames, " more"));
      }
    }
    if (!outline.ignored.empty()) {
      found_.notes.push_back(absl::StrCat(
          outline.ignored.size(), " tensors are not used: ", model::NameList(outline.ignored)));
    }
    if (!outline.problems.ToStatus().ok()) return;
    found_.weight_bytes = outline.packed_bytes + outline.vector_bytes;
    for (const model::LayerWeights& layer : outline.weights.layers) {
      if (layer.feed_forward.router.out == 0) continue;  // Dense.
      found_.expert_bytes = std::max(found_.expert_bytes, layer.feed_forward.expert_bytes());
    }
  }

  void LookAtText(const std::filesystem::path& folder) {
    std::error_code error;
    if (!std::filesystem::exists(folder / "tokenizer.json", error)) {
      found_.notes.emplace_back("no tokenizer.json: a router needs one");
      return;
    }
    const auto tokenizer = text::Tokenizer::Load(folder);
    if (!tokenizer.ok()) return Add(tokenizer.status());
    if (found_.spec.has_value()) {
      const absl::Status fits = text::CheckVocabulary(**tokenizer, found_.spec->vocab_size);
      if (!fits.ok()) Add(fits);
    }
    const auto stop_ids = text::LoadStopTokenIds(folder, **tokenizer);
    if (!stop_ids.ok()) {
      Add(stop_ids.status());
    } else if (stop_ids->empty()) {
      found_.notes.emplace_back("no id ends a sequence: answers run up to their limit of tokens");
    } else if (found_.spec.has_value()) {
      found_.spec->eos_token_ids = *stop_ids;
    }
    const auto chat_template = text::ChatTemplate::Load(folder);
    if (absl::IsNotFound(chat_template.status())) {
      found_.notes.emplace_back("no chat template: plain prompts only");
    } else if (!chat_template.ok()) {
      Add(chat_template.status());
    } else if (const absl::Status fails = (*chat_template)->CheckRenders(); !fails.ok()) {
      found_.notes.push_back(absl::StrCat(
          "the chat template fails on every conversation tried, as requests of chat will: ",
          fails.message()));
    }
    const auto defaults = text::LoadGenerationDefaults(folder);
    if (!defaults.ok()) Add(defaults.status());
  }

  ModelInspection found_;
};

}  // namespace

ParameterCounts CountParameters(const model::ModelSpec& spec) {
  ParameterCounts counts;
  for (const auto& [name, shape] : model::TensorShapes(spec)) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    counts.total += elements;
  }
  counts.embedding = int64_t{spec.vocab_size} * spec.hidden_size;
  counts.active = counts.total;
  if (!spec.has_moe()) return counts;
  const int64_t biases =
      spec.expert_bias ? int64_t{2} * spec.expert_intermediate_size + spec.hidden_size : 0;
  counts.expert = ExpertParameters(spec) + biases;
  counts.active -= MoeLayers(spec) * (spec.experts - spec.experts_per_token) * counts.expert;
  return counts;
}

std::vector<LayerKind> LayerKindsOf(const model::ModelSpec& spec) {
  const int64_t bytes = model::KvLayoutOf(spec, DType::kBf16).BlockLayerBytes() / kv::kBlockTokens;
  std::vector<LayerKind> kinds;
  for (const model::LayerAttention& layer : spec.attention) {
    std::string name = spec.has_latents() ? "latent" : "full";
    if (layer.reach.window > 0) name = absl::StrCat("window of ", layer.reach.window);
    if (layer.reach.chunk > 0) name = absl::StrCat("chunk of ", layer.reach.chunk);
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const LayerKind& kind) { return kind.name == name; });
    if (known != kinds.end()) {
      ++known->layers;
    } else {
      kinds.push_back({.name = std::move(name), .layers = 1, .kv_token_bytes = bytes});
    }
  }
  return kinds;
}

absl::StatusOr<ModelInspection> InspectModel(const std::string& model) {
  return Inspector().Run(model);
}

}  // namespace lynx::cli
