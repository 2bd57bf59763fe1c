#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"

// What a Hugging Face model folder says about how its model wants to be run.
namespace lynx::text {

// Every id that ends a generation, sorted: the union of eos_token_id in config.json (and its
// text_config) and generation_config.json, each an integer or a list, and of eos_token in
// tokenizer_config.json. Models spread them over the three; using one source alone lets answers run
// on. A missing file counts as saying nothing; empty when none says anything.
//
// InvalidArgument names the file and the place.
absl::StatusOr<std::vector<int32_t>> LoadStopTokenIds(const std::filesystem::path& model_dir,
                                                      const Tokenizer& tokenizer);

// InvalidArgument: the tokenizer has more ids than the model, whose config.json says `vocab_size`.
absl::Status CheckVocabulary(const Tokenizer& tokenizer, int32_t vocab_size);

// Sampling values of generation_config.json; what the file leaves out is empty.
struct GenerationDefaults {
  std::optional<bool> do_sample;  // False: greedy unless the request says otherwise.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
};

// A missing file gives no defaults. InvalidArgument names a value of the wrong type or range.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir);

}  // namespace lynx::text
