#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lynx::model {

// Reads typed keys of one JSON object of a model's config; a null counts as absent. Failures are
// InvalidArgument and name the file, the key, what was wanted and what is there.
class ModelConfig {
 public:
  // `object` outlives this; `file` is for messages.
  ModelConfig(const nlohmann::json& object, std::string file)
      : object_(object), file_(std::move(file)) {}

  // Null if absent.
  const nlohmann::json* Find(const char* key) const;
  // The first of several spellings that is there; the last if none is.
  const char* FirstOf(std::initializer_list<const char*> keys) const;

  // Above those of any model there is; products of two fit in 64 bits.
  static constexpr int32_t kMaxSize = 1 << 24;
  // A positive integer up to `most`.
  absl::StatusOr<int32_t> Size(const char* key, int32_t most = kMaxSize) const;
  absl::StatusOr<int32_t> SizeOr(const char* key, int32_t absent) const;
  // The same, or 0.
  absl::StatusOr<int32_t> CountOr(const char* key, int32_t absent) const;
  // A number from 1e-20 to 1e20, so that products of a few stay within float32; required without
  // `absent`.
  absl::StatusOr<double> Positive(const char* key, std::optional<double> absent) const;
  // The same, or 0.
  absl::StatusOr<double> NumberOr(const char* key, double absent) const;
  absl::StatusOr<bool> Flag(const char* key, bool absent) const;
  absl::StatusOr<std::string> Text(const char* key, std::optional<std::string> absent) const;
  // A token id below `vocab_size`, a list of them, or absent.
  absl::Status AddIds(const char* key, int32_t vocab_size, std::set<int32_t>& ids) const;

  absl::Status Wrong(const char* key, std::string_view wanted) const;
  // Unimplemented: the config is sound, and asks for what we do not serve.
  absl::Status Unserved(const char* key, std::string_view why) const;

  const nlohmann::json& object() const { return object_; }
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json& object_;
  const std::string file_;
};

}  // namespace lynx::model
