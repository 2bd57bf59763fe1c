#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

// Errors of the HTTP API. Inside the front they travel as absl::Status, with the field at fault and
// OpenAI's error code as payloads; at the edge they become an HTTP status and OpenAI's error
// object.
namespace lynx::router {

// InvalidArgument (400) that names the field of the request body at fault.
absl::Status FieldError(std::string_view param, std::string_view message,
                        std::string_view code = "");

// The error, of a request for the served model `model`; and that model, or nothing.
absl::Status ForModel(absl::Status error, std::string_view model);
std::string ModelOf(const absl::Status& error);

// NotFound (404), code `model_not_found`.
absl::Status UnknownModelError(std::string_view model);

// What the client hears.
struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;
  std::string param;                                  // Empty: null.
  std::string code;                                   // Empty: null.
  absl::Duration retry_after = absl::ZeroDuration();  // > 0 for 429 and 503 only.
};

// Maps a failure, not OK:
//   InvalidArgument 400   NotFound 404   OutOfRange 413   ResourceExhausted 429
//   Unavailable 503       DeadlineExceeded 504            anything else 500
ApiError ToApiError(const absl::Status& status, absl::Duration retry_after = absl::Seconds(1));

// Value of a Retry-After header: whole seconds, rounded up.
std::string RetryAfterSeconds(absl::Duration retry_after);

}  // namespace lynx::router
