#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace lynx::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// EXPECT_THAT(Load(path), IsOk());
MATCHER(IsOk, "is OK") {
  *result_listener << "which is " << StatusOf(arg);
  return StatusOf(arg).ok();
}

// EXPECT_THAT(Load(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
MATCHER_P2(StatusIs, code, message_matcher, "") {
  *result_listener << "which is " << StatusOf(arg);
  return StatusOf(arg).code() == code &&
         ::testing::Matches(message_matcher)(std::string(StatusOf(arg).message()));
}
inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ::testing::_); }

}  // namespace lynx::testing
